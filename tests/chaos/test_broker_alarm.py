"""A broker that runs out of memory under load and gets it back: commits go on, nobody hangs."""

import asyncio

import pytest

from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.contract import topology
from tenure.relay.app import Parts
from tests.support.books import Arrival, Ledger, faults, read_log
from tests.support.broker_control import rabbitmqctl
from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import all_passed, broker_channel, consume, declare_queue, relaying
from tests.support.sessions import session, until
from tests.support.waiting import eventually

DRAIN_SECONDS = 0.5
STOP_LIMIT_SECONDS = 60.0
"""The relay's drain, its farewell to the broker (2 s) and to the database (3 s), and room for a
busy machine. A stop that waited for the alarm's end would never return."""
EVENTS_OF_A_TASK = 4


async def submit(api: Fleet, ledger: Ledger, count: int) -> None:
    for _ in range(count):
        key = str(len(ledger.tasks))
        ledger.answered(key, await api.submit(type="sha256", input=key))


def is_blocked(parts: Parts) -> bool:
    return parts.relay.not_ready == "the broker blocks publishers"


@pytest.mark.requirement("RELAY-05")
@pytest.mark.timeout(300)
async def test_while_the_broker_is_in_alarm_commits_go_on_and_the_relay_neither_claims_nor_hangs(
    database: FreshDatabase, private_rabbitmq: PrivateRabbitmq
) -> None:
    space = BrokerSpace(private_rabbitmq.url(), "t")
    exchange = topology.events_exchange(space.name_prefix)
    arguments = (database.relay_url, space.url, space.name_prefix)
    ledger = Ledger()
    async with broker_channel(space.url) as channel, session(database.owner_url) as owner:
        async with asyncio.timeout(STOP_LIMIT_SECONDS) as stopping:
            stopping.reschedule(None)
            async with fleet(database, space) as api:
                queue = await declare_queue(channel, "audit", exchange)
                consumer = await consume(channel, queue)
                await api.register()
                # It gives its claims back after twice as long as they last.
                async with relaying(
                    *arguments, relay_drain_seconds=DRAIN_SECONDS, relay_claim_seconds=1.0
                ) as parts:
                    await submit(api, ledger, 10)
                    await all_passed(database.relay_url)

                    await rabbitmqctl(private_rabbitmq, "set_vm_memory_high_watermark", "0")
                    while not is_blocked(parts):  # a broker says so to whoever publishes
                        await submit(api, ledger, 1)
                    since_the_alarm = len(ledger.tasks) - 10
                    window = parts.relay.window

                    async def claims_nothing() -> bool:
                        return window.claims == {}

                    await until(claims_nothing)
                    in_flight, published = window.in_flight, parts.publisher._session
                    await submit(api, ledger, 100)
                    assert (window.claims, window.rows, window.body_bytes) == ({}, 0, 0)
                    assert window.in_flight == in_flight <= since_the_alarm * EVENTS_OF_A_TASK
                    assert parts.publisher._session is published  # not a connection after another
                    assert (await parts.log.lag()).rows >= 100
                    page = (await parts.metrics_page()).decode()
                    assert 'tenure_relay_connected{server="broker"} 0.0' in page
                    stopping.reschedule(asyncio.get_running_loop().time() + STOP_LIMIT_SECONDS)
                stopping.reschedule(None)
                await submit(api, ledger, 10)
                stopping.reschedule(asyncio.get_running_loop().time() + STOP_LIMIT_SECONDS)
        # One that starts during the alarm goes on by itself once it is over.
        async with relaying(*arguments) as parts:
            await eventually(lambda: is_blocked(parts))
            await rabbitmqctl(private_rabbitmq, "set_vm_memory_high_watermark", "absolute", "512MB")
            await all_passed(database.relay_url)
            await eventually(lambda: parts.relay.not_ready == "")
        log = await read_log(owner, exchange)
        wanted = {row.event_id for row in log}

        async def all_arrived() -> bool:
            return wanted <= consumer.event_ids

        await until(all_arrived)
    arrivals = [Arrival(message.event_id, message.body) for message in consumer.messages]
    assert faults(committed=log, arrivals=arrivals, ledger=ledger) == []
    assert len(ledger.tasks) == 120 + since_the_alarm
