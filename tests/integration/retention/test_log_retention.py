"""The log shrinks by whole partitions, never one that somebody needs (OPS-08, RELAY-01)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from tests.support.ageing import age
from tests.support.isolation import FreshDatabase
from tests.support.log_rows import LogRow, Stream, append
from tests.support.replays import change, start
from tests.support.sessions import blocked, session

SIZE = 10_000_000
CUT = "select tenure.cut_log()"
NOTHING = (None, None)


@pytest.fixture
async def owner(database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    async with session(database.owner_url) as connection:
        yield connection


@pytest.fixture
async def coordinator(database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    async with session(database.coordinator_url) as connection:
        yield connection


async def shrink(connection: asyncpg.Connection) -> tuple[str | None, bool | None]:
    """One step: the partition, and whether it is dropped."""
    row = await connection.fetchrow("select * from tenure.remove_old_log()")
    assert row is not None
    return row["name"], row["dropped"]


async def partitions(owner: asyncpg.Connection) -> set[str]:
    rows = await owner.fetch(
        "select c.relname from pg_class c where c.relnamespace = 'tenure'::regnamespace"
        " and c.relname ~ '^log_p[0-9]+$'"
    )
    return {row["relname"] for row in rows}


async def written(owner: asyncpg.Connection, rows: int = 3) -> list[LogRow]:
    """Rows of as many streams."""
    made = [Stream().next() for _ in range(rows)]
    await append(owner, made)
    return made


async def published(owner: asyncpg.Connection) -> None:
    """As if the relay had published everything."""
    await owner.execute(
        "update tenure.relay_shards set position = (select max(position) from tenure.log)"
    )


async def next_partition(owner: asyncpg.Connection) -> None:
    """As if the last partition had filled up."""
    await owner.execute(
        "select setval('tenure.log_position', (last_value / $1 + 1) * $1 - 1)"
        " from tenure.log_position",
        SIZE,
    )
    await owner.execute("select tenure.ensure_log_partitions()")


@pytest.mark.requirement("OPS-08")
async def test_an_old_partition_goes_once_everything_in_it_is_published(
    database: FreshDatabase, owner: asyncpg.Connection, coordinator: asyncpg.Connection
) -> None:
    await written(owner)
    await age(database, "31 days")
    await next_partition(owner)
    kept = await written(owner)
    assert await shrink(coordinator) == NOTHING  # nobody has published it
    await published(owner)
    assert await shrink(coordinator) == ("log_p000001", False)
    # Detached: no reader of the log sees it any more, and what follows is as it was.
    assert await owner.fetchval("select count(*) from tenure.log") == len(kept)
    assert "log_p000001" in await partitions(owner)
    assert await shrink(coordinator) == ("log_p000001", True)
    assert await shrink(coordinator) == NOTHING
    assert "log_p000001" not in await partitions(owner)
    progress = await owner.fetchrow("select * from tenure.retention where kind = 'log'")
    assert progress is not None
    assert progress["removed_position"] == SIZE - 1
    assert progress["removed_to"] > await owner.fetchval("select now() - interval '31 days'")


@pytest.mark.requirement("OPS-08")
@pytest.mark.parametrize(
    "why", ["young", "unpublished", "replayed", "last", "for_ever", "doubtful"]
)
async def test_a_partition_stays_while_it_is_young_needed_or_the_last(
    database: FreshDatabase, owner: asyncpg.Connection, coordinator: asyncpg.Connection, why: str
) -> None:
    await written(owner)
    await age(database, "29 days" if why == "young" else "31 days")
    if why != "last":
        await next_partition(owner)
        await written(owner)
    await published(owner)
    match why:
        case "unpublished":  # one shard alone, and its last row
            await owner.execute(
                "update tenure.relay_shards s set position = l.position - 1 from ("
                f" select shard, position from tenure.log where position < {SIZE}"
                " order by position desc limit 1) l where l.shard = s.shard"
            )
        case "replayed":
            await start(database, "q", to_position=1)
        case "for_ever":
            assert await coordinator.fetchval(
                "select tenure.set_retention(1, '{\"log\": null}', 'tests', 'because')"
            )
        case "doubtful":
            await owner.execute("update tenure.authority set timeline = '0000FFFF'")
    before = await partitions(owner)
    assert await shrink(coordinator) == NOTHING
    assert await partitions(owner) == before


@pytest.mark.requirement("REPLAY-01")
async def test_a_partition_stays_for_a_paused_replay_and_goes_once_that_is_cancelled(
    database: FreshDatabase, owner: asyncpg.Connection, coordinator: asyncpg.Connection
) -> None:
    await written(owner)
    await age(database, "31 days")
    await next_partition(owner)
    await written(owner)
    await published(owner)
    replay_id = await start(database, "q")
    await change(database, replay_id, "paused")
    assert await shrink(coordinator) == NOTHING
    await change(database, replay_id, "cancelled")
    assert await shrink(coordinator) == ("log_p000001", False)


async def test_a_shard_that_never_had_a_row_holds_nothing_back(
    database: FreshDatabase, owner: asyncpg.Connection, coordinator: asyncpg.Connection
) -> None:
    await written(owner, 1)
    await age(database, "31 days")
    await next_partition(owner)
    (last,) = await written(owner, 1)
    shards = await owner.fetch("select distinct shard from tenure.log")
    await owner.execute(
        "update tenure.relay_shards set position = 10 where shard = any ($1)",
        [row["shard"] for row in shards],
    )
    needed = await coordinator.fetchval("select tenure.log_needed_from()")
    assert needed == await owner.fetchval(
        "select position from tenure.log where event_id = $1", last.event_id
    )
    assert (await shrink(coordinator))[0] == "log_p000001"


@pytest.mark.requirement("OPS-08")
async def test_a_log_that_grows_slowly_is_cut_so_that_rows_do_not_stay_for_years(
    database: FreshDatabase, owner: asyncpg.Connection, coordinator: asyncpg.Connection
) -> None:
    await written(owner)
    assert not await coordinator.fetchval(CUT)
    await age(database, "4 days")
    assert await coordinator.fetchval(CUT)
    assert not await coordinator.fetchval(CUT)  # the new one is empty
    await written(owner, 1)
    position = await owner.fetchval("select max(position) from tenure.log")
    assert position == SIZE
    await age(database, "30 days")
    await published(owner)
    assert (await shrink(coordinator))[0] == "log_p000001"


@pytest.mark.requirement("RELAY-01")
async def test_a_cut_waits_for_a_position_that_is_taken_and_not_committed(
    database: FreshDatabase, owner: asyncpg.Connection, coordinator: asyncpg.Connection
) -> None:
    await written(owner)
    await age(database, "4 days")
    transaction = owner.transaction()
    await transaction.start()
    (taken,) = await append(owner, [Stream().next()])
    with pytest.raises(asyncpg.LockNotAvailableError):
        await coordinator.fetchval(CUT)
    await transaction.commit()
    assert await coordinator.fetchval(CUT)
    (following,) = await append(owner, [Stream().next()])
    assert taken < SIZE <= following


@pytest.mark.requirement("OPS-08")
async def test_removal_gives_way_to_readers_and_appends(
    database: FreshDatabase, owner: asyncpg.Connection, coordinator: asyncpg.Connection
) -> None:
    """A reader that stays holds removal up, and removal holds nobody up for longer than its
    patience."""
    await written(owner)
    await age(database, "31 days")
    await next_partition(owner)
    await written(owner)
    await published(owner)
    async with session(database.owner_url) as reader:
        transaction = reader.transaction()
        await transaction.start()
        await reader.fetchval("select count(*) from tenure.log")
        waiting = asyncio.create_task(shrink(coordinator))
        appending = asyncio.create_task(written(owner))
        with pytest.raises(asyncpg.LockNotAvailableError):
            await waiting
        await appending
        await transaction.commit()
    assert (await shrink(coordinator))[0] == "log_p000001"


@pytest.mark.requirement("RELAY-01")
async def test_what_is_not_published_is_seen_at_the_instant_of_detaching(
    database: FreshDatabase, owner: asyncpg.Connection, coordinator: asyncpg.Connection
) -> None:
    """Who reads the log and then writes down what it needs, in one transaction, is seen: removal
    looks again when nobody else reads."""
    await written(owner)
    await age(database, "31 days")
    await next_partition(owner)
    await written(owner)
    await published(owner)
    async with session(database.owner_url) as replay, session(database.admin_url) as observer:
        transaction = replay.transaction()
        await transaction.start()
        await replay.fetchval("select count(*) from tenure.log")
        await replay.execute("update tenure.relay_shards set position = 0")
        # With patience, since the function's own is too short to commit meanwhile.
        await owner.execute("alter function tenure.remove_old_log() set lock_timeout = '30s'")
        waiting = asyncio.create_task(shrink(coordinator))
        await blocked(observer, coordinator)
        await transaction.commit()
        assert await waiting == NOTHING
    assert await owner.fetchval("select count(*) from tenure.log") == 6


async def test_one_replica_removes_at_a_time(
    database: FreshDatabase, owner: asyncpg.Connection
) -> None:
    await written(owner)
    await age(database, "31 days")
    await next_partition(owner)
    await written(owner)
    await published(owner)
    async with (
        session(database.coordinator_url) as one,
        session(database.coordinator_url) as another,
    ):
        async with one.transaction():
            assert (await shrink(one))[0] == "log_p000001"
            assert await shrink(another) == NOTHING
        assert await shrink(another) == ("log_p000001", True)


@pytest.mark.requirement("OPS-08")
async def test_services_reach_the_log_by_no_other_road(database: FreshDatabase) -> None:
    """No insert, no copy, no position, no lock, no partition."""
    for url in (database.coordinator_url, database.relay_url):
        async with session(url) as service:
            for statement in (
                "insert into tenure.log default values",
                "insert into tenure.log_default default values",
                "insert into tenure.log_p000001 default values",
                "copy tenure.log from stdin",
                "delete from tenure.log",
                "truncate tenure.log",
                "select nextval('tenure.log_position')",
                "select setval('tenure.log_position', 1)",
                "do $$ begin lock table tenure.append_lock in share row exclusive mode; end $$",
                "alter table tenure.log detach partition tenure.log_p000001",
                "drop table tenure.log_p000001",
                "update tenure.retention set removed_to = now()",
                "insert into tenure.retention_policies values (2, '{}', 'me', 'because')",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await service.execute(statement)


async def test_a_policy_is_in_seconds_by_kind_and_follows_the_one_in_force(
    coordinator: asyncpg.Connection,
) -> None:
    set_policy = "select tenure.set_retention($1, $2::text::jsonb, 'tests', 'because')"
    for wrong in ('{"log": 3599}', '{"log": "1"}', '{"other": 7200}'):
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await coordinator.fetchval(set_policy, 1, wrong)
    assert await coordinator.fetchval(set_policy, 1, '{"log": 3600}')
    assert not await coordinator.fetchval(set_policy, 1, '{"log": 7200}')
    before = await coordinator.fetchval("select tenure.too_old_before('log')")
    now = await coordinator.fetchval("select clock_timestamp()")
    assert timedelta(minutes=59) < now - before < timedelta(minutes=61)
    assert await coordinator.fetchval("select tenure.too_old_before('tasks')") is None
