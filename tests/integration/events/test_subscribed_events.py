"""Events that a subscription asks for are published only once they reached a queue (RELAY-02)."""

from datetime import timedelta

import asyncpg
import pytest

from tenure.contract.ids import DEFAULT_TENANT
from tenure.contract.states import EntityType
from tenure.contract.topology import event_routing_key
from tenure.relay.core.outcome import Outcome
from tenure.relay.routes import Routes
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import Stream, append, attempt, rows_of
from tests.support.parked import make_due, parked_are
from tests.support.relays import (
    all_passed,
    broker_channel,
    consume,
    count,
    declare_events,
    declare_queue,
    relaying,
)
from tests.support.sessions import session, until

DELIVERED = event_routing_key(DEFAULT_TENANT, EntityType.TASK, "delivered")
FAILED = event_routing_key(DEFAULT_TENANT, EntityType.TASK, "failed")


async def subscribe(owner: asyncpg.Connection, pattern: str) -> None:
    await owner.execute(
        "insert into tenure.subscriptions (tenant, name, queue, patterns, dedupe_retention,"
        " created_at, created_by, changed_at, changed_by)"
        " values ('default', $1, $1, array[$1], $2, now(), 'x', now(), 'x')",
        pattern,
        timedelta(days=1),
    )


def test_what_a_subscription_asks_for_is_required_and_nothing_else() -> None:
    routes = Routes(["default.task.delivered", "acme.#"])
    assert routes.required("tenure.events", DELIVERED)
    assert routes.required("tenure.events", "acme.node.gone")
    assert not routes.required("tenure.events", FAILED)
    assert not routes.required("", DELIVERED)  # a node's queue may have any name
    assert not Routes().required("tenure.events", DELIVERED)


@pytest.mark.requirement("RELAY-02")
async def test_an_event_that_is_subscribed_to_waits_for_its_queue_and_others_do_not(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """The subscription is made while the relay runs: it counts for all that is committed later."""
    async with broker_channel(broker.url) as channel, session(database.owner_url) as owner:
        exchange = await declare_events(channel, broker.name_prefix)
        async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:
            early = rows_of([Stream() for _ in range(3)], 1, exchange=exchange)
            for row in early:
                row.routing_key = DELIVERED
            await append(owner, early)
            await all_passed(database.relay_url)  # to nobody

            await subscribe(owner, "default.*.delivered")
            wanted = rows_of([Stream() for _ in range(5)], 1, exchange=exchange)
            others = rows_of([Stream() for _ in range(5)], 1, exchange=exchange)
            for row in wanted:
                row.routing_key = DELIVERED
            for row in others:
                row.routing_key = FAILED
            await append(owner, [*wanted, *others])

            async def returned_and_the_others_out() -> bool:
                returned = parts.relay.window.failing_streams.get(Outcome.RETURNED) == len(wanted)
                return returned and count(parts) >= len(early) + len(others)

            await until(returned_and_the_others_out)
            assert count(parts) == len(early) + len(others)

            name = await declare_queue(channel, f"{broker.name_prefix}.q")
            queue = await channel.get_queue(name)
            await queue.bind(exchange, "default.*.delivered")
            consumer = await consume(channel, name)
            await consumer.has(wanted)
            await all_passed(database.relay_url)
    assert consumer.event_ids == {str(row.event_id) for row in wanted}


@pytest.mark.requirement("RELAY-02")
async def test_an_event_about_an_attempt_outlives_it(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """Only a message to a node is void once its attempt has ended."""
    async with broker_channel(broker.url) as channel, session(database.owner_url) as owner:
        exchange = await declare_events(channel, broker.name_prefix)
        await subscribe(owner, DELIVERED)
        stream = Stream()
        ended = await attempt(owner, stream.entity_id, "cancelled")
        row = stream.next(exchange=exchange, routing_key=DELIVERED, attempt_id=ended)
        await append(owner, [row])
        async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:

            async def tried() -> bool:
                return count(parts, Outcome.RETURNED) >= 3

            await until(tried)
            assert count(parts, Outcome.WITHDRAWN) == count(parts) == 0
            name = await declare_queue(channel, f"{broker.name_prefix}.q", exchange)
            consumer = await consume(channel, name)
            await consumer.has([row])


@pytest.mark.requirement("RELAY-02")
@pytest.mark.requirement("RELAY-04")
async def test_a_parked_event_is_let_go_once_nobody_subscribes_to_it_any_more(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel, session(database.owner_url) as owner:
        exchange = await declare_events(channel, broker.name_prefix)
        await subscribe(owner, DELIVERED)
        rows = rows_of([Stream()], 2, exchange=exchange, routing_key=DELIVERED)
        await append(owner, rows)
        async with relaying(
            database.relay_url, broker.url, broker.name_prefix, relay_park_after_seconds=0.2
        ):
            await parked_are(database, "failed", "behind")
            await make_due(owner)

            async def tried_in_vain() -> bool:
                return bool(await owner.fetchval("select max(tries) >= 1 from tenure.parked"))

            await until(tried_in_vain)
            await owner.execute("update tenure.subscriptions set removed_at = now()")
            await make_due(owner)
            await parked_are(database)
            await all_passed(database.relay_url)
