"""The append lock: nothing appears in the log behind a reader that has passed (RELAY-01)."""

import asyncio
import random
from contextlib import AsyncExitStack

import asyncpg
import pytest

from tests.support.books import Arrival, faults, read_log
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import LogRow, Stream, append, rows_of
from tests.support.relays import all_passed, broker_channel, consume, declare_queue, relaying
from tests.support.sessions import blocked, session


class Aborted(Exception):
    """A writer gives up after its insert."""


@pytest.mark.requirement("RELAY-01")
async def test_a_position_taken_later_is_never_visible_earlier(database: FreshDatabase) -> None:
    async with (
        session(database.owner_url) as early,
        session(database.owner_url) as late,
        session(database.admin_url) as observer,
    ):
        transaction = early.transaction()
        await transaction.start()
        (first,) = await append(early, [Stream().next()])
        waiting = asyncio.create_task(append(late, [Stream().next()]))
        await blocked(observer, late)
        assert await observer.fetchval("select count(*) from tenure.log") == 0
        # It waits before it takes a position, not after.
        assert await observer.fetchval("select last_value from tenure.log_position") == first
        await transaction.commit()
        (second,) = await waiting
        assert first < second


async def test_an_insert_into_a_partition_takes_the_lock_too(database: FreshDatabase) -> None:
    async with (
        session(database.owner_url) as early,
        session(database.owner_url) as late,
        session(database.admin_url) as observer,
    ):
        partitions = await observer.fetch(
            "select inhrelid::regclass::text as name from pg_inherits"
            " where inhparent = 'tenure.log'::regclass"
        )
        assert len(partitions) == 4  # the current one, two ahead, and the default
        transaction = early.transaction()
        await transaction.start()
        await append(early, [Stream().next()])
        for partition in partitions:
            waiting = asyncio.create_task(
                late.execute(f"insert into {partition['name']} default values")
            )
            await blocked(observer, late)
            await observer.execute("select pg_cancel_backend($1)", late.get_server_pid())
            with pytest.raises(asyncpg.QueryCanceledError):
                await waiting
        await transaction.rollback()


@pytest.mark.requirement("RELAY-01")
async def test_a_reader_at_the_tail_misses_nothing_among_delays_and_aborts(
    database: FreshDatabase,
) -> None:
    writers = 8
    chance = random.Random(20_260_101)
    committed: set[int] = set()

    async def write() -> None:
        async with session(database.owner_url) as connection:
            for _ in range(25):
                rows: list[LogRow] = [Stream().next() for _ in range(chance.randint(1, 3))]
                try:
                    async with connection.transaction():
                        positions = await append(connection, rows)
                        await connection.execute("select pg_sleep($1)", chance.random() * 0.01)
                        if chance.random() < 0.25:
                            raise Aborted
                except Aborted:
                    continue
                committed.update(positions)

    async def tail(done: asyncio.Event) -> list[int]:
        seen: list[int] = []
        async with session(database.relay_url) as connection:
            while True:
                last_turn = done.is_set()
                after = seen[-1] if seen else 0
                found = await connection.fetch(
                    'select "position" from tenure.log where "position" > $1 order by 1', after
                )
                seen += [record["position"] for record in found]
                if last_turn:
                    return seen

    done = asyncio.Event()
    reader = asyncio.create_task(tail(done))
    await asyncio.gather(*(write() for _ in range(writers)))
    done.set()
    assert await reader == sorted(committed)
    assert len(committed) > writers


async def test_partitions_are_made_ahead_once_and_by_the_coordinator(
    database: FreshDatabase,
) -> None:
    async with (
        session(database.owner_url) as owner,
        session(database.coordinator_url) as coordinator,
        session(database.coordinator_url) as replica,
    ):
        ensure = "select tenure.ensure_log_partitions()"
        assert await coordinator.fetchval(ensure) == 0
        await owner.execute("select setval('tenure.log_position', 25000000)")
        made = await asyncio.gather(coordinator.fetchval(ensure), replica.fetchval(ensure))
        assert sorted(made) == [0, 2]
        (position,) = await append(owner, [Stream().next()])
        assert position == 25_000_001
        where = "select tableoid::regclass::text from tenure.log where position = $1"
        assert await owner.fetchval(where, position) == "tenure.log_p000003"
        assert await coordinator.fetchval("select count(*) from tenure.log_default") == 0
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await coordinator.execute("select tenure.ensure_log_partitions(-1)")


async def test_a_row_beyond_every_partition_is_kept_and_moved_to_its_own_later(
    database: FreshDatabase,
) -> None:
    async with session(database.owner_url) as owner:
        await owner.execute("select setval('tenure.log_position', 500000000)")
        (position,) = await append(owner, [Stream().next()])
        assert await owner.fetchval("select count(*) from tenure.log_default") == 1
        row = await owner.fetchrow("select * from tenure.log where position = $1", position)
        # Once partitions can be made, it is moved to its own, and nothing lands beyond any more.
        async with session(database.coordinator_url) as coordinator:
            assert await coordinator.fetchval("select tenure.ensure_log_partitions()") == 3
        assert await owner.fetchval("select count(*) from tenure.log_default") == 0
        found = await owner.fetchrow("select * from tenure.log where position = $1", position)
        assert found == row
        (following,) = await append(owner, [Stream().next()])
        assert following == position + 1
        where = "select count(distinct tableoid) from tenure.log where position >= $1"
        assert await owner.fetchval(where, position) == 1


@pytest.mark.requirement("RELAY-01")
@pytest.mark.parametrize("ending", ["commits", "rolls_back"])
async def test_what_commits_late_is_not_passed_over_and_the_relay_does_not_wait_for_it(
    database: FreshDatabase, broker: BrokerSpace, ending: str
) -> None:
    """One writer holds its transaction with a row in it while twenty others want to commit. They
    wait for it, so that nothing of theirs can overtake it; what was there before flows."""
    async with (
        broker_channel(broker.url) as channel,
        session(database.admin_url) as observer,
        session(database.owner_url) as early,
        AsyncExitStack() as sessions,
    ):
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        to_queue = {"routing_key": queue, "required": True}
        others = [
            await sessions.enter_async_context(session(database.owner_url)) for _ in range(20)
        ]

        async def write(connection: asyncpg.Connection) -> list[LogRow]:
            rows = rows_of([Stream() for _ in range(5)], 10, **to_queue)
            for first in range(0, len(rows), 5):
                await append(connection, rows[first : first + 5])
            return rows

        before = await write(early)
        held = Stream().next(**to_queue)
        transaction = early.transaction()
        await transaction.start()
        await append(early, [held])
        writing = [asyncio.create_task(write(connection)) for connection in others]
        for connection in others:
            await blocked(observer, connection)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await consumer.has(before)
            await all_passed(database.relay_url)
            assert consumer.event_ids == {str(row.event_id) for row in before}
            if ending == "commits":
                await transaction.commit()
                rows = [held, *before]
            else:
                await transaction.rollback()
                rows = before
            for written in await asyncio.gather(*writing):
                rows = [*rows, *written]
            await consumer.has(rows)
            await all_passed(database.relay_url)
        log = await read_log(early, "")
    assert consumer.event_ids == {str(row.event_id) for row in rows}
    arrivals = [Arrival(message.event_id, message.body) for message in consumer.messages]
    assert faults(committed=log, arrivals=arrivals) == []
    assert len(log) == len(rows) == 1050 + (ending == "commits")
