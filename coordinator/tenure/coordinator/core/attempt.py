"""Decisions about what executors report of their attempts, deliveries apart (see receipt.py).

Every one of them needs the current attempt, its own fencing token and a live lease (LEASE-02), and
makes only moves of the transition table (STATE-04).
"""

from dataclasses import replace

from tenure.contract.codes import Code, Reason
from tenure.contract.states import ATTEMPT_MOVES, AttemptState, TaskState
from tenure.coordinator.core.commands import (
    Accept,
    ConfirmCancel,
    Fail,
    ReceiveCancel,
    Reject,
    Start,
    Take,
)
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
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
    task_became,
    unchanged,
)
from tenure.coordinator.core.outcomes import End, consequence, end_of_failure, suspect
from tenure.coordinator.core.rows import AttemptRow, TaskRow
from tenure.coordinator.core.snapshot import LeasePolicy, Minted, Snapshot

_CANCELLED_BEFORE_IT_BEGAN = Refused(
    Code.CANCEL_REQUESTED, "the task is no longer wanted: confirm the cancellation"
)
_NOBODY_ASKED = Refused(Code.WRONG_STATE, "nobody asked to cancel this task")


def leading_to(state: AttemptState) -> frozenset[AttemptState]:
    """States from which an attempt may move to ``state``."""
    return frozenset(before for before, following in ATTEMPT_MOVES.items() if state in following)


_UNDER_WAY = leading_to(AttemptState.CANCELLED) - {AttemptState.SUBMITTED}


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
    if found[0].cancel_requested_at is not None:
        return _CANCELLED_BEFORE_IT_BEGAN
    return _advance(snapshot, *found, (AttemptState.RUNNING,), command.actor, minted)


def take(command: Take, snapshot: Snapshot, now: int, minted: Minted) -> Decision:
    """submitted → accepted → running in one commit with an event for each, or the second alone."""
    states = leading_to(AttemptState.ACCEPTED) | leading_to(AttemptState.RUNNING)
    found = find_authorized(command, snapshot, now, states)
    if isinstance(found, Refused):
        return found
    if found[0].cancel_requested_at is not None:
        return _CANCELLED_BEFORE_IT_BEGAN
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
        reply=replace(_reply(task, attempt, steps[-1], task.state), suspect=suspect(task)),
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

    A retry under the policy is a new attempt of the same task (STATE-05). How long it waits is
    drawn once and stored with the rows, so that any number of replicas keep to it.
    """
    found = find_authorized(command, snapshot, now, leading_to(AttemptState.FAILED))
    if isinstance(found, Refused):
        return found
    task, attempt = found
    return _ended_by_report(
        snapshot,
        task,
        attempt,
        AttemptState.FAILED,
        reason=command.reason,
        message=command.message,
        change=consequence(
            task,
            end_of_failure(command.reason, retryable=command.retryable),
            policy,
            minted.jitter,
            reason=command.reason,
            message=command.message,
            asked_delay=command.retry_delay,
        ),
        actor=command.actor,
        minted=minted,
    )


def reject(
    command: Reject, snapshot: Snapshot, now: int, minted: Minted, policy: LeasePolicy
) -> Decision:
    """submitted → rejected: not a failure, another node may take the task. This start of the node
    is not asked again (STATE-05)."""
    found = find_authorized(command, snapshot, now, leading_to(AttemptState.REJECTED))
    if isinstance(found, Refused):
        return found
    task, attempt = found
    # A node that drains has nothing against the task, and gets nothing new anyway.
    rejected_by = task.rejected_by
    if command.reason != Reason.NODE_DRAINING:
        rejected_by += (attempt.incarnation,)
    return _ended_by_report(
        snapshot,
        task,
        attempt,
        AttemptState.REJECTED,
        reason=command.reason,
        message=command.message,
        change=replace(
            consequence(task, End.REJECTED, policy, minted.jitter), rejected_by=rejected_by
        ),
        actor=command.actor,
        minted=minted,
    )


def receive_cancel(
    command: ReceiveCancel, snapshot: Snapshot, now: int, minted: Minted
) -> Decision:
    """Record that the executor has heard of a cancellation: requested, delivered, confirmed."""
    found = find_authorized(command, snapshot, now, _UNDER_WAY)
    if isinstance(found, Refused):
        return found
    task, attempt = found
    if task.cancel_requested_at is None:
        return _NOBODY_ASKED
    reply = _reply(task, attempt, attempt.state, task.state)
    if task.cancel_delivered_at is not None:
        return Answered(reply, task.cancel_delivered_at)
    return Accepted(
        reads=reads_of(snapshot, task, attempt, lease_live=True),
        reply=reply,
        writes=(replace(unchanged(task), sequence=task.sequence + 1, cancel_delivered=True),),
        events=(
            task_became(
                task,
                task.state,
                event_id=minted.event_ids[0],
                epoch=snapshot.epoch,
                actor=command.actor,
                reason=Reason.CANCEL_DELIVERED,
                attempt_id=attempt.attempt_id,
            ),
        ),
    )


def confirm_cancel(
    command: ConfirmCancel, snapshot: Snapshot, now: int, minted: Minted, policy: LeasePolicy
) -> Decision:
    """accepted or running → cancelled, when that was asked for; the task ends cancelled."""
    found = find_authorized(command, snapshot, now, _UNDER_WAY)
    if isinstance(found, Refused):
        return found
    task, attempt = found
    if task.cancel_requested_at is None:
        return _NOBODY_ASKED
    return _ended_by_report(
        snapshot,
        task,
        attempt,
        AttemptState.CANCELLED,
        reason=Reason.CANCEL_REQUESTED,
        message=None,
        change=consequence(task, End.CANCEL_CONFIRMED, policy, minted.jitter),
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
        AttemptChanged(
            attempt.attempt_id, state, reason, message, attempt.sequence + 1, change.delay
        ),
        change,
    )
    events: tuple[Happened, ...] = (
        attempt_became(
            task,
            attempt,
            state,
            event_id=minted.event_ids[0],
            epoch=snapshot.epoch,
            actor=actor,
            reason=reason,
            retry_delay=change.delay,
        ),
    )
    if change.state is not task.state:
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
        policy_version=attempt.policy_version,
        cancel_requested=task.cancel_requested_at is not None,
        state_version=task.version,
        generation=task.generation,
    )
