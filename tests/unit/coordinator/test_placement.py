"""Filters, ranking and retries: deterministic, explained, bounded."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.contract.ids import IncarnationId, TaskId, TenantId
from tenure.contract.states import Effects, Match
from tenure.coordinator.core.filters import Exclusion, exclusion
from tenure.coordinator.core.ranking import Kind, Placement, Room, Score, plan, rooms, score
from tenure.coordinator.core.retry import retry_delay
from tenure.coordinator.core.rows import (
    IncarnationRow,
    ResourceAmounts,
    RunProfile,
    TaskRow,
    TenantRow,
)
from tenure.coordinator.core.snapshot import LeasePolicy
from tests.support.rows import NODE, NOW, PROFILE, TASK, TENANT, TENANTS, UNLIMITED

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


def planned(
    tasks: Sequence[TaskRow], nodes: Sequence[IncarnationRow], limit: int = 100
) -> list[tuple[str, str]]:
    found = plan(tasks, nodes, TENANTS, {}, NOW, limit)
    return [(one.task_id, one.incarnation) for one in found]


@pytest.mark.requirement("SCHED-03")
def test_a_task_goes_to_the_node_with_the_highest_score_and_equal_ones_by_name() -> None:
    nodes = [node(2, slots_used=1), node(1, slots_used=1), node(0, slots_used=2, slots=2)]
    assert planned([task(1)], nodes) == [("task-1", "node-1")]
    assert planned([task(1)], [*nodes, node(3, slots=9)]) == [("task-1", "node-3")]


@pytest.mark.requirement("SCHED-03")
def test_a_score_explains_itself_factor_by_factor() -> None:
    other = (RunProfile("sha256", "bb" * 32, Effects.NONE),)
    assert score(WAITING, node(1, slots=4, slots_used=1, cpu_used=400)) == Score(
        total=4 * 500 + 2 * 1000 + 500 + 900, slots=500, build=1000, cpu=500, memory=900
    )
    assert score(WAITING, node(1, slots=1, cpu_millis=None, memory_bytes=0, profiles=other)) == (
        Score(total=1000, slots=0, build=0, cpu=1000, memory=0)
    )
    (placed,) = plan([task(1)], [node(1), node(2, profiles=other)], TENANTS, {}, NOW, 1)
    assert placed == Placement(
        TaskId("task-1"), IncarnationId("node-1"), score(WAITING, node(1)), eligible=2, nodes=2
    )


def test_a_task_that_fits_nowhere_keeps_nobody_else_waiting() -> None:
    large = task(1, resources=ResourceAmounts(cpu_millis=5000))
    assert planned([large, task(2)], [node(1)]) == [("task-2", "node-1")]


def test_a_task_never_goes_to_a_node_of_another_tenant() -> None:
    assert planned([task(1)], [node(1, tenant=TenantId("other"))]) == []


amounts = st.integers(0, 600)


@given(
    needs=st.lists(
        st.tuples(amounts | st.just(5), amounts | st.just(5), st.integers(0, 1)), max_size=14
    ),
    capacities=st.lists(
        st.tuples(st.integers(1, 4), st.none() | amounts, st.none() | amounts), max_size=3
    ),
    budget=st.none() | st.integers(0, 6),
)
@pytest.mark.requirement("SCHED-03")
def test_a_plan_oversells_nothing_and_is_the_same_for_the_same_fleet(
    needs: list[tuple[int, int, int]],
    capacities: list[tuple[int, int | None, int | None]],
    budget: int | None,
) -> None:
    tasks = [
        task(
            n,
            resources=ResourceAmounts(cpu, memory),
            profile=replace(PROFILE, cost_minor=cost),
            queued_as_of=n,
        )
        for n, (cpu, memory, cost) in enumerate(needs)
    ]
    nodes = [
        node(n, slots=slots, cpu_millis=cpu, memory_bytes=memory)
        for n, (slots, cpu, memory) in enumerate(capacities)
    ]
    tenant = replace(UNLIMITED, budget_unlimited=budget is None, budget_minor=budget)
    tenants = {TENANT: tenant}
    placements = plan(tasks, nodes, tenants, {}, NOW, 100)
    assert placements == plan(list(reversed(tasks)), list(reversed(nodes)), tenants, {}, NOW, 100)
    pairs = {one.task_id: one.incarnation for one in placements}
    assert [(one.task_id, one.incarnation, one.score) for one in placements] == one_by_one(
        tasks, nodes, tenant
    )
    assert list(pairs) == [one.task_id for one in tasks if one.task_id in pairs]
    by_id = {one.task_id: one for one in tasks}
    if budget is not None:
        costs = (by_id[one].profile for one in pairs)
        assert sum(profile.cost_minor for profile in costs if profile is not None) <= budget
    for one in nodes:
        taken = [by_id[t].resources for t, place in pairs.items() if place == one.incarnation]
        assert sum(need.slots for need in taken) <= one.slots
        if one.cpu_millis is not None:
            assert sum(need.cpu_millis for need in taken) <= one.cpu_millis
        if one.memory_bytes is not None:
            assert sum(need.memory_bytes for need in taken) <= one.memory_bytes
    kinds = [Kind(TENANT, profile) for profile in {one.profile for one in tasks} if profile]
    places = rooms(kinds, nodes, tenants, NOW)
    for one in nodes:  # what a node can take is looked for
        for waiting in tasks:
            if exclusion(waiting, one, tenant, NOW) is None:
                assert any(fits(waiting, place) for place in places)


def one_by_one(
    tasks: Sequence[TaskRow], nodes: Sequence[IncarnationRow], tenant: TenantRow
) -> list[tuple[str, str, Score]]:
    """The same plan without any short cut: every node is asked and scored for every task."""
    state = {one.incarnation: one for one in nodes}
    found: list[tuple[str, str, Score]] = []
    for waiting in tasks:
        best = min(
            (one for one in state.values() if exclusion(waiting, one, tenant, NOW) is None),
            key=lambda one: (-score(waiting, one).total, one.incarnation),
            default=None,
        )
        if best is None:
            continue
        need = waiting.resources
        found.append((waiting.task_id, best.incarnation, score(waiting, best)))
        state[best.incarnation] = replace(
            best,
            slots_used=best.slots_used + need.slots,
            cpu_used=best.cpu_used + need.cpu_millis,
            memory_used=best.memory_used + need.memory_bytes,
        )
        assert waiting.profile is not None
        tenant = replace(tenant, held_minor=tenant.held_minor + waiting.profile.cost_minor)
    return found


def fits(waiting: TaskRow, place: Room) -> bool:
    need = waiting.resources
    digest = waiting.profile and waiting.profile.digest
    return (
        (waiting.tenant, digest) == (place.tenant, place.profile_digest)
        and (place.cpu_millis is None or need.cpu_millis <= place.cpu_millis)
        and (place.memory_bytes is None or need.memory_bytes <= place.memory_bytes)
    )


def test_what_no_node_can_take_is_not_looked_for() -> None:
    runs = frozenset({"a", "b"})
    profiles = (
        RunProfile("a", "aa" * 32, Effects.NONE),
        RunProfile("b", "bb" * 32, Effects.NONE),
    )
    nodes = [
        node(1, task_types=runs, profiles=profiles, cpu_used=700, memory_used=100),
        node(2, task_types=runs, profiles=profiles[1:], cpu_used=100, memory_bytes=None),
    ]
    kinds = [
        Kind(TENANT, replace(PROFILE, type=name, digest=digest, match=Match.EXACT))
        for name, digest in (("a", "aa" * 32), ("b", "bb" * 32), ("b", "cc" * 32), ("c", "dd" * 32))
    ]
    assert rooms(kinds, nodes, TENANTS, NOW) == [
        Room(TENANT, "aa" * 32, 300, 900),
        Room(TENANT, "bb" * 32, 900, None),
    ]
    assert rooms(kinds, nodes, {}, NOW) == []


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
