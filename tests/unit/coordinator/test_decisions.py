"""Decisions about attempts and tasks, without a database: every command in every state."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tenure.contract.codes import Code
from tenure.contract.states import (
    ATTEMPT_MOVES,
    AttemptState,
    NodeState,
    TaskState,
)
from tenure.coordinator.core import commands, decisions
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    AttemptChanged,
    Refused,
    TaskChanged,
)
from tenure.coordinator.core.snapshot import Snapshot, StoredCommand
from tests.support.deciding import (
    MOVES,
    R,
    accepted,
    code_of,
    decided,
    is_current,
    moves_of,
)
from tests.support.rows import (
    ABOUT_ATTEMPT,
    ALLOCATE,
    ATTEMPT,
    COMMON,
    DELIVER,
    FAIL,
    NODE,
    NOW,
    POLICY,
    SECOND,
    TASK,
    UNLIMITED,
    waiting,
    with_attempt,
)


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
        attempt_id=ALLOCATE.attempt_id,  # unknown so far
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


@pytest.mark.requirement("LEASE-04")
@pytest.mark.parametrize("state", [AttemptState.SUBMITTED, R, AttemptState.EXPIRED])
def test_an_allocation_whose_attempt_is_known_is_answered_as_the_first_time(
    state: AttemptState,
) -> None:
    """It is a repetition after an unknown outcome, also where the task waits once more."""
    made = replace(ATTEMPT, attempt_id=ALLOCATE.attempt_id, ordinal=TASK.generation, state=state)
    for snapshot in (with_attempt(state), waiting()):
        decision = decided(ALLOCATE, replace(snapshot, attempt=made, incarnation=NODE))
        assert isinstance(decision, Answered)
        assert (decision.reply.outcome, decision.reply.attempt_state) == ("applied", "submitted")
        assert decision.reply.generation == TASK.generation


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
