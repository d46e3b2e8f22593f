"""The database killed while three replicas end what has lost its authority: each loss is counted
once, and nothing that was in the middle is half done."""

import asyncio
import secrets
from contextlib import AsyncExitStack

import asyncpg
import pytest

from tenure.cli.local.postgres import PrivatePostgres
from tenure.coordinator import sweeper
from tenure.coordinator.store.verify import verify
from tenure.coordinator.sweeper import Sweeper
from tests.support.authority import replica
from tests.support.isolation import DatabaseServer, FreshDatabase
from tests.support.sessions import session
from tests.support.waiting import eventually

REPLICAS, TASKS = 3, 60


async def expired(database: FreshDatabase) -> int:
    """Attempts; 0 while the server does not answer."""
    try:
        async with session(database.owner_url) as owner:
            number: int = await owner.fetchval(
                "select count(*) from tenure.attempts where state = 'expired'"
            )
            return number
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return 0


@pytest.mark.direct
@pytest.mark.requirement("LEASE-07")
@pytest.mark.requirement("OPS-01")
async def test_a_server_killed_in_mid_sweep_loses_no_loss_and_counts_none_twice(
    private_postgres: PrivatePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "BATCH", 7)
    monkeypatch.setattr(sweeper, "TICK_SECONDS", 0.01)
    server = DatabaseServer(private_postgres.url())
    await server.prepare()
    database = await server.create_migrated(f"swept_{secrets.token_hex(4)}")
    async with AsyncExitStack() as stack:
        benches = [await stack.enter_async_context(replica(database)) for _ in range(REPLICAS)]
        await benches[0].register(slots=TASKS)
        for _ in range(TASKS):
            await benches[0].running()
        await benches[0].owner.execute(
            "update tenure.attempts set expires_at = clock_timestamp() - interval '1 ms'"
        )
        sweepers = [
            asyncio.create_task(Sweeper(bench.pool, bench.authority).run()) for bench in benches
        ]
        try:
            for share in (1, 2):  # a third, two thirds
                await eventually(lambda: reached(database, share * TASKS // 3))  # noqa: B023
                # All rows of a call are written but the last, which waits for this lock.
                appender = await asyncpg.connect(database.owner_url)
                await appender.execute(
                    "begin; lock table tenure.append_lock in share row exclusive mode"
                )
                if await expired(database) < TASKS:
                    await eventually(lambda: blocked(database))
                private_postgres.kill()
                appender.terminate()
                await private_postgres.start()
            await eventually(lambda: reached(database, TASKS))
        finally:
            for one in sweepers:
                one.cancel()
            await asyncio.gather(*sweepers, return_exceptions=True)
        async with session(database.owner_url) as owner:
            (found,) = await owner.fetch(
                "select state, losses, count(*) from tenure.tasks group by 1, 2"
            )
            assert tuple(found) == ("open", 1, TASKS)
            told = await owner.fetchval(
                "select count(*) from tenure.log"
                " where entity_type = 'attempt' and next_state = 'expired' and not copy"
            )
            assert told == TASKS
            assert await owner.fetchval("select slots_used from tenure.incarnations") == 0
    assert (await verify(database.owner_url)).broken == {}


async def reached(database: FreshDatabase, number: int) -> bool:
    return await expired(database) >= number


async def blocked(database: FreshDatabase) -> bool:
    """Whether somebody waits for a lock."""
    async with session(database.owner_url) as owner:
        found: bool = await owner.fetchval(
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and cardinality(pg_blocking_pids(pid)) > 0)"
        )
        return found
