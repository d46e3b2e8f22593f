"""Decisions about attempts and tasks, without a database: every command in every state."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tenure.contract.codes import Code, Reason
from tenure.contract.ids import IncarnationId, TenantId
from tenure.contract.states import (
    ATTEMPT_MOVES,
    TERMINAL_TASK_STATES,
    AttemptState,
    Effects,
    NodeState,
    TaskState,
)
from tenure.coordinator.core import commands, decisions
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decide import decide
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    AttemptChanged,
    Decision,
    Refused,
    TaskChanged,
)
from tenure.coordinator.core.outcomes import LOSSES_UNTIL_HELD
from tenure.coordinator.core.ranking import plan
from tenure.coordinator.core.rows import IncarnationRow
from tenure.coordinator.core.snapshot import Snapshot, StoredCommand
from tests.support.rows import (
    ABOUT_ATTEMPT,
    ALLOCATE,
    ATTEMPT,
    CANCEL,
    COMMON,
    DELIVER,
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

S, A, R = AttemptState.SUBMITTED, AttemptState.ACCEPTED, AttemptState.RUNNING
MOVES: dict[str, tuple[AnyCommand, dict[AttemptState, tuple[AttemptState, ...]]]] = {
    "accept": (commands.Accept(**ABOUT_ATTEMPT), {S: (A,)}),
    "start": (commands.Start(**ABOUT_ATTEMPT), {A: (R,)}),
    "take": (commands.Take(**ABOUT_ATTEMPT), {S: (A, R), A: (R,)}),
    "deliver": (DELIVER, {R: (AttemptState.DELIVERED,)}),
    "fail": (FAIL, dict.fromkeys((A, R), (AttemptState.FAILED,))),
    "reject": (REJECT, {S: (AttemptState.REJECTED,)}),
    "confirm": (
        commands.ConfirmCancel(**ABOUT_ATTEMPT),
        dict.fromkeys((A, R), (AttemptState.CANCELLED,)),
    ),
    "renew": (commands.Renew(**ABOUT_ATTEMPT), {A: (), R: ()}),
    "cancel": (CANCEL, {S: (AttemptState.CANCELLED,)}),
    "cancel, asked": (CANCEL, {S: (AttemptState.CANCELLED,), A: (), R: ()}),
    "expire": (
        EXPIRE,
        {S: (AttemptState.CANCELLED,), A: (AttemptState.EXPIRED,), R: (AttemptState.EXPIRED,)},
    ),
}
"""What each command makes of an attempt, by its state; absent: nothing."""


def decided(command: AnyCommand, snapshot: Snapshot, now: int = NOW) -> Decision:
    return decide(command, snapshot, now, MINTED, POLICY)


def accepted(command: AnyCommand, snapshot: Snapshot, now: int = NOW) -> Accepted:
    decision = decided(command, snapshot, now)
    assert isinstance(decision, Accepted), decision
    return decision


def code_of(decision: Decision) -> str:
    assert isinstance(decision, Refused), decision
    return decision.code


def task_change(decision: Accepted) -> TaskChanged:
    (change,) = [write for write in decision.writes if isinstance(write, TaskChanged)]
    return change


def attempt_change(decision: Accepted) -> AttemptChanged:
    (change,) = [write for write in decision.writes if isinstance(write, AttemptChanged)]
    return change


def moves_of(decision: Decision) -> list[tuple[str | None, str]]:
    """Moves of the attempt's stream in a decision."""
    if not isinstance(decision, Accepted):
        return []
    return [
        (event.previous_state, event.next_state)
        for event in decision.events
        if event.entity_type == "attempt"
    ]


def is_current(snapshot: Snapshot) -> bool:
    assert snapshot.task is not None
    return snapshot.task.current_attempt_id is not None


@pytest.mark.requirement("STATE-04")
@pytest.mark.parametrize("state", AttemptState)
@pytest.mark.parametrize("name", MOVES)
def test_a_command_moves_an_attempt_as_the_table_says(name: str, state: AttemptState) -> None:
    command, moves = MOVES[name]
    asked = name in ("confirm", "cancel, asked")
    task = replace(TASK, cancel_requested_at=NOW - SECOND if asked else None)
    expires_at = NOW - 1 if name == "expire" else NOW + 1
    snapshot = with_attempt(state, task=task, expires_at=expires_at)
    if isinstance(command, commands.Cancel | commands.Expire) and not is_current(snapshot):
        snapshot = replace(snapshot, attempt=None)  # which presents none, so none is loaded
    decision = decided(command, snapshot)
    path = [state, *moves.get(state, ())]
    steps = list(pairwise(path))
    assert moves_of(decision) == [(before.value, after.value) for before, after in steps]
    for before, after in steps:
        assert after in ATTEMPT_MOVES[before]
    if steps and isinstance(decision, Accepted):
        (write,) = [w for w in decision.writes if isinstance(w, AttemptChanged)]
        assert (write.state, write.sequence) == (path[-1], ATTEMPT.sequence + len(steps))


@pytest.mark.requirement("LEASE-02")
@pytest.mark.parametrize(
    "name", [n for n in MOVES if n not in ("cancel", "cancel, asked", "expire")]
)
@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("fencing_token", ATTEMPT.fencing_token - 1, Code.STALE_TOKEN),
        ("fencing_token", ATTEMPT.fencing_token + 1, Code.AUTHORITY_HISTORY_LOST),
        ("node_id", "other", Code.WRONG_NODE),
        ("incarnation", "other", Code.WRONG_NODE),
        ("tenant", "other", Code.UNKNOWN_ATTEMPT),
        ("attempt_id", "other", Code.UNKNOWN_ATTEMPT),
    ],
)
@pytest.mark.parametrize("state", AttemptState)
def test_a_report_has_to_present_what_was_granted(
    name: str, field: str, value: Any, code: Code, state: AttemptState
) -> None:
    command = replace(MOVES[name][0], **{field: value})
    assert code_of(decided(command, with_attempt(state))) == code


@pytest.mark.requirement("LEASE-05")
@pytest.mark.parametrize("now", [NOW - 1, NOW, NOW + 1])
@pytest.mark.parametrize("name", MOVES)
def test_a_lease_is_over_from_the_very_instant_of_its_expiry(name: str, now: int) -> None:
    command, moves = MOVES[name]
    state = next(iter(moves))
    asked = NOW - SECOND if name in ("confirm", "cancel, asked") else None
    snapshot = with_attempt(state, task=replace(TASK, cancel_requested_at=asked), expires_at=NOW)
    decision = decided(command, snapshot, now)
    live = now < NOW
    match name:
        case "expire":
            assert isinstance(decision, Refused if live else Accepted)
        case "deliver":
            assert isinstance(decision, Accepted)
            assert decision.reply.outcome == ("applied" if live else "recorded")
            assert (decision.reads.lease_live, decision.reads.lease_over) == (live, not live)
        case "cancel" | "cancel, asked":
            assert not isinstance(decision, Refused)
        case _:
            if live:
                assert isinstance(decision, Accepted)
                assert decision.reads.lease_live
            else:
                assert code_of(decision) == Code.LEASE_EXPIRED


@pytest.mark.requirement("LEASE-05")
def test_time_never_runs_back_for_a_task_or_an_attempt() -> None:
    over = with_attempt(R, expires_at=NOW - 1, decided_at=NOW)
    assert code_of(decided(FAIL, over, NOW - 3600 * SECOND)) == Code.LEASE_EXPIRED
    task = replace(TASK, decided_at=NOW)
    assert code_of(decided(FAIL, with_attempt(R, task=task, expires_at=NOW - 1), 0)) == (
        Code.LEASE_EXPIRED
    )


@pytest.mark.requirement("STATE-01")
@pytest.mark.parametrize("name", [name for name in MOVES if name != "cancel, asked"])
def test_the_versions_of_the_rows_that_were_read_are_guards(name: str) -> None:
    command, moves = MOVES[name]
    asked = NOW - SECOND if name == "confirm" else None
    expires_at = NOW - 1 if name == "expire" else NOW + 1
    for state in moves:
        task = replace(TASK, cancel_requested_at=asked)
        reads = accepted(command, with_attempt(state, task=task, expires_at=expires_at)).reads
        assert (reads.epoch, reads.task_version) == (1, TASK.version)
        assert (reads.attempt_id, reads.attempt_version) == (ATTEMPT.attempt_id, ATTEMPT.version)


# Repetition -----------------------------------------------------------------------------------


def stored(**changes: Any) -> StoredCommand:
    command: dict[str, Any] = {
        "command_id": COMMON["command_id"],
        "tenant": COMMON["tenant"],
        "fingerprint": COMMON["fingerprint"],
        "reply": decisions.Reply("applied", receipt_id="first"),
        "at": NOW - 9 * SECOND,
    }
    return StoredCommand(**(command | changes))


@pytest.mark.parametrize("name", MOVES)
def test_a_command_seen_before_gets_its_first_answer_before_anything_is_looked_at(
    name: str,
) -> None:
    command = MOVES[name][0]
    for snapshot in (Snapshot(epoch=1), with_attempt(AttemptState.EXPIRED)):
        decision = decided(command, replace(snapshot, command=stored()))
        assert decision == Answered(stored().reply, NOW - 9 * SECOND)


@pytest.mark.parametrize("other", [{"fingerprint": b"other"}, {"tenant": "other"}])
def test_another_command_under_the_same_id_is_a_conflict(other: dict[str, Any]) -> None:
    decision = decided(DELIVER, replace(with_attempt(R), command=stored(**other)))
    assert code_of(decision) == Code.IDEMPOTENCY_CONFLICT


# Failure, rejection, cancellation, loss -------------------------------------------------------


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


def test_an_allocation_grants_the_next_generation_and_relies_on_all_that_it_read() -> None:
    decision = accepted(ALLOCATE, waiting())
    created, change = decision.writes
    assert isinstance(created, decisions.AttemptCreated)
    assert isinstance(change, TaskChanged)
    assert created.fencing_token == 2**32 + TASK.generation + 1
    assert created.ordinal == change.generation == TASK.generation + 1
    assert change.current_attempt_id == created.attempt_id == ALLOCATE.attempt_id
    assert decision.reads == decisions.Reads(
        epoch=1,
        task_id=TASK.task_id,
        task_version=TASK.version,
        incarnation=NODE.incarnation,
        incarnation_version=NODE.version,
        tenant_version=UNLIMITED.version,
        not_before_passed=True,
        deadline_open=True,
        seen_within=POLICY.node_silence_microseconds,
        policy_version=POLICY.version,
    )
    (event,) = decision.events
    assert event.to_node == NODE.incarnation
    assert event.event_id == created.dispatch_event_id


@pytest.mark.parametrize(
    ("task", "node", "code"),
    [
        ({"state": TaskState.HELD}, {}, Code.WRONG_STATE),
        ({"state": TaskState.DELIVERED}, {}, Code.WRONG_STATE),
        ({"not_before": NOW + 1}, {}, Code.WRONG_STATE),
        ({"deadline": NOW}, {}, Code.WRONG_STATE),
        ({}, {"state": NodeState.DRAINING}, Code.NODE_GONE),
        ({}, {"state": NodeState.GONE}, Code.NODE_GONE),
        ({}, {"tenant": "other"}, Code.NODE_GONE),
        ({}, {"last_seen_at": NOW - POLICY.node_silence_microseconds}, Code.NODE_GONE),
        ({}, {"task_types": frozenset()}, Code.WRONG_STATE),
        ({}, {"slots_used": 2}, Code.WRONG_STATE),
        ({}, {"cpu_used": 901}, Code.WRONG_STATE),
        ({}, {"memory_used": 901}, Code.WRONG_STATE),
    ],
)
def test_a_task_is_given_only_to_a_node_that_may_take_it(
    task: dict[str, Any], node: dict[str, Any], code: Code
) -> None:
    snapshot = replace(waiting(**task), incarnation=replace(NODE, **node))
    assert code_of(decided(ALLOCATE, snapshot)) == code


@pytest.mark.parametrize(
    ("task", "node"),
    [
        ({"not_before": NOW}, {}),
        ({"deadline": NOW + 1}, {}),
        ({}, {"last_seen_at": NOW - POLICY.node_silence_microseconds + 1}),
        ({}, {"slots_used": 1, "cpu_used": 900, "memory_used": 900}),
        ({}, {"cpu_millis": None, "memory_bytes": None, "cpu_used": 9999, "memory_used": 9999}),
    ],
)
def test_a_task_is_given_up_to_the_last_instant_and_the_last_resource(
    task: dict[str, Any], node: dict[str, Any]
) -> None:
    accepted(ALLOCATE, replace(waiting(**task), incarnation=replace(NODE, **node)))


def test_a_task_that_somebody_has_is_not_given_again() -> None:
    assert code_of(decided(ALLOCATE, replace(with_attempt(R), incarnation=NODE))) == (
        Code.WRONG_STATE
    )


# Renewal --------------------------------------------------------------------------------------


@pytest.mark.requirement("LEASE-06")
@pytest.mark.parametrize("deadline", [None, NOW + 5 * SECOND, NOW + 20 * SECOND, NOW + 60 * SECOND])
def test_a_renewal_says_no_more_than_the_commit_will_grant(deadline: int | None) -> None:
    task = replace(TASK, deadline=deadline)
    decision = accepted(commands.Renew(**ABOUT_ATTEMPT), with_attempt(R, task=task))
    expected = NOW + ATTEMPT.lease_microseconds
    if deadline is not None:
        expected = max(ATTEMPT.expires_at, min(expected, deadline))
    assert decision.reply.expires_at == expected
    assert decision.events == ()
