"""How many tasks run at once, and how often one starts: what a limit lets begin."""

from dataclasses import replace
from typing import Any

import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import TaskId
from tenure.contract.states import LimitScope
from tenure.coordinator.core import limits
from tenure.coordinator.core.decide import decide
from tenure.coordinator.core.decisions import Accepted, Refused
from tenure.coordinator.core.explanation import Standing, explain
from tenure.coordinator.core.ranking import Kind, plan, rooms
from tenure.coordinator.core.rows import ANY, LimitRow, TaskRow, TenantRow
from tests.support.rows import (
    ALLOCATE,
    MINTED,
    NODE,
    NOW,
    POLICY,
    PROFILE,
    SECOND,
    TASK,
    TENANT,
    UNLIMITED,
    waiting,
)

WAITING = replace(TASK, current_attempt_id=None)
OF_X = replace(WAITING, concurrency_key="x")
ROOMY = replace(NODE, slots=100, cpu_millis=None, memory_bytes=None)
TENANT_LIMIT = LimitRow(LimitScope.TENANT, "", max_running=2)
TYPE_LIMIT = LimitRow(LimitScope.TYPE, "sha256", max_running=2)
KEY_LIMIT = LimitRow(LimitScope.KEY, "x", max_running=2)
EACH = LimitRow(LimitScope.EACH_KEY, "sha256", max_running=2)
EACH_OF_ALL = LimitRow(LimitScope.EACH_KEY, ANY, max_running=2)
CONCERNING = [TENANT_LIMIT, TYPE_LIMIT, KEY_LIMIT, EACH, EACH_OF_ALL]
RUNNING = [("sha256", "x", 1), ("sha256", "y", 7), ("sha512", "x", 3), ("sha256", None, 5)]


def limited(*rows: LimitRow, running: Any = (), full_at: Any = None) -> TenantRow:
    return replace(
        UNLIMITED, limits=rows, running=limits.count(rows, running), full_at=full_at or {}
    )


def tasks(number: int, *keys: str | None) -> list[TaskRow]:
    return [
        replace(
            WAITING,
            task_id=TaskId(f"task-{one:03}"),
            concurrency_key=keys[one % len(keys)] if keys else None,
            queued_as_of=one,
        )
        for one in range(number)
    ]


@pytest.mark.requirement("FLOW-01")
def test_each_kind_of_limit_counts_what_it_names() -> None:
    counted = limits.count(CONCERNING, RUNNING)
    assert counted == {
        (LimitScope.TENANT, "", ""): 16,
        (LimitScope.TYPE, "sha256", ""): 13,
        (LimitScope.KEY, "x", ""): 4,
        (LimitScope.EACH_KEY, "sha256", "x"): 1,
        (LimitScope.EACH_KEY, "sha256", "y"): 7,
        (LimitScope.EACH_KEY, ANY, "x"): 4,
        (LimitScope.EACH_KEY, ANY, "y"): 7,
    }


@pytest.mark.requirement("FLOW-01")
@pytest.mark.parametrize("limit", CONCERNING, ids=lambda limit: f"{limit.scope} {limit.name}")
def test_nothing_begins_under_a_limit_that_is_reached(limit: LimitRow) -> None:
    below, at, above = (limited(limit, running=[("sha256", "x", number)]) for number in (1, 2, 9))
    assert limits.reached(OF_X, below, NOW) == ()
    for tenant in (at, above):
        (found,) = limits.reached(OF_X, tenant, NOW)
        assert (found.limit, found.next_start) == (limit, None)
    decision = decide(
        ALLOCATE, replace(waiting(concurrency_key="x"), tenant=at), NOW, MINTED, POLICY
    )
    assert isinstance(decision, Refused)
    assert decision.code is Code.WRONG_STATE
    decision = decide(
        ALLOCATE, replace(waiting(concurrency_key="x"), tenant=below), NOW, MINTED, POLICY
    )
    assert isinstance(decision, Accepted)


@pytest.mark.requirement("FLOW-01")
def test_other_types_and_keys_go_on() -> None:
    others = (
        LimitRow(LimitScope.TYPE, "sha512", max_running=1),
        LimitRow(LimitScope.KEY, "y", max_running=1),
        LimitRow(LimitScope.EACH_KEY, "sha512", max_running=1),
        LimitRow(LimitScope.EACH_KEY, "sha256", max_running=1),
    )
    tenant = limited(*others, running=[("sha512", "x", 5), ("sha256", "y", 5)])
    assert limits.reached(OF_X, tenant, NOW) == ()
    assert limits.reached(WAITING, tenant, NOW) == ()  # without a key it counts under none


@pytest.mark.requirement("FLOW-01")
def test_a_plan_begins_as_many_as_each_limit_lets_and_nobody_else_waits() -> None:
    each = replace(EACH, max_running=1)
    tenants = {TENANT: limited(each, running=[("sha256", "x", 1)])}
    waiting_tasks = tasks(6, "x", "y", None)
    placed = plan(waiting_tasks, [ROOMY], tenants, {}, NOW, 10)
    assert [one.task_id for one in placed] == ["task-001", "task-002", "task-005"]
    both = {TENANT: limited(replace(TYPE_LIMIT, max_running=3), each)}
    placed = plan(tasks(9, "x", "y", "z", "w"), [ROOMY], both, {}, NOW, 10)
    assert [one.task_id for one in placed] == ["task-000", "task-001", "task-002"]


@pytest.mark.requirement("FLOW-01")
def test_what_no_limit_lets_begin_is_not_looked_for() -> None:
    def room(tenant: TenantRow) -> Any:
        return next(iter(rooms([Kind(TENANT, PROFILE)], [ROOMY], {TENANT: tenant}, NOW)), None)

    assert room(UNLIMITED).most is None
    assert room(limited(TYPE_LIMIT, running=[("sha256", None, 2)])) is None
    assert room(limited(TENANT_LIMIT, running=[("sha512", None, 7)])) is None
    one_left = limited(TYPE_LIMIT, running=[("sha256", None, 1)])
    assert (room(one_left).most, room(one_left).closed_keys) == (1, frozenset())
    keyed = limited(EACH, KEY_LIMIT, running=[("sha256", "x", 1), ("sha512", "x", 1)])
    assert (room(keyed).most, room(keyed).closed_keys) == (None, {"x"})
    assert not room(keyed).paces_keys
    paced = limited(replace(EACH, max_running=None, interval=SECOND))
    assert room(paced).paces_keys


@pytest.mark.requirement("FLOW-01")
def test_starts_come_out_of_a_bucket_that_is_filled_as_time_goes_by() -> None:
    limit = LimitRow(LimitScope.TYPE, "sha256", interval=SECOND, burst=3)
    place = (LimitScope.TYPE, "sha256", "")

    def begun(at: int, full_at: int | None) -> int:
        tenant = limited(limit, full_at={} if full_at is None else {place: full_at})
        return len(plan(tasks(9), [ROOMY], {TENANT: tenant}, {}, at, 10))

    assert begun(NOW, None) == 3
    assert begun(NOW, NOW - 5 * SECOND) == 3
    assert begun(NOW, NOW + SECOND) == 2
    assert begun(NOW, NOW + SECOND + 1) == 1
    assert begun(NOW, NOW + 2 * SECOND + 1) == 0
    assert begun(NOW + 1, NOW + 2 * SECOND + 1) == 1


@pytest.mark.requirement("FLOW-01")
def test_over_any_time_no_more_start_than_the_rate_and_one_burst() -> None:
    limit = LimitRow(LimitScope.TYPE, "sha256", interval=300_000, burst=4)
    place = (LimitScope.TYPE, "sha256", "")
    starts: list[int] = []
    full_at: dict[Any, int] = {}
    for now in range(NOW, NOW + 20 * SECOND, 70_001):
        tenant = limited(limit, full_at=full_at)
        allowances = limits.Allowances({TENANT: tenant}, now)
        for task in tasks(3):
            if allowances.permit(task):
                allowances.begin(task)
                starts.append(now)
        full_at = {place: allowances._full_at[TENANT].get(place, now)}
    for first, since in enumerate(starts):
        for last in range(first, len(starts)):
            assert last - first + 1 <= limit.burst + (starts[last] - since) / 300_000
    assert len(starts) >= 20 * SECOND // 300_000


def test_a_clock_set_back_delays_starts_by_no_more_than_one_bucket() -> None:
    limit = LimitRow(LimitScope.TYPE, "sha256", interval=SECOND, burst=3)
    later = limited(limit, full_at={(LimitScope.TYPE, "sha256", ""): NOW + 3600 * SECOND})
    (found,) = limits.reached(WAITING, later, NOW)
    assert found.next_start == NOW + SECOND


def test_the_next_start_is_that_of_the_first_bucket() -> None:
    slow = LimitRow(LimitScope.TENANT, "", interval=SECOND)
    soon = LimitRow(LimitScope.EACH_KEY, "sha256", interval=SECOND)
    tenant = limited(
        slow,
        soon,
        full_at={
            (LimitScope.TENANT, "", ""): NOW + SECOND,
            (LimitScope.EACH_KEY, "sha256", "x"): NOW + 5,
            (LimitScope.EACH_KEY, "sha256", "y"): NOW - 5,
        },
    )
    assert limits.Allowances({TENANT: tenant}, NOW).next_start() == NOW + 5
    assert limits.Allowances({TENANT: UNLIMITED}, NOW).next_start() is None


@pytest.mark.requirement("FLOW-01")
def test_an_explanation_tells_what_counts_and_when_the_next_start_is() -> None:
    paced = LimitRow(LimitScope.EACH_KEY, ANY, interval=SECOND)
    tenant = limited(
        TYPE_LIMIT,
        paced,
        EACH,
        running=[("sha256", "y", 3)],
        full_at={(LimitScope.EACH_KEY, ANY, "x"): NOW + 5},
    )
    found = explain(OF_X, None, [NODE], tenant, NOW, POLICY.node_silence_microseconds)
    assert (found.standing, found.eligible) == (Standing.LIMITED, 1)
    assert [(one.limit.scope, one.key, one.running, one.next_start) for one in found.limits] == [
        (LimitScope.TYPE, "", 3, None),
        (LimitScope.EACH_KEY, "x", 0, NOW + 5),
    ]
