"""Turns: shares by weight between tenants, age and priority within one, and nobody starves."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.contract.ids import TaskId, TenantId
from tenure.coordinator.core.fairness import AGEING_MICROSECONDS, Turns, head_start
from tenure.coordinator.core.rows import TaskRow
from tests.support.rows import TASK, UNLIMITED

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


def task(tenant: TenantId, number: int, queued_as_of: int = 0) -> TaskRow:
    return replace(
        TASK,
        tenant=tenant,
        task_id=TaskId(f"{tenant}-{number:04}"),
        current_attempt_id=None,
        queued_as_of=queued_as_of,
    )


def served(turns: Turns, number: int) -> list[TaskRow]:
    found = []
    for _ in range(number):
        one = turns.next()
        assert one is not None
        turns.placed(one)
        found.append(one)
    return found


@pytest.mark.requirement("SCHED-05")
@given(
    weights=st.fixed_dictionaries({name: st.integers(1, 9) for name in "abc"}),
    number=st.integers(1, 300),
)
def test_slots_are_shared_by_weight_whoever_has_more_waiting(
    weights: dict[str, int], number: int
) -> None:
    tasks = [task(tenant, n) for tenant in (A, B, C) for n in range(300)]
    facts = {TenantId(n): replace(UNLIMITED, weight=w) for n, w in weights.items()}
    got = Counter(one.tenant for one in served(Turns(tasks, facts, {}), number))
    total = sum(weights.values())
    for name, weight in weights.items():
        assert abs(got[TenantId(name)] - number * weight / total) <= len(weights)


@pytest.mark.requirement("SCHED-05")
def test_a_tenant_that_has_less_is_served_until_it_has_its_share() -> None:
    tasks = [task(tenant, n) for tenant in (A, B) for n in range(20)]
    facts = {A: UNLIMITED, B: UNLIMITED}
    first = served(Turns(tasks, facts, {A: 10, B: 4}), 8)
    assert Counter(one.tenant for one in first) == {B: 7, A: 1}


@pytest.mark.requirement("SCHED-05")
def test_what_finds_no_place_is_no_turn_of_its_tenant() -> None:
    turns = Turns([task(A, 1), task(A, 2), task(B, 1)], {}, {})
    first = turns.next()
    second = turns.next()
    assert first is not None
    assert second is not None
    assert (first.task_id, second.task_id) == ("a-0001", "a-0002")  # nothing was placed
    turns.placed(second)
    assert [one.task_id for one in served(turns, 1)] == ["b-0001"]
    assert turns.next() is None


@pytest.mark.requirement("SCHED-05")
@given(
    priorities=st.lists(st.integers(-100, 100), min_size=2, max_size=20),
    step=st.integers(0, 10**10),
)
def test_within_a_tenant_priority_goes_first_and_is_outrun_by_age(
    priorities: list[int], step: int
) -> None:
    created = [n * step for n in range(len(priorities))]
    tasks = [task(A, n, created[n] - head_start(priority)) for n, priority in enumerate(priorities)]
    order = [int(one.task_id[2:]) for one in served(Turns(tasks, {}, {}), len(tasks))]
    for place, earlier in enumerate(order):
        for later in order[place + 1 :]:
            ahead = priorities[earlier] - priorities[later]
            waited = created[earlier] - created[later]
            # Nobody is passed by what came so much later that its priority does not make up for it.
            assert waited <= ahead * AGEING_MICROSECONDS
    equal = [n for n in order if priorities[n] == priorities[order[0]]]
    assert equal == sorted(equal) or step == 0
