"""Filters, ranking and retries: deterministic, explained, bounded."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.contract.ids import IncarnationId, TaskId, TenantId
from tenure.coordinator.core.filters import Exclusion, exclusion
from tenure.coordinator.core.ranking import Room, plan, rooms
from tenure.coordinator.core.retry import retry_delay
from tenure.coordinator.core.rows import IncarnationRow, ResourceAmounts, TaskRow
from tenure.coordinator.core.snapshot import LeasePolicy
from tests.support.rows import NODE, NOW, TASK, TENANT, TENANTS, UNLIMITED

WAITING = replace(TASK, current_attempt_id=None)


def task(number: int, **changes: Any) -> TaskRow:
    return replace(WAITING, task_id=TaskId(f"task-{number}"), **changes)


def node(number: int, **changes: Any) -> IncarnationRow:
    return replace(NODE, incarnation=IncarnationId(f"node-{number}"), **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"task_types": frozenset({"other"})}, Exclusion.TYPE_NOT_RUN),
        ({"slots_used": 2}, Exclusion.NO_FREE_SLOT),
        ({"cpu_used": 901}, Exclusion.NOT_ENOUGH_CPU),
        ({"memory_used": 901}, Exclusion.NOT_ENOUGH_MEMORY),
        ({"cpu_used": 900, "memory_used": 900, "slots_used": 1}, None),
        ({"cpu_millis": None, "memory_bytes": None, "cpu_used": 10**9, "memory_used": 10**9}, None),
    ],
)
def test_a_node_is_excluded_for_what_it_lacks(
    changes: dict[str, Any], expected: Exclusion | None
) -> None:
    found = exclusion(WAITING, replace(NODE, **changes), UNLIMITED, NOW)
    assert (found and found.code) == expected


def test_a_task_goes_to_the_node_with_the_most_free_slots_and_equal_ones_by_name() -> None:
    nodes = [node(2, slots_used=1), node(1, slots_used=1), node(0, slots_used=2, slots=2)]
    assert plan([task(1)], nodes, TENANTS, NOW) == [("task-1", "node-1")]
    assert plan([task(1)], [*nodes, node(3, slots=9)], TENANTS, NOW) == [("task-1", "node-3")]


def test_a_task_that_fits_nowhere_keeps_nobody_else_waiting() -> None:
    large = task(1, resources=ResourceAmounts(cpu_millis=5000))
    assert plan([large, task(2)], [node(1)], TENANTS, NOW) == [("task-2", "node-1")]


def test_a_task_never_goes_to_a_node_of_another_tenant() -> None:
    assert plan([task(1)], [node(1, tenant=TenantId("other"))], TENANTS, NOW) == []


amounts = st.integers(0, 600)


@given(
    needs=st.lists(st.tuples(amounts, amounts), max_size=12),
    capacities=st.lists(
        st.tuples(st.integers(1, 4), st.none() | amounts, st.none() | amounts), max_size=3
    ),
)
def test_a_plan_oversells_nothing_and_is_the_same_for_the_same_fleet(
    needs: list[tuple[int, int]], capacities: list[tuple[int, int | None, int | None]]
) -> None:
    tasks = [
        task(n, resources=ResourceAmounts(cpu, memory)) for n, (cpu, memory) in enumerate(needs)
    ]
    nodes = [
        node(n, slots=slots, cpu_millis=cpu, memory_bytes=memory)
        for n, (slots, cpu, memory) in enumerate(capacities)
    ]
    pairs = plan(tasks, nodes, TENANTS, NOW)
    assert pairs == plan(tasks, list(reversed(nodes)), TENANTS, NOW)
    assert [pair[0] for pair in pairs] == [t.task_id for t in tasks if t.task_id in dict(pairs)]
    by_id = {one.task_id: one for one in tasks}
    for one in nodes:
        taken = [by_id[t].resources for t, incarnation in pairs if incarnation == one.incarnation]
        assert sum(need.slots for need in taken) <= one.slots
        if one.cpu_millis is not None:
            assert sum(need.cpu_millis for need in taken) <= one.cpu_millis
        if one.memory_bytes is not None:
            assert sum(need.memory_bytes for need in taken) <= one.memory_bytes
    kinds = rooms(nodes)
    for one in nodes:  # what fits on a node is looked for
        for waiting in tasks:
            if exclusion(waiting, one, UNLIMITED, NOW) is None:
                assert any(fits(waiting, kind) for kind in kinds)


def fits(waiting: TaskRow, kind: Room) -> bool:
    need = waiting.resources
    return (
        (waiting.tenant, waiting.type) == (kind.tenant, kind.type)
        and (kind.cpu_millis is None or need.cpu_millis <= kind.cpu_millis)
        and (kind.memory_bytes is None or need.memory_bytes <= kind.memory_bytes)
    )


def test_the_most_that_any_one_node_has_free_is_looked_for_once_a_kind() -> None:
    both = frozenset({"a", "b"})
    nodes = [
        node(1, task_types=both, cpu_used=700, memory_used=100),
        node(2, task_types=frozenset({"b"}), cpu_used=100, memory_bytes=None),
    ]
    assert rooms(nodes) == [Room(TENANT, "a", 300, 900), Room(TENANT, "b", 900, None)]


@given(
    failures=st.integers(-5, 10_000),
    jitter=st.floats(0, 1, exclude_max=True),
    base=st.integers(0, 10**12),
    cap=st.integers(0, 10**12),
)
def test_a_retry_waits_no_longer_than_the_cap_and_the_exponential_step(
    failures: int, jitter: float, base: int, cap: int
) -> None:
    policy = LeasePolicy(retry_base_microseconds=base, retry_cap_microseconds=cap)
    delay = retry_delay(policy, failures, jitter)
    assert 0 <= delay <= min(cap, base * 2 ** max(failures - 1, 0))


def test_retries_step_back_twice_as_far_each_time_with_full_jitter() -> None:
    policy = LeasePolicy(retry_base_microseconds=1_000_000, retry_cap_microseconds=5_000_000)
    assert [retry_delay(policy, failures, 0.5) for failures in range(1, 6)] == [
        500_000, 1_000_000, 2_000_000, 2_500_000, 2_500_000,
    ]  # fmt: skip
    assert retry_delay(policy, 3, 0.0) == 0
