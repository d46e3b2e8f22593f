"""Rows that cannot be published: set aside, tried again, skipped; nothing else waits (RELAY-04)."""

from contextlib import AsyncExitStack
from datetime import datetime

import asyncpg
import pytest

from tenure.relay.app import Parts
from tenure.relay.core.outcome import Outcome
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import LogRow, Stream, append, rows_of
from tests.support.parked import Parked, ask, make_due, parked, parked_are, results
from tests.support.relays import (
    all_passed,
    broker_channel,
    consume,
    count,
    declare_queue,
    relaying,
)
from tests.support.sessions import session, until


async def record(database: FreshDatabase, rows: list[LogRow]) -> list[int]:
    async with session(database.owner_url) as owner:
        return await append(owner, rows)


@pytest.mark.requirement("RELAY-04")
async def test_a_row_that_can_never_be_sent_is_parked_and_nothing_else_waits_for_it(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """Then it is sent on request, when the limit was raised: the same bytes, in order."""
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        stream = Stream()
        large = stream.next(routing_key=queue, required=True, filler="x" * 2000)
        later = rows_of([stream], 2, routing_key=queue, required=True)
        others = rows_of([Stream() for _ in range(20)], 2, routing_key=queue, required=True)
        (position, *_) = await record(database, [large, *later, *others])
        arguments = (database.relay_url, broker.url, broker.name_prefix)
        async with relaying(*arguments, relay_max_body_bytes=1500) as parts:
            await consumer.has(others)
            await all_passed(database.relay_url)
            first, *behind = await parked_are(database, "failed", "behind", "behind")
            assert first.event_id == large.event_id
            assert first.reason == "unsendable"
            assert "more than 1500" in first.detail
            assert behind == [Parked(row.event_id, "behind", "behind", "", 0) for row in later]
            assert count(parts, Outcome.LOST) == 0

            assert await ask(database, "retry", [position]) == [position]

            async def failed_again() -> bool:
                return (await parked(database))[0].tries == 1

            await until(failed_again)
            assert await results(database) == [("retry", "failed")]
        assert not consumer.event_ids & {str(row.event_id) for row in (large, *later)}
        async with relaying(*arguments):
            more = rows_of([stream], 1, routing_key=queue, required=True)
            await record(database, more)
            await parked_are(database, "failed", "behind", "behind", "behind")
            assert await ask(database, "retry", failed_as="unsendable") == [position]
            await consumer.has([large, *later, *more])
            await parked_are(database)
            more += rows_of([stream], 1, routing_key=queue, required=True)
            await record(database, more[1:])
            await consumer.has(more)
            await all_passed(database.relay_url)
        assert await results(database) == [("retry", "failed"), ("retry", "published")]
    assert consumer.first_sequences()[stream.entity_id] == [1, 2, 3, 4, 5]
    consumer.assert_same_bytes([large, *later, *others, *more])
    assert len(consumer.messages) == 5 + len(others)


@pytest.mark.requirement("RELAY-04")
async def test_what_fails_for_a_while_is_parked_and_arrives_by_itself_once_it_can(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    missing = f"{broker.name_prefix}.later"
    async with broker_channel(broker.url) as channel, session(database.owner_url) as owner:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        streams = [Stream(), Stream()]
        rows = rows_of(streams, 3, routing_key=missing, required=True)
        others = rows_of([Stream() for _ in range(10)], 2, routing_key=queue, required=True)
        async with relaying(
            database.relay_url, broker.url, broker.name_prefix, relay_park_after_seconds=0.2
        ) as parts:
            await record(database, [*rows, *others])
            found = await parked_are(database, *["failed"] * 2, *["behind"] * 4)
            assert {row.reason for row in found} == {"returned", "behind"}
            assert "NO_ROUTE" in found[0].detail
            await consumer.has(others)
            await all_passed(database.relay_url)

            made_due = await make_due(owner)

            async def tried_again() -> bool:
                return all(row.tries > 0 for row in (await parked(database))[:2])

            await until(tried_again)
            assert await delays_have_grown(owner, made_due)  # to about ten seconds
            await declare_queue(channel, missing)
            late = await consume(channel, missing)
            await make_due(owner)
            await late.has(rows)
            await parked_are(database)
            assert count(parts, Outcome.TIMED_OUT) == count(parts, Outcome.LOST) == 0
        assert await owner.fetchval("select sum(parked) from tenure.relay_shards") == 0
    assert late.first_sequences() == {stream.entity_id: [1, 2, 3] for stream in streams}
    late.assert_same_bytes(rows)
    assert len(late.messages) == len(rows)


@pytest.mark.requirement("RELAY-04")
async def test_many_relays_try_a_parked_row_no_more_often_than_one(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """When it is due is stored with the row, and only the relay of its shard tries it."""
    missing = f"{broker.name_prefix}.later"
    arguments = (database.relay_url, broker.url, broker.name_prefix)
    async with AsyncExitStack() as relays, session(database.owner_url) as owner:
        row = Stream().next(routing_key=missing, required=True)
        await record(database, [row])
        many = [
            await relays.enter_async_context(relaying(*arguments, relay_park_after_seconds=0.2))
            for _ in range(8)
        ]
        await parked_are(database, "failed")

        async def tries() -> tuple[int, int]:
            """What the relays have counted and what the row has, while it is in nobody's hands."""
            while True:
                ((noted, waits),) = await owner.fetch(
                    "select tries, due_at > clock_timestamp() + interval '1 s' from tenure.parked"
                )
                if waits:
                    return sum(count(parts, Outcome.RETURNED) for parts in many), noted

        counted_before, noted_before = await tries()
        for _ in range(4):
            (row_before,) = await parked(database)
            made_due = await make_due(owner)

            async def tried(before: int = row_before.tries) -> bool:
                return (await parked(database))[0].tries > before

            await until(tried)
            assert await delays_have_grown(owner, made_due)
        counted, noted = await tries()
        assert counted - counted_before == noted - noted_before >= 4


async def delays_have_grown(owner: asyncpg.Connection, since: datetime) -> bool:
    """Whether rows that were tried after ``since`` are due as long after it as their tries say:
    five seconds doubled with each, or up to a half less."""
    grown: bool = await owner.fetchval(
        "select bool_and(due_at between $1::timestamptz + 2.5 * 2 ^ tries * interval '1 s'"
        " and clock_timestamp() + 5 * 2 ^ tries * interval '1 s')"
        " from tenure.parked where due_at is not null",
        since,
    )
    return grown


@pytest.mark.requirement("RELAY-04")
async def test_a_skipped_row_is_never_sent_and_the_stream_goes_on(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        stream = Stream()
        large = {"routing_key": queue, "required": True, "filler": "x" * 2000}
        rows = [
            stream.next(**large),
            stream.next(routing_key=queue, required=True),
            stream.next(routing_key=queue, required=True),
            stream.next(**large),
            stream.next(routing_key=queue, required=True),
        ]
        positions = await record(database, rows)
        async with relaying(
            database.relay_url, broker.url, broker.name_prefix, relay_max_body_bytes=1500
        ):
            await parked_are(database, "failed", *["behind"] * 4)
            # The third, which is behind: when its turn comes.
            assert await ask(database, "skip", [positions[2]]) == [positions[2]]
            assert await ask(database, "skip", [positions[0]]) == [positions[0]]
            await consumer.has([rows[1]])
            found = await parked_are(database, "failed", "behind")
            assert [row.event_id for row in found] == [rows[3].event_id, rows[4].event_id]
            assert await ask(database, "skip", [positions[3], positions[0], 999]) == [positions[3]]
            await consumer.has([rows[4]])
            await parked_are(database)
            await all_passed(database.relay_url)
        assert await results(database) == [("skip", "skipped")] * 3
    assert consumer.first_sequences() == {stream.entity_id: [2, 5]}
    assert len(consumer.messages) == 2


async def test_under_the_policy_flow_later_rows_of_the_stream_go_on(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        stream = Stream()
        large = stream.next(routing_key=queue, required=True, filler="x" * 2000)
        later = rows_of([stream], 3, routing_key=queue, required=True)
        (position, *_) = await record(database, [large, *later])
        arguments = (database.relay_url, broker.url, broker.name_prefix)
        async with relaying(*arguments, relay_max_body_bytes=1500, relay_parking="flow"):
            await consumer.has(later)
            await all_passed(database.relay_url)
            await parked_are(database, "failed")
        async with relaying(*arguments):
            await ask(database, "retry", [position])
            await consumer.has([large])
            await parked_are(database)
    assert consumer.first_sequences() == {stream.entity_id: [2, 3, 4, 1]}


@pytest.mark.requirement("RELAY-04")
@pytest.mark.requirement("RELAY-05")
async def test_a_shard_with_too_many_parked_rows_waits_and_says_so(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """Nothing is lost by it: with room again it goes on."""
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        stream = Stream()
        rows = [stream.next(routing_key=queue, required=True, filler="x" * 2000)]
        rows += rows_of([stream], 6, routing_key=queue, required=True)
        others = rows_of([Stream() for _ in range(20)], 2, routing_key=queue, required=True)
        positions = await record(database, [*rows, *others])
        arguments = (database.relay_url, broker.url, broker.name_prefix)
        async with relaying(
            *arguments, relay_max_body_bytes=1500, relay_max_parked_rows=4
        ) as parts:
            await consumer.has(others)
            await parked_are(database, "failed", *["behind"] * 3)
            await tells(parts, "tenure_relay_full_shards 1.0", "tenure_relay_parked_rows 4.0")
            assert (await parts.log.lag()).rows >= 3
            await ask(database, "skip", [positions[0]])
            await consumer.has(rows[1:])
            await all_passed(database.relay_url)
            await parked_are(database)
            await tells(parts, "tenure_relay_full_shards 0.0", "tenure_relay_parked_rows 0.0")
    assert consumer.first_sequences()[stream.entity_id] == [2, 3, 4, 5, 6, 7]


async def tells(parts: Parts, *lines: str) -> None:
    """Wait until the relay's metrics have these lines: what is stored it hears a moment later."""

    async def told() -> bool:
        page = (await parts.metrics_page()).decode().splitlines()
        return set(lines) <= set(page)

    await until(told)
