"""What somebody on call asks first costs little, however much has ended."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tenure.contract.states import TaskState
from tenure.coordinator.store.figures import read_figures
from tenure.coordinator.store.reading import PoolReader
from tenure.coordinator.store.reads import Reads
from tests.support.authority import TENANT, Bench, replica
from tests.support.isolation import FreshDatabase

ENDED = 20_000
GROWTH = f"""
    insert into tenure.tasks (task_id, tenant, type, state, version, sequence, generation, priority,
        effects, max_attempts, cpu_millis, memory_bytes, profile_digest, created_at,
        queued_as_of, ripe, decided_at, ended_at)
    select gen_random_uuid(), 'default', 'sha256', 'failed', 1, 1, 1, 0, 'idempotent', 5, 0, 0,
        sha256('any'), now(), now(), true, now(), now()
    from generate_series(1, {ENDED})
"""


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


def reads(bench: Bench) -> Reads:
    return Reads(PoolReader(bench.pool, deadline_seconds=30))


async def rows_read(bench: Bench) -> int:
    """Of the tasks, by whatever way, so far."""
    connections: list[Any] = [await bench.pool.acquire() for _ in range(bench.pool.get_max_size())]
    for connection in reversed(connections):
        await connection.execute("select pg_stat_force_next_flush()")
        await bench.pool.release(connection)
    await bench.owner.execute("select pg_stat_force_next_flush()")
    number: int = await bench.owner.fetchval(
        "select seq_tup_read + idx_tup_fetch as number from pg_stat_user_tables"
        " where schemaname = 'tenure' and relname = 'tasks'"
    )
    return number


async def test_a_scrape_reads_nothing_that_has_ended(bench: Bench) -> None:
    await bench.owner.execute("alter table tenure.tasks set (autovacuum_enabled = false)")
    await bench.register(slots=3)
    await bench.running()
    await bench.assigned(await bench.submit())
    await bench.hold(await bench.submit())
    await bench.submit()
    await bench.owner.execute(GROWTH)
    before = await rows_read(bench)
    figures = await read_figures(PoolReader(bench.pool, deadline_seconds=30))
    assert await rows_read(bench) - before < ENDED / 10
    assert figures.waiting_tasks == 1
    assert figures.held_tasks == {"operator_hold": 1}
    assert figures.open_attempts == {"running": 1, "submitted": 1}
    assert sorted(figures.tasks_by_type) == [
        ("sha256", "held", 1),
        ("sha256", "under_way", 2),
        ("sha256", "waiting", 1),
    ]
    assert (figures.slots, figures.slots_used) == (3, 2)
    assert figures.commits_waiting_for_standby == 0


async def test_old_tasks_are_listed_by_state_type_and_age(bench: Bench) -> None:
    await bench.register()
    old, young = await bench.submit(), await bench.submit()
    await bench.hold(old)
    await bench.owner.execute(
        "update tenure.tasks set created_at = created_at - interval '3 h' where task_id = $1", old
    )
    asked = reads(bench)
    an_hour_ago = await bench.now() - timedelta(hours=1)

    async def listed(**filters: Any) -> list[str]:
        page = await asked.list_tasks(TENANT, limit=10, **filters)
        return [task.task_id for task in page.tasks]

    assert await listed() == [young, old]
    assert await listed(created_before=an_hour_ago) == [old]
    assert await listed(created_before=an_hour_ago, state=TaskState.HELD) == [old]
    assert await listed(created_before=an_hour_ago, state=TaskState.OPEN) == []
    assert await listed(created_before=an_hour_ago, type_name="other") == []
    assert await listed(created_before=an_hour_ago - timedelta(hours=3)) == []
