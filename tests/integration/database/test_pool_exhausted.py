"""A pool whose every connection is held: calls fail with a code to repeat them by, and nothing of
the pool is lost to those who gave up waiting."""

import asyncio
import random
from contextlib import AsyncExitStack
from uuid import uuid4

import asyncpg
import pytest

from tenure.contract.codes import Code
from tenure.coordinator.errors import Unavailable
from tenure.coordinator.store.postgres import open_pool
from tenure.coordinator.store.reading import PoolReader
from tests.support import services
from tests.support.as_stated import AS_STATED
from tests.support.isolation import FreshDatabase
from tests.support.pgbouncer import routed
from tests.support.waiting import eventually

SIZE = 3
CALLS = 200


@pytest.mark.timeout(120)
async def test_calls_that_gave_up_on_an_exhausted_pool_leave_it_whole(
    database: FreshDatabase,
) -> None:
    """T13. Held for ten seconds with ``make trials-as-stated``."""
    name = f"exhausted {uuid4().hex[:8]}"
    pooled = database.pooled or services.POOLED
    pool = await open_pool(
        routed(database.coordinator_url), size=SIZE, application_name=name, pooled=pooled
    )
    reader = PoolReader(pool, deadline_seconds=0.2)  # an acquisition waits for half of it
    owner = await asyncpg.connect(database.owner_url)
    try:
        async with AsyncExitStack() as held:
            for _ in range(SIZE):
                await held.enter_async_context(pool.acquire())
            calls = [asyncio.create_task(reader.fetch("select 1")) for _ in range(CALLS)]
            cancelled = random.sample(calls, CALLS // 3)
            for number, call in enumerate(cancelled):
                if number % 3:
                    await asyncio.sleep(0)  # at any of their steps
                call.cancel()
            # All of them end while the connections are held.
            ends = await asyncio.gather(*calls, return_exceptions=True)
            if AS_STATED:
                await asyncio.sleep(10)
        for call, end in zip(calls, ends, strict=True):
            if call in cancelled:
                assert isinstance(end, asyncio.CancelledError | Unavailable)
            else:
                assert isinstance(end, Unavailable)
                assert end.code == Code.UNAVAILABLE
        # All of the pool is there, at once.
        async with AsyncExitStack() as held:
            for _ in range(SIZE):
                connection = await held.enter_async_context(pool.acquire(timeout=60))
                assert await connection.fetchval("select 1") == 1
        if not pooled:

            async def no_session_too_many() -> bool:
                sessions = await owner.fetchval(
                    "select count(*) from pg_stat_activity where application_name = $1", name
                )
                return bool(sessions <= SIZE)

            await eventually(no_session_too_many)
        patient = PoolReader(pool, deadline_seconds=60)
        assert [row[0] for row in await patient.fetch("select 2")] == [2]
    finally:
        await owner.close()
        pool.terminate()
