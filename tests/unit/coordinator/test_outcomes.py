"""What becomes of a task whose attempt has ended, and of one that a person decides about."""

from dataclasses import replace
from typing import Any

import pytest

from tenure.contract.codes import Code, Reason
from tenure.contract.ids import IncarnationId, TenantId
from tenure.contract.states import (
    TERMINAL_TASK_STATES,
    AttemptState,
    Effects,
    TaskState,
)
from tenure.coordinator.core.commands import AnyCommand, Take
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
)
from tenure.coordinator.core.outcomes import LOSSES_UNTIL_HELD
from tenure.coordinator.core.ranking import plan
from tenure.coordinator.core.rows import IncarnationRow
from tests.support.deciding import (
    MOVES,
    A,
    R,
    S,
    accepted,
    attempt_change,
    code_of,
    decided,
    task_change,
)
from tests.support.rows import (
    ABOUT_ATTEMPT,
    ALLOCATE,
    ATTEMPT,
    CANCEL,
    EXPIRE,
    FAIL,
    HOLD,
    HOLD_REJECTED,
    MINTED,
    NODE,
    NOW,
    POLICY,
    RECEIVE,
    REJECT,
    RELEASE,
    SECOND,
    TASK,
    TENANT,
    TRY_AGAIN,
    UNLIMITED,
    waiting,
    with_attempt,
)


@pytest.mark.parametrize(
    ("failures", "retryable", "requested", "state", "reason"),
    [
        (0, True, False, TaskState.OPEN, None),
        (1, True, False, TaskState.OPEN, None),
        (2, True, False, TaskState.FAILED, Reason.ATTEMPTS_EXHAUSTED),
        (9, True, False, TaskState.FAILED, Reason.ATTEMPTS_EXHAUSTED),
        (0, False, False, TaskState.FAILED, "handler_failed"),
        (0, True, True, TaskState.CANCELLED, Reason.CANCEL_REQUESTED),
        (2, False, True, TaskState.CANCELLED, Reason.CANCEL_REQUESTED),
    ],
)
def test_a_failure_ends_the_task_or_leaves_it_to_another_attempt(
    failures: int, retryable: bool, requested: bool, state: TaskState, reason: str | None
) -> None:
    task = replace(TASK, failures=failures, cancel_requested_at=NOW - SECOND if requested else None)
    decision = accepted(replace(FAIL, retryable=retryable), with_attempt(R, task=task))
    change = task_change(decision)
    assert (change.state, change.reason, change.failures) == (state, reason, failures + 1)
    assert change.current_attempt_id is None
    assert len(decision.events) == (1 if state is TaskState.OPEN else 2)
    if state is TaskState.OPEN:
        assert change.sequence == TASK.sequence
        assert (
            change.delay == decision.events[0].retry_delay == attempt_change(decision).retry_delay
        )
        assert change.delay == MINTED.jitter * POLICY.retry_base_microseconds * 2**failures
    else:
        assert change.sequence == TASK.sequence + 1
        assert decision.events[1].next_state == state


@pytest.mark.requirement("STATE-05")
@pytest.mark.parametrize("reason", [Reason.UNKNOWN_TYPE, Reason.NODE_DRAINING, "anything"])
def test_a_rejected_task_waits_for_another_node_and_has_not_failed(reason: str) -> None:
    others = (IncarnationId("another"),)
    task = replace(TASK, rejected_by=others)
    change = task_change(accepted(replace(REJECT, reason=reason), with_attempt(S, task=task)))
    assert (change.state, change.failures, change.current_attempt_id) == (TaskState.OPEN, 0, None)
    assert change.delay is None
    # A node that drains has nothing against the task.
    mine = () if reason == Reason.NODE_DRAINING else (ATTEMPT.incarnation,)
    assert change.rejected_by == (*others, *mine)


@pytest.mark.requirement("STATE-05")
def test_a_node_is_not_asked_again_for_what_it_has_rejected() -> None:
    unwanted = waiting(rejected_by=(NODE.incarnation,))
    assert code_of(decided(ALLOCATE, unwanted)) == Code.WRONG_STATE
    assert isinstance(decided(ALLOCATE, waiting(rejected_by=("another",))), Accepted)
    assert unwanted.task is not None
    assert plan([unwanted.task], [NODE], {TENANT: UNLIMITED}, {}, NOW, 1) == []


@pytest.mark.requirement("STATE-05")
@pytest.mark.parametrize(
    ("fleet", "is_held"),
    [
        ((), False),  # nobody could take it: it waits (SCHED-02)
        ((NODE,), True),
        ((replace(NODE, slots_used=2),), True),  # busy, and it has rejected
        ((NODE, replace(NODE, incarnation=IncarnationId("free"))), False),
        ((NODE, replace(NODE, incarnation=IncarnationId("busy"), slots_used=2)), False),
        ((NODE, replace(NODE, incarnation=IncarnationId("silent"), last_seen_at=0)), False),
        ((NODE, replace(NODE, incarnation=IncarnationId("other"), task_types=frozenset())), True),
        ((NODE, replace(NODE, incarnation=IncarnationId("small"), cpu_millis=99)), True),
        ((replace(NODE, incarnation=IncarnationId("other"), task_types=frozenset()),), False),
    ],
)
def test_a_task_is_held_once_every_node_that_could_take_it_has_rejected_it(
    fleet: tuple[IncarnationRow, ...], is_held: bool
) -> None:
    snapshot = replace(waiting(rejected_by=(NODE.incarnation,)), fleet=fleet)
    decision = decided(HOLD_REJECTED, snapshot)
    if not is_held:
        assert code_of(decision) == Code.WRONG_STATE
        return
    assert isinstance(decision, Accepted)
    change = task_change(decision)
    assert (change.state, change.reason) == (TaskState.HELD, Reason.REJECTED_BY_ALL)
    assert decision.reads.fleet == tuple((node.incarnation, node.version) for node in fleet)


def test_a_handler_may_say_itself_when_its_task_comes_back() -> None:
    asked = replace(FAIL, reason=Reason.RETRY_REQUESTED, retry_delay=70 * SECOND)
    decision = accepted(asked, with_attempt(R))
    assert task_change(decision).delay == attempt_change(decision).retry_delay == 70 * SECOND
    assert task_change(decision).failures == 1
    last = with_attempt(R, task=replace(TASK, failures=TASK.max_attempts - 1))
    change = task_change(accepted(asked, last))
    assert (change.state, change.reason) == (TaskState.FAILED, Reason.ATTEMPTS_EXHAUSTED)


@pytest.mark.requirement("STATE-05")
@pytest.mark.parametrize("reason", [Reason.AUTHORITY_LOST, Reason.NODE_DRAINING])
@pytest.mark.parametrize("effects", Effects)
def test_work_that_its_executor_hands_back_counts_as_lost(effects: Effects, reason: Reason) -> None:
    snapshot = with_attempt(R, task=replace(TASK, effects=effects))
    change = task_change(accepted(replace(FAIL, reason=reason), snapshot))
    assert change.failures == 0
    if effects is Effects.UNGUARDED:
        held = (TaskState.HELD, Reason.LOST_WITH_POSSIBLE_EFFECT, 0)
        assert (change.state, change.reason, change.losses) == held
    else:
        assert (change.state, change.reason, change.losses) == (TaskState.OPEN, None, 1)


@pytest.mark.requirement("STATE-05")
def test_a_suspect_that_dies_alone_is_held_after_the_third_time() -> None:
    died = replace(FAIL, reason=Reason.DIED_ALONE)
    task = replace(TASK, losses=1)
    for losses in (4, 7):
        change = task_change(accepted(died, with_attempt(R, task=task)))
        assert (change.state, change.losses, change.failures) == (TaskState.OPEN, losses, 0)
        task = replace(task, losses=change.losses)
    change = task_change(accepted(died, with_attempt(R, task=task)))
    assert (change.state, change.reason) == (TaskState.HELD, Reason.LOST_REPEATEDLY)


@pytest.mark.parametrize(("losses", "suspect"), [(0, False), (1, True), (7, True)])
def test_who_takes_a_task_that_was_lost_is_told_to_run_it_alone(losses: int, suspect: bool) -> None:
    decision = accepted(Take(**ABOUT_ATTEMPT), with_attempt(S, task=replace(TASK, losses=losses)))
    assert decision.reply.suspect is suspect


@pytest.mark.parametrize("losses", range(LOSSES_UNTIL_HELD))
def test_a_task_that_is_lost_again_and_again_waits_longer_and_then_for_a_person(
    losses: int,
) -> None:
    task = replace(TASK, losses=losses)
    decision = accepted(EXPIRE, with_attempt(R, task=task, expires_at=NOW - 1))
    change = task_change(decision)
    assert (change.losses, change.failures) == (losses + 1, 0)
    assert change.delay == attempt_change(decision).retry_delay == decision.events[0].retry_delay
    if losses + 1 == LOSSES_UNTIL_HELD:
        assert (change.state, change.reason) == (TaskState.HELD, Reason.LOST_REPEATEDLY)
        assert [event.next_state for event in decision.events] == ["expired", "held"]
    else:
        assert change.state is TaskState.OPEN
        step = POLICY.retry_base_microseconds * 2 ** (losses - 1)
        assert change.delay == (None if losses == 0 else MINTED.jitter * step)


def test_a_cancellation_is_only_confirmed_when_somebody_asked_for_it() -> None:
    command = MOVES["confirm"][0]
    assert code_of(decided(command, with_attempt(R))) == Code.WRONG_STATE


@pytest.mark.parametrize("state", TaskState)
def test_a_task_is_cancelled_at_once_when_nobody_works_on_it(state: TaskState) -> None:
    decision = decided(CANCEL, waiting(state=state))
    if state in TERMINAL_TASK_STATES:
        assert isinstance(decision, Answered)
        assert (decision.reply.outcome, decision.reply.task_state) == ("ended", state)
        return
    assert isinstance(decision, Accepted)
    change = task_change(decision)
    assert (change.state, change.cancel_requested) == (TaskState.CANCELLED, True)


@pytest.mark.parametrize("state", [A, R])
def test_work_under_way_is_asked_to_stop_once(state: AttemptState) -> None:
    decision = accepted(CANCEL, with_attempt(state))
    change = task_change(decision)
    assert (change.state, change.cancel_requested) == (TaskState.OPEN, True)
    (event,) = decision.events
    assert (event.to_node, event.attempt_id) == (ATTEMPT.incarnation, ATTEMPT.attempt_id)
    assert event.cancel_requested
    again = decided(
        CANCEL, with_attempt(state, task=replace(TASK, cancel_requested_at=NOW - SECOND))
    )
    assert again == Answered(decision.reply, NOW - SECOND)


@pytest.mark.requirement("STATE-06")
def test_nothing_begins_after_a_cancellation_was_requested() -> None:
    asked = with_attempt(A, task=replace(TASK, cancel_requested_at=NOW - SECOND))
    for name in ("start", "take"):
        assert code_of(decided(MOVES[name][0], asked)) == Code.CANCEL_REQUESTED
    assert isinstance(decided(MOVES["confirm"][0], asked), Accepted)


@pytest.mark.requirement("STATE-06")
@pytest.mark.parametrize("state", [A, R])
def test_a_cancellation_is_delivered_once_its_executor_says_so(state: AttemptState) -> None:
    assert code_of(decided(RECEIVE, with_attempt(state))) == Code.WRONG_STATE
    asked = replace(TASK, cancel_requested_at=NOW - SECOND)
    decision = accepted(RECEIVE, with_attempt(state, task=asked))
    change = task_change(decision)
    assert (change.state, change.cancel_requested, change.cancel_delivered) == (
        TaskState.OPEN, True, True,
    )  # fmt: skip
    assert [event.reason for event in decision.events] == [Reason.CANCEL_DELIVERED]
    told = replace(asked, cancel_delivered_at=NOW - 1)
    again = decided(RECEIVE, with_attempt(state, task=told))
    assert again == Answered(decision.reply, NOW - 1)
    # What comes later keeps it.
    assert task_change(accepted(FAIL, with_attempt(state, task=told))).cancel_delivered


def test_another_tenants_task_is_not_there() -> None:
    assert (
        code_of(decided(replace(CANCEL, tenant=TenantId("other")), with_attempt(R)))
        == Code.NOT_FOUND
    )


@pytest.mark.parametrize("effects", Effects)
@pytest.mark.parametrize("state", [S, A, R])
@pytest.mark.parametrize("requested", [False, True])
@pytest.mark.parametrize("deadline", [None, NOW - 1, NOW + 1])
def test_what_becomes_of_a_task_whose_attempt_was_lost(
    effects: Effects, state: AttemptState, requested: bool, deadline: int | None
) -> None:
    task = replace(
        TASK,
        effects=effects,
        deadline=deadline,
        cancel_requested_at=NOW - SECOND if requested else None,
    )
    decision = accepted(EXPIRE, with_attempt(state, task=task, expires_at=NOW - 1))
    change = task_change(decision)
    past = deadline == NOW - 1
    if requested:
        expected: tuple[TaskState, str | None] = (TaskState.CANCELLED, Reason.CANCEL_REQUESTED)
    elif past:
        expected = (TaskState.EXPIRED, Reason.DEADLINE_PASSED)
    elif effects is Effects.UNGUARDED and state is not S:
        expected = (TaskState.HELD, Reason.LOST_WITH_POSSIBLE_EFFECT)
    else:
        expected = (TaskState.OPEN, None)
    assert (change.state, change.reason) == expected
    assert (change.failures, change.current_attempt_id) == (0, None)
    assert change.cancel_requested is requested
    assert (decision.reads.deadline_passed, decision.reads.deadline_open) == (past, not past)
    assert len(decision.events) == (1 if expected[0] is TaskState.OPEN else 2)


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("deadline", [None, NOW - 1, NOW, NOW + 1])
def test_a_task_that_nobody_has_expires_at_its_deadline(
    state: TaskState, deadline: int | None
) -> None:
    decision = decided(EXPIRE, waiting(state=state, deadline=deadline))
    if state in TERMINAL_TASK_STATES or deadline in (None, NOW + 1):
        assert code_of(decision) == Code.WRONG_STATE
        return
    assert isinstance(decision, Accepted)
    assert decision.reads.deadline_passed
    assert task_change(decision).state is TaskState.EXPIRED


# A person's word -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [HOLD, RELEASE, TRY_AGAIN])
@pytest.mark.parametrize("state", sorted(TERMINAL_TASK_STATES))
def test_what_has_ended_is_neither_held_nor_released_nor_opened(
    command: AnyCommand, state: TaskState
) -> None:
    assert code_of(decided(command, waiting(state=state))) == Code.WRONG_STATE
    other = replace(command, tenant=TenantId("other"))
    assert code_of(decided(other, waiting(state=state))) == Code.NOT_FOUND


def test_a_hold_keeps_a_task_from_beginning_and_takes_back_what_nobody_has_begun() -> None:
    for snapshot, events in ((waiting(), ["held"]), (with_attempt(S), ["cancelled", "held"])):
        decision = accepted(HOLD, snapshot)
        change = task_change(decision)
        assert (change.state, change.reason) == (TaskState.HELD, Reason.OPERATOR_HOLD)
        assert (change.message, change.current_attempt_id) == ("why", None)
        assert [event.next_state for event in decision.events] == events
    for state in (A, R):
        assert code_of(decided(HOLD, with_attempt(state))) == Code.WRONG_STATE
        assert code_of(decided(TRY_AGAIN, with_attempt(state))) == Code.WRONG_STATE
    assert isinstance(decided(HOLD, waiting(state=TaskState.HELD)), Answered)


def test_a_released_task_waits_and_forgets_what_kept_it() -> None:
    kept: dict[str, Any] = {
        "state": TaskState.HELD, "losses": 9, "rejected_by": ("node",), "failures": 2,
        "not_before": NOW + SECOND,
    }  # fmt: skip
    change = task_change(accepted(RELEASE, waiting(**kept)))
    assert (change.state, change.reason, change.message) == (TaskState.OPEN, None, None)
    assert (change.losses, change.rejected_by, change.failures) == (0, (), 2)
    assert change.not_before == NOW + SECOND
    assert isinstance(decided(RELEASE, waiting()), Answered)
    assert isinstance(decided(RELEASE, with_attempt(R)), Answered)


def test_a_retry_waits_for_nothing_and_forgets_the_failures() -> None:
    kept: dict[str, Any] = {"failures": 2, "not_before": NOW + SECOND, "losses": 1}
    for state in (TaskState.HELD, TaskState.OPEN):
        change = task_change(accepted(TRY_AGAIN, waiting(state=state, **kept)))
        assert (change.state, change.failures, change.losses) == (TaskState.OPEN, 0, 0)
        assert (change.not_before, change.delay) == (None, None)
    assert isinstance(decided(TRY_AGAIN, waiting()), Answered)
    untried = waiting(generation=0, not_before=NOW + SECOND)
    assert code_of(decided(TRY_AGAIN, untried)) == Code.WRONG_STATE


# Allocation -----------------------------------------------------------------------------------
