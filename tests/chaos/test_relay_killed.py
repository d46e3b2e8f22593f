"""The relay killed at each of its named points; a confirm that never comes."""

from pathlib import Path

import asyncpg
import pytest

from tenure.cli.chaos.toxic import toxic
from tenure.cli.drills.strikes import Act, Strike
from tenure.contract.faultpoints import FaultPoint
from tenure.relay.core.outcome import Outcome
from tests.support.armed import armed_process, died, reached
from tests.support.books import Arrival, Committed, faults, read_log
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import LogRow, Stream, append, rows_of
from tests.support.relays import (
    Consumer,
    all_passed,
    broker_channel,
    consume,
    count,
    declare_queue,
    relaying,
)
from tests.support.sessions import session, until
from tests.support.toxic_filters import WithoutConfirms
from tests.support.waiting import eventually

POINTS = {
    FaultPoint.BEFORE_PUBLISH: 4,
    FaultPoint.AFTER_PUBLISH: 4,
    FaultPoint.AFTER_CONFIRM: 4,
    # Cursors move at the first confirm and at the last; between them when it is time.
    FaultPoint.BEFORE_CURSOR_MOVE: 2,
    FaultPoint.AFTER_CURSOR_MOVE: 2,
}
"""Where, and how often it is surely reached while four rows of each stream are published."""


def environment(database: FreshDatabase, broker_url: str, prefix: str) -> dict[str, str]:
    return {
        "TENURE_DATABASE_URL": database.relay_url,
        "TENURE_BROKER_URL": broker_url,
        "TENURE_NAME_PREFIX": prefix,
        "TENURE_RELAY_LISTEN": "127.0.0.1:0",
        "TENURE_RELAY_CLAIM_SECONDS": "1",
    }


async def committed(database: FreshDatabase) -> list[Committed]:
    async with session(database.owner_url) as owner:
        return await read_log(owner, "")


async def record(database: FreshDatabase, rows: list[LogRow]) -> None:
    connection = await asyncpg.connect(database.owner_url)
    try:
        await append(connection, rows)
    finally:
        await connection.close()


def arrivals(consumer: Consumer) -> list[Arrival]:
    return [Arrival(message.event_id, message.body) for message in consumer.messages]


@pytest.mark.requirement("RELAY-01")
@pytest.mark.requirement("RELAY-03")
@pytest.mark.parametrize(
    ("point", "nth"), [(point, nth) for point, often in POINTS.items() for nth in (1, often)]
)
async def test_a_relay_killed_at_any_point_loses_nothing_and_keeps_the_order(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path, point: FaultPoint, nth: int
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        rows = rows_of([Stream() for _ in range(300)], 4, routing_key=queue, required=True)
        await record(database, rows)
        strike = Strike(point, Act.KILL, tmp_path, nth=nth)
        settings = environment(database, broker.url, broker.name_prefix)
        async with armed_process("relay", settings, strike) as relay:
            await died(relay)
            assert strike.sign() is not None
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await consumer.has(rows)
            await all_passed(database.relay_url)
    assert faults(committed=await committed(database), arrivals=arrivals(consumer)) == []


@pytest.mark.requirement("RELAY-01")
async def test_killed_between_a_publish_that_arrived_and_its_confirm_it_is_published_again(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    """It stands still behind the publish until the consumer has the message: a duplicate for
    certain, of the same bytes."""
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        rows = rows_of([Stream()], 2, routing_key=queue, required=True)
        await record(database, rows)
        strike = Strike(FaultPoint.AFTER_PUBLISH, Act.WAIT, tmp_path)
        settings = environment(database, broker.url, broker.name_prefix)
        async with armed_process("relay", settings, strike) as relay:
            await reached(strike)
            await consumer.has(rows[:1])
            relay.kill()
            await died(relay)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await consumer.has(rows)
            await all_passed(database.relay_url)
    assert [message.event_id for message in consumer.messages] == [
        str(rows[0].event_id), str(rows[0].event_id), str(rows[1].event_id),
    ]  # fmt: skip
    assert faults(committed=await committed(database), arrivals=arrivals(consumer)) == []


@pytest.mark.requirement("RELAY-01")
@pytest.mark.requirement("RELAY-05")
async def test_confirms_that_never_come_are_given_up_and_nothing_stands_behind_them(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """Every basic.ack of the broker is dropped for the first connection, the rest is forwarded."""
    filters: list[WithoutConfirms] = []

    def only_the_first() -> WithoutConfirms:
        first = not filters
        filters.append(WithoutConfirms(lambda: first))
        return filters[-1]

    async with toxic(broker.url, only_the_first) as proxy, broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        rows = rows_of([Stream() for _ in range(20)], 3, routing_key=queue, required=True)
        await record(database, rows)
        async with relaying(
            database.relay_url, proxy.url, broker.name_prefix, relay_confirm_timeout_seconds=1.0
        ) as parts:
            await consumer.has(rows)
            await all_passed(database.relay_url)
            assert count(parts, Outcome.LOST) + count(parts, Outcome.TIMED_OUT) >= 20
            await eventually(lambda: parts.relay.not_ready == "")
        assert filters[0].withheld > 0
        assert len(filters) > 1  # the connection was rebuilt
    found = arrivals(consumer)
    assert len(found) > len(rows)
    assert faults(committed=await committed(database), arrivals=found) == []


@pytest.mark.requirement("RELAY-05")
async def test_a_broker_out_of_reach_while_a_thousand_events_commit_gets_them_all_in_order(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with toxic(broker.url) as proxy, broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        async with relaying(database.relay_url, proxy.url, broker.name_prefix) as parts:

            async def connected() -> bool:
                return not parts.relay.not_ready

            await until(connected)
            proxy.refuse_connections = True
            proxy.cut()

            async def away() -> bool:
                return "no connection to the broker" in parts.relay.not_ready

            await until(away)
            rows = rows_of([Stream() for _ in range(100)], 10, routing_key=queue, required=True)
            await record(database, rows)
            lag = await parts.log.lag()
            assert lag.rows == len(rows)
            proxy.refuse_connections = False
            await consumer.has(rows)
            await all_passed(database.relay_url)
    assert faults(committed=await committed(database), arrivals=arrivals(consumer)) == []
