"""Decisions about what executors report of their attempts, deliveries apart (see receipt.py).

Every one of them needs the current attempt, its own fencing token and a live lease (LEASE-02), and
makes only moves of the transition table (STATE-04).
"""

from dataclasses import replace

from tenure.contract.codes import Code, Reason
from tenure.contract.states import ATTEMPT_MOVES, AttemptState, TaskState
from tenure.coordinator.core.commands import Accept, ConfirmCancel, Fail, Reject, Start, Take
from tenure.coordinator.core.decisions import (
    Accepted,
    AttemptChanged,
    Decision,
    Happened,
    Refused,
    Reply,
    TaskChanged,
    Write,
)
from tenure.coordinator.core.guards import find_authorized, reads_of
from tenure.coordinator.core.happenings import (
    after,
    attempt_became,
    ended,
    task_became,
    unchanged,
)
from tenure.coordinator.core.retry import retry_delay
from tenure.coordinator.core.rows import AttemptRow, TaskRow
from tenure.coordinator.core.snapshot import LeasePolicy, Minted, Snapshot

_REJECTION_PAUSE_MICROSECONDS = 1_000_000


def leading_to(state: AttemptState) -> frozenset[AttemptState]:
    """States from which an attempt may move to ``state``."""
    return frozenset(before for before, following in ATTEMPT_MOVES.items() if state in following)


def accept(command: Accept, snapshot: Snapshot, now: int, minted: Minted) -> Decision:
    """submitted → accepted."""
    found = find_authorized(command, snapshot, now, leading_to(AttemptState.ACCEPTED))
    if isinstance(found, Refused):
        return found
    return _advance(snapshot, *found, (AttemptState.ACCEPTED,), command.actor, minted)


def start(command: Start, snapshot: Snapshot, now: int, minted: Minted) -> Decision:
    """accepted → running."""
    found = find_authorized(command, snapshot, now, leading_to(AttemptState.RUNNING))
    if isinstance(found, Refused):
        return found
    return _advance(snapshot, *found, (AttemptState.RUNNING,), command.actor, minted)


def take(command: Take, snapshot: Snapshot, now: int, minted: Minted) -> Decision:
    """submitted → accepted → running in one commit with an event for each, or the second alone."""
    states = leading_to(AttemptState.ACCEPTED) | leading_to(AttemptState.RUNNING)
    found = find_authorized(command, snapshot, now, states)
    if isinstance(found, Refused):
        return found
    steps: tuple[AttemptState, ...] = (AttemptState.ACCEPTED, AttemptState.RUNNING)
    if found[1].state is AttemptState.ACCEPTED:
        steps = steps[1:]
    return _advance(snapshot, *found, steps, command.actor, minted)


def _advance(
    snapshot: Snapshot,
    task: TaskRow,
    attempt: AttemptRow,
    steps: tuple[AttemptState, ...],
    actor: str,
    minted: Minted,
) -> Accepted:
    first = attempt_became(
        task,
        attempt,
        steps[0],
        event_id=minted.event_ids[0],
        epoch=snapshot.epoch,
        actor=actor,
    )
    events = [first]
    for event_id, step in zip(minted.event_ids[1:], steps[1:], strict=False):
        events.append(after(events[-1], step, event_id))
    return Accepted(
        reads=reads_of(snapshot, task, attempt, lease_live=True),
        reply=_reply(task, attempt, steps[-1], task.state),
        writes=(
            AttemptChanged(
                attempt.attempt_id, steps[-1], None, None, attempt.sequence + len(steps)
            ),
        ),
        events=tuple(events),
    )


def fail(
    command: Fail, snapshot: Snapshot, now: int, minted: Minted, policy: LeasePolicy
) -> Decision:
    """accepted or running → failed, with a recorded reason (STATE-06).

    A retry under the policy is a new attempt of the same task (STATE-05): the task waits until its
    time, stored in the row so that any number of replicas keep to it.
    """
    found = find_authorized(command, snapshot, now, leading_to(AttemptState.FAILED))
    if isinstance(found, Refused):
        return found
    task, attempt = found
    failures = task.failures + 1
    if task.cancel_requested_at is not None:
        change = ended(task, TaskState.CANCELLED, Reason.CANCEL_REQUESTED, command.message)
    elif not command.retryable:
        change = ended(task, TaskState.FAILED, command.reason, command.message)
    elif failures >= task.max_attempts:
        change = ended(task, TaskState.FAILED, Reason.ATTEMPTS_EXHAUSTED, command.message)
    else:
        change = replace(
            unchanged(task),
            current_attempt_id=None,
            not_before=now + retry_delay(policy, failures, minted.jitter),
        )
    return _ended_by_report(
        snapshot,
        task,
        attempt,
        AttemptState.FAILED,
        reason=command.reason,
        message=command.message,
        change=replace(change, failures=failures),
        actor=command.actor,
        minted=minted,
    )


def reject(command: Reject, snapshot: Snapshot, now: int, minted: Minted) -> Decision:
    """submitted → rejected: not a failure, another node may take the task."""
    found = find_authorized(command, snapshot, now, leading_to(AttemptState.REJECTED))
    if isinstance(found, Refused):
        return found
    task, attempt = found
    # A node that drains gets nothing new, so its work need not wait; any other rejection might be
    # repeated at once by the same node.
    pause = 0 if command.reason == Reason.NODE_DRAINING else _REJECTION_PAUSE_MICROSECONDS
    return _ended_by_report(
        snapshot,
        task,
        attempt,
        AttemptState.REJECTED,
        reason=command.reason,
        message=command.message,
        change=replace(
            unchanged(task),
            current_attempt_id=None,
            not_before=now + pause if pause else task.not_before,
        ),
        actor=command.actor,
        minted=minted,
    )


def confirm_cancel(
    command: ConfirmCancel, snapshot: Snapshot, now: int, minted: Minted
) -> Decision:
    """accepted or running → cancelled, when that was asked for; the task ends cancelled."""
    states = leading_to(AttemptState.CANCELLED) - {AttemptState.SUBMITTED}
    found = find_authorized(command, snapshot, now, states)
    if isinstance(found, Refused):
        return found
    task, attempt = found
    if task.cancel_requested_at is None:
        return Refused(Code.WRONG_STATE, "nobody asked to cancel this task")
    return _ended_by_report(
        snapshot,
        task,
        attempt,
        AttemptState.CANCELLED,
        reason=Reason.CANCEL_REQUESTED,
        message=None,
        change=ended(task, TaskState.CANCELLED, Reason.CANCEL_REQUESTED, None),
        actor=command.actor,
        minted=minted,
    )


def _ended_by_report(
    snapshot: Snapshot,
    task: TaskRow,
    attempt: AttemptRow,
    state: AttemptState,
    *,
    reason: str,
    message: str | None,
    change: TaskChanged,
    actor: str,
    minted: Minted,
) -> Accepted:
    writes: tuple[Write, ...] = (
        AttemptChanged(attempt.attempt_id, state, reason, message, attempt.sequence + 1),
        change,
    )
    open_again = change.state is TaskState.OPEN
    events: tuple[Happened, ...] = (
        attempt_became(
            task,
            attempt,
            state,
            event_id=minted.event_ids[0],
            epoch=snapshot.epoch,
            actor=actor,
            reason=reason,
            retry_not_before=change.not_before if open_again else None,
        ),
    )
    if not open_again:
        events += (
            task_became(
                task,
                change.state,
                event_id=minted.event_ids[1],
                epoch=snapshot.epoch,
                actor=actor,
                reason=change.reason,
            ),
        )
    return Accepted(
        reads=reads_of(snapshot, task, attempt, lease_live=True),
        reply=_reply(task, attempt, state, change.state),
        writes=writes,
        events=events,
    )


def _reply(task: TaskRow, attempt: AttemptRow, state: AttemptState, task_state: TaskState) -> Reply:
    return Reply(
        "applied",
        task_id=task.task_id,
        task_state=task_state,
        attempt_state=state,
        expires_at=attempt.expires_at,
        cancel_requested=task.cancel_requested_at is not None,
        state_version=task.version,
        generation=task.generation,
    )
