"""Filters over the real database: facts decide who gets what, and a change of facts is a guard."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import AttemptId, CommandId, LeaseId, TaskId
from tenure.coordinator.core.commands import Allocate, Executable
from tenure.coordinator.core.decisions import Outcome
from tenure.coordinator.core.rows import Requirements
from tenure.coordinator.store.load import load_allocations
from tenure.coordinator.store.rows import to_microseconds
from tenure.coordinator.sweeper import Sweeper
from tests.support.authority import TENANT, Bench, replica
from tests.support.isolation import FreshDatabase

DIGEST = "ab" * 32


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


async def set_tenant(bench: Bench, **change: Any) -> None:
    assert await bench.pool.fetchval(
        "select tenure.set_tenant($1, $2::jsonb, 'tests')", TENANT, json.dumps(change)
    )


async def set_node(bench: Bench, node_id: str, **change: Any) -> None:
    assert await bench.pool.fetchval(
        "select tenure.set_node_facts($1, $2, $3::jsonb, 'tests')",
        TENANT,
        node_id,
        json.dumps(change),
    )


async def account(bench: Bench) -> tuple[int, int]:
    row = await bench.owner.fetchrow("select * from tenure.accounts where tenant = $1", TENANT)
    assert row is not None
    return row["held_minor"], row["spent_minor"]


async def allocated(bench: Bench, task_id: TaskId) -> bool:
    await bench.scheduler.step()
    return await bench.holder(task_id) is not None


@pytest.mark.requirement("SCHED-01")
@pytest.mark.requirement("SCHED-02")
@pytest.mark.parametrize(
    ("profile", "limits", "facts"),
    [
        ({}, {"state": "suspended"}, None),
        ({}, {"node_pools": ["gpu"]}, {"pool": "gpu"}),
        ({}, {"node_pools": None}, None),
        ({}, {"locations": ["eu"]}, {"location": "eu"}),
        ({"locations": frozenset({"eu"})}, {}, {"location": "eu"}),
        ({"networks": frozenset({"db"})}, {}, {"networks": ["db", "internet"]}),
        ({}, {"networks": None}, None),
        ({"labels": frozenset({("gpu", "a100")})}, {}, {"labels": {"gpu": "a100"}}),
        ({}, {"budget_unlimited": False}, None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
async def test_a_task_waits_until_what_was_missing_is_stated(
    bench: Bench, profile: dict[str, Any], limits: dict[str, Any], facts: dict[str, Any] | None
) -> None:
    await bench.register(requirements=Requirements(**profile))
    await set_tenant(bench, **limits)
    task_id = await bench.submit()
    assert not await allocated(bench, task_id)
    assert (await bench.task(task_id))["state"] == "open"
    if facts is None:  # the tenant's word was missing
        await set_tenant(
            bench, state="authorized", node_pools=["*"], networks=["*"], budget_unlimited=True
        )
    else:
        await set_node(bench, "node-1", **facts)
    assert await allocated(bench, task_id)


@pytest.mark.requirement("SCHED-01")
async def test_an_operators_word_goes_before_a_nodes_own_and_outlives_its_incarnation(
    bench: Bench,
) -> None:
    own = {"location": "us", "labels": {"disk": "ssd", "gpu": "t4"}}
    await bench.register(facts=own)
    await set_node(bench, "node-1", location="eu", labels={"gpu": "a100"})

    async def facts() -> Any:
        return await bench.owner.fetchval(
            "select n.facts::text::json from tenure.incarnations n where n.state = 'active'"
        )

    expected = {"location": "eu", "labels": {"disk": "ssd", "gpu": "a100"}}
    assert json.loads(await facts()) == expected
    await bench.register(facts=own)
    assert json.loads(await facts()) == expected
    await set_node(bench, "node-1", location=None, labels={"gpu": None})
    assert json.loads(await facts()) == own


def allocation(task_id: TaskId, incarnation: Any) -> Allocate:
    attempt = str(uuid4())
    return Allocate(
        CommandId(attempt), b"", TENANT, "scheduler", task_id, incarnation, AttemptId(attempt),
        LeaseId(str(uuid4())),
    )  # fmt: skip


@pytest.mark.requirement("SCHED-01")
@pytest.mark.parametrize("change", ["tenant", "node", "executable"])
async def test_an_allocation_decided_from_facts_that_changed_is_not_applied(
    bench: Bench, change: str
) -> None:
    program = Executable("hasher", "1", DIGEST, None)
    incarnation = await bench.register(executable=program)
    await set_tenant(bench, locations=["eu"])
    await set_node(bench, "node-1", location="eu")
    task_id = await bench.submit()
    command = allocation(task_id, incarnation)
    loaded = await load_allocations(bench.pool, [command])
    match change:
        case "tenant":
            await set_tenant(bench, state="suspended")
        case "node":
            await set_node(bench, "node-1", location="us")
        case "executable":
            assert (
                await bench.pool.fetchval(
                    "select tenure.set_executable($1, $2, 'withdrawn', 'tests')",
                    TENANT,
                    bytes.fromhex(DIGEST),
                )
                == 1
            )
    (outcome,) = await bench.authority.allocate([command], [(loaded.snapshots[0], loaded.now)])
    assert outcome.refused is not None
    assert outcome.refused.code is Code.WRONG_STATE
    assert await bench.holder(task_id) is None


@pytest.mark.requirement("SCHED-01")
async def test_a_budget_is_held_by_attempts_released_by_failures_and_spent_by_deliveries(
    bench: Bench,
) -> None:
    await bench.register(cost_minor=3)
    await set_tenant(bench, budget_minor=8, budget_unlimited=False, currency="EUR")
    first, second = await bench.running(), await bench.running()
    assert await account(bench) == (6, 0)
    third = await bench.submit()
    assert not await allocated(bench, third)
    await bench.fail(first, retryable=False)
    assert await account(bench) == (3, 0)
    assert await allocated(bench, third)
    await bench.deliver(second, 1)
    assert await account(bench) == (3, 3)
    assert not await allocated(bench, await bench.submit())


@pytest.mark.requirement("SCHED-01")
async def test_tasks_that_are_given_out_together_do_not_overdraw_a_budget(bench: Bench) -> None:
    incarnation = await bench.register(cost_minor=3)
    await set_tenant(bench, budget_minor=8, budget_unlimited=False, currency="EUR")
    commands = [allocation(await bench.submit(), incarnation) for _ in range(4)]
    loaded = await load_allocations(bench.pool, commands)
    outcomes: list[Outcome] = await bench.authority.allocate(
        commands, [(snapshot, loaded.now) for snapshot in loaded.snapshots]
    )
    assert sum(outcome.reply is not None for outcome in outcomes) == 2
    assert await account(bench) == (6, 0)


@pytest.mark.requirement("SCHED-04")
async def test_a_task_past_its_deadline_ends_with_that_reason_and_is_never_allocated(
    bench: Bench,
) -> None:
    await bench.register("node-1", slots=1)
    await bench.running()
    now = await bench.now()
    task_id = await bench.submit(deadline=to_microseconds(now + timedelta(hours=1)))
    await bench.owner.execute(
        "update tenure.tasks set deadline = clock_timestamp() where task_id = $1", task_id
    )
    await bench.register("node-2")
    assert not await allocated(bench, task_id)
    await Sweeper(bench.pool, bench.authority).step()
    row = await bench.task(task_id)
    assert (row["state"], row["reason"], row["generation"]) == ("expired", "deadline_passed", 0)
