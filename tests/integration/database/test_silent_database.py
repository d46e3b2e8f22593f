"""A path to the database that is lost without a word: noticed in time, and paid for once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest

from tenure.cli.chaos.toxic import Side, ToxicProxy, toxic
from tenure.coordinator.store.postgres import Pool, answering, open_pool
from tenure.coordinator.store.reading import PoolReader
from tests.support.authority import Bench, replica
from tests.support.coordinator import Fleet, running, settings_for
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually

COMMAND_TIMEOUT = "tenure.coordinator.store.postgres.COMMAND_TIMEOUT_SECONDS"
CONNECTIONS = 6


class SilentDuringCheck:
    """Freezes what the server answers once the coordinator asks which migrations there are."""

    def __init__(self) -> None:
        self.armed = False
        self.proxy: ToxicProxy | None = None

    def to_server(self, data: bytes) -> bytes:
        if self.armed and b"schema_migrations" in data:
            assert self.proxy is not None
            self.proxy.to_client.freeze()
        return data

    def to_client(self, data: bytes) -> bytes:
        return data


async def test_readiness_tells_of_a_database_that_falls_silent_during_the_check_itself(
    database: FreshDatabase, broker: BrokerSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.coordinator.app.DATABASE_CHECK_SECONDS", 0.2)
    monkeypatch.setattr("tenure.coordinator.app.DATABASE_ANSWER_SECONDS", 1.0)
    silence = SilentDuringCheck()
    async with toxic(database.coordinator_url, lambda: silence) as proxy:
        silence.proxy = proxy
        settings = settings_for(proxy.url, broker.url, name_prefix=broker.name_prefix)
        async with running(settings) as coordinator:
            api = Fleet(coordinator)

            async def says(words: str) -> None:
                async def told() -> bool:
                    return words in (await api.nobody.get("/readyz")).text

                await eventually(told)

            await says("database: ok")
            silence.armed = True
            await says("The database did not answer within 1 s.")
            silence.armed = False
            proxy.thaw()
            await says("database: ok")
            await api.close()


async def warmed(pool: Pool, connections: int) -> None:
    """Open so many at once."""
    await asyncio.gather(*(pool.fetchval("select pg_sleep(0.3)") for _ in range(connections)))


@asynccontextmanager
async def pool_of_the_dead(proxy: ToxicProxy) -> AsyncIterator[Pool]:
    """All of its connections lead nowhere, and nobody has told it."""
    pool = await open_pool(lambda: proxy.url, size=CONNECTIONS, application_name="test")
    try:
        await warmed(pool, CONNECTIONS)
        assert proxy.connections == CONNECTIONS
        proxy.leave_half_open(Side.SERVER)
        yield pool
    finally:
        pool.terminate()


async def test_a_read_over_a_pool_of_dead_connections_waits_for_one_of_them_only(
    database: FreshDatabase,
) -> None:
    """It waits twice at most, and the second time it is for a connection that was made anew."""
    async with toxic(database.coordinator_url) as proxy, pool_of_the_dead(proxy) as pool:
        reader = PoolReader(pool, deadline_seconds=5.0)
        (row,) = await reader.fetch("select 1 as one")
        assert row["one"] == 1
        assert proxy.accepted == CONNECTIONS + 1


async def test_a_statement_goes_on_where_its_asker_is_cancelled(
    database: FreshDatabase,
) -> None:
    """It may be a commit that waits for a standby: cancelled, it would be on one server only."""
    owner = await asyncpg.connect(database.admin_url)
    await owner.execute("create table public.written (word text)")
    await owner.execute("select pg_advisory_lock(1)")
    pool = await open_pool(database.admin_url, size=1, application_name="asker")
    waiting = (
        "select count(*) from pg_stat_activity where query like 'with asleep%'"
        " and datname = current_database() and wait_event_type = 'Lock'"
    )

    async def ask() -> None:
        async with answering(pool) as connection:
            await connection.execute(
                "with asleep as materialized (select pg_advisory_lock(1))"
                " insert into public.written select 'on' from asleep"
            )

    async def asked() -> bool:
        return bool(await owner.fetchval(waiting) == 1)

    async def written() -> bool:
        return bool(await owner.fetchval("select word from public.written") == "on")

    task = asyncio.create_task(ask())
    await eventually(asked)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.get_size() == 0  # closed at once, so that another can be opened
    async with await open_pool(database.admin_url, size=1, application_name="other") as other:
        assert await other.fetchval("select 1") == 1
    assert await asked()
    await owner.execute("select pg_advisory_unlock(1)")
    await eventually(written)
    await pool.close()
    await owner.close()


@pytest.fixture
async def dead(
    emptied_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    """A replica whose every connection leads nowhere."""
    monkeypatch.setattr(COMMAND_TIMEOUT, 4.0)
    async with (
        toxic(emptied_database.coordinator_url) as proxy,
        replica(replace(emptied_database, coordinator_url=proxy.url)) as bench,
    ):
        await bench.register()
        await warmed(bench.pool, CONNECTIONS)
        proxy.leave_half_open(Side.SERVER)
        yield bench
        bench.pool.terminate()  # a farewell to each would be waited for


async def test_a_commit_over_a_pool_of_dead_connections_waits_for_one_of_them_only(
    dead: Bench,
) -> None:
    task_id = await dead.submit()
    assert dead.observer.errors == ["TimeoutError"]
    assert (await dead.task(task_id))["state"] == "open"
