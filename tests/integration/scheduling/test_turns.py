"""Whose turn it is, over the real database: shares, age, and time that has come."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from tenure.contract.ids import TenantId
from tenure.contract.topology import node_queue
from tenure.coordinator.core.commands import Take
from tenure.coordinator.core.rows import ResourceAmounts
from tenure.coordinator.scheduler import BATCH
from tenure.coordinator.store.rows import to_microseconds
from tests.support.authority import Bench, replica
from tests.support.isolation import FreshDatabase

FUTURE = 30_000
GROWTH = f"""
    insert into tenure.tasks (task_id, tenant, type, state, version, sequence, generation, priority,
        effects, max_attempts, cpu_millis, memory_bytes, profile_digest, created_at, queued_as_of,
        ripe, decided_at, not_before)
    select gen_random_uuid(), t.tenant, t.type, 'open', 1, 1, 0, 100, t.effects, 5, 0, 0,
        t.profile_digest, now(), now() - interval '1 year', false, now(), now() + interval '1 year'
    from tenure.tasks t, generate_series(1, {FUTURE})
"""


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


@pytest.mark.requirement("SCHED-05")
async def test_slots_of_one_look_are_shared_by_weight(bench: Bench) -> None:
    weights = {TenantId("large"): 3, TenantId("small"): 1}
    for tenant, weight in weights.items():
        change: dict[str, object] = {"weight": weight, "budget_unlimited": True}
        change |= {name: ["*"] for name in ("node_pools", "locations", "networks")}
        await bench.pool.execute(
            "select tenure.set_tenant($1, $2::jsonb, 'tests')", tenant, json.dumps(change)
        )
        node = bench.registration("node", slots=2 * BATCH)
        queue = node_queue(tenant, node.incarnation)
        await bench.authority.register(replace(node, tenant=tenant, queue=queue))
        await bench.authority.submit([bench.submission(tenant=tenant) for _ in range(BATCH)])
    assert await bench.scheduler.step() == BATCH
    rows = await bench.owner.fetch("select tenant from tenure.attempts")
    assert Counter(row["tenant"] for row in rows) == {"large": 192, "small": 64}


@pytest.mark.requirement("SCHED-05")
async def test_priority_goes_first_and_age_makes_up_for_it(bench: Bench) -> None:
    await bench.register(slots=1)
    first = await bench.running()
    low, high = await bench.submit(priority=-50), await bench.submit(priority=50)
    await bench.deliver(first, 1)
    held = await bench.assigned(high)
    # As if it had waited for two hours: more than a minute for each point between them.
    await bench.owner.execute(
        "update tenure.tasks set queued_as_of = queued_as_of - interval '2 hours'"
        " where task_id = $1",
        low,
    )
    higher = await bench.submit(priority=50)
    await bench.report(Take, held)
    await bench.deliver(held, 1)
    await bench.assigned(low)
    assert await bench.holder(higher) is None


@pytest.mark.requirement("SCHED-05")
async def test_tasks_whose_time_has_not_come_are_not_read(bench: Bench) -> None:
    await bench.register(slots=4)
    await bench.running()
    await bench.owner.execute(GROWTH)

    async def read() -> int:
        for connection in [await bench.pool.acquire() for _ in range(bench.pool.get_max_size())]:
            await connection.execute("select pg_stat_force_next_flush()")
            await bench.pool.release(connection)
        await bench.owner.execute("select pg_stat_force_next_flush()")
        number: int = await bench.owner.fetchval(
            "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables"
            " where schemaname = 'tenure' and relname = 'tasks'"
        )
        return number

    before = await read()
    for _ in range(3):
        await bench.assigned(await bench.submit())
    assert await read() - before < 200


@pytest.mark.requirement("SCHED-05")
async def test_a_task_is_given_out_when_its_time_has_come_and_not_before(bench: Bench) -> None:
    await bench.register()
    await bench.running()
    later = to_microseconds(await bench.now() + timedelta(hours=1))
    task_id = await bench.submit(not_before=later)
    await bench.scheduler.step()
    assert await bench.holder(task_id) is None
    assert not (await bench.task(task_id))["ripe"]
    await bench.owner.execute(
        "update tenure.tasks set not_before = clock_timestamp() where task_id = $1", task_id
    )
    await bench.scheduler.step()  # notices that its time has come
    await bench.assigned(task_id)


async def test_a_task_that_ends_as_its_time_comes_stays_ended(bench: Bench) -> None:
    await bench.register()
    await bench.running()
    later = to_microseconds(await bench.now() + timedelta(hours=1))
    task_id = await bench.submit(not_before=later)
    await bench.cancel(task_id)
    assert await bench.pool.fetchval("select tenure.ripen(10)") == 0
    assert (await bench.task(task_id))["state"] == "cancelled"


@pytest.mark.requirement("SCHED-03")
async def test_why_a_node_was_chosen_is_kept_with_the_attempt(bench: Bench) -> None:
    await bench.register("node-1", slots=2)
    await bench.register("node-2", slots=8)
    held = await bench.assigned(await bench.submit())
    assert held.node_id == "node-2"
    assert json.loads((await bench.attempt(held))["decision"]) == {
        "score": {"total": 7500, "slots": 875, "build": 1000, "cpu": 1000, "memory": 1000},
        "eligible": 2,
        "nodes": 2,
    }


@pytest.mark.requirement("SCHED-05")
async def test_a_task_is_found_behind_any_number_that_fit_nowhere(bench: Bench) -> None:
    """Each fits by processors or by memory alone, so that only a look at all of it can tell."""
    await bench.register("cores", slots=4, cpu_millis=4000, memory_bytes=10)
    await bench.register("memory", slots=4, cpu_millis=10, memory_bytes=4000)
    large = ResourceAmounts(cpu_millis=2000, memory_bytes=2000)
    for _ in range(3):
        await bench.authority.submit([bench.submission(resources=large) for _ in range(BATCH)])
    small = await bench.submit(resources=ResourceAmounts(cpu_millis=5, memory_bytes=5))
    looks = 0
    while await bench.holder(small) is None:
        await bench.scheduler.step()
        looks += 1
    assert looks <= 6
    for _ in range(3):
        assert await bench.scheduler.step() == 0
    again = await bench.submit(resources=ResourceAmounts(cpu_millis=5, memory_bytes=5))
    while await bench.holder(again) is None:
        await bench.scheduler.step()
