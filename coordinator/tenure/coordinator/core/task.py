"""Decisions about the request itself: submission and cancellation."""

from dataclasses import replace

from tenure.contract.codes import Code, Reason
from tenure.contract.states import (
    TERMINAL_TASK_STATES,
    AttemptState,
    EntityType,
    TaskState,
)
from tenure.coordinator.core.commands import Cancel, Submit
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    AttemptChanged,
    Decision,
    Happened,
    Reads,
    Refused,
    Reply,
    TaskCreated,
    Write,
)
from tenure.coordinator.core.fairness import head_start
from tenure.coordinator.core.guards import reads_of
from tenure.coordinator.core.happenings import attempt_became, ended, task_became, unchanged
from tenure.coordinator.core.snapshot import Minted, Snapshot


def submit(command: Submit, snapshot: Snapshot, now: int, minted: Minted) -> Decision:
    """Create a task. The declaration of its type is copied: a later one applies to later tasks."""
    declared = snapshot.task_type
    if declared is None:
        return Refused(
            Code.UNKNOWN_TASK_TYPE, f"no executor has ever registered the type {command.type!r}"
        )
    if command.deadline is not None and command.deadline <= now:
        return Refused(Code.DEADLINE_IN_THE_PAST, "the deadline has passed already")
    if (
        command.deadline is not None
        and command.not_before is not None
        and command.not_before >= command.deadline
    ):
        return Refused(Code.INVALID_FIELD, "not_before is not before the deadline")
    # A transaction that was committed but not taken in yet has been told an id already.
    task_id = snapshot.enqueued_task_id or command.task_id
    created = TaskCreated(
        task_id=task_id,
        tenant=command.tenant,
        type=command.type,
        input_text=command.input_text,
        priority=command.priority,
        not_before=command.not_before,
        deadline=command.deadline,
        effects=declared.effects,
        max_attempts=declared.max_attempts,
        resources=command.resources or declared.resources,
        profile_digest=declared.profile_digest,
        retry_of=command.retry_of,
        head_start=head_start(command.priority),
        concurrency_key=command.concurrency_key,
        traceparent=command.traceparent,
        scope_text=command.scope_text,
    )
    event = Happened(
        event_id=minted.event_ids[0],
        entity_type=EntityType.TASK,
        entity_id=task_id,
        tenant=command.tenant,
        epoch=snapshot.epoch,
        sequence=1,
        actor=command.actor,
        previous_state=None,
        next_state=TaskState.OPEN.value,
        task_id=task_id,
        task_type=command.type,
        traceparent=command.traceparent,
    )
    return Accepted(
        reads=Reads(epoch=snapshot.epoch, task_id=task_id),
        reply=Reply("applied", task_id=task_id, task_state=TaskState.OPEN),
        writes=(created,),
        events=(event,),
    )


def cancel(command: Cancel, snapshot: Snapshot, minted: Minted) -> Decision:
    """End a task nobody works on; ask the executor of one that somebody does.

    Cancelled means confirmed (STATE-06): work under way ends when its executor confirms, delivers
    all the same, or loses its authority.
    """
    task, attempt = snapshot.task, snapshot.attempt
    if task is None or task.tenant != command.tenant:
        return Refused(Code.NOT_FOUND, "no such task")
    if task.state in TERMINAL_TASK_STATES:
        return Answered(Reply("ended", task_id=task.task_id, task_state=task.state), None)
    epoch, actor = snapshot.epoch, command.actor
    under_way = attempt is not None and attempt.state in (
        AttemptState.ACCEPTED,
        AttemptState.RUNNING,
    )
    if under_way and attempt is not None:
        requested = Reply(
            "applied", task_id=task.task_id, task_state=task.state, cancel_requested=True
        )
        if task.cancel_requested_at is not None:
            return Answered(requested, task.cancel_requested_at)
        return Accepted(
            reads=reads_of(snapshot, task, attempt),
            reply=requested,
            writes=(replace(unchanged(task), sequence=task.sequence + 1, cancel_requested=True),),
            events=(
                task_became(
                    task,
                    task.state,
                    event_id=minted.event_ids[0],
                    epoch=epoch,
                    actor=actor,
                    reason=Reason.CANCEL_REQUESTED,
                    cancel_requested=True,
                    attempt_id=attempt.attempt_id,
                    to_node=attempt.incarnation,
                ),
            ),
        )
    writes: list[Write] = [
        replace(
            ended(task, TaskState.CANCELLED, Reason.CANCEL_REQUESTED, None), cancel_requested=True
        )
    ]
    events: list[Happened] = []
    if attempt is not None:
        writes.append(
            AttemptChanged(
                attempt.attempt_id,
                AttemptState.CANCELLED,
                Reason.CANCEL_REQUESTED,
                None,
                attempt.sequence + 1,
            )
        )
        events.append(
            attempt_became(
                task,
                attempt,
                AttemptState.CANCELLED,
                event_id=minted.event_ids[0],
                epoch=epoch,
                actor=actor,
                reason=Reason.CANCEL_REQUESTED,
            )
        )
    events.append(
        task_became(
            task,
            TaskState.CANCELLED,
            event_id=minted.event_ids[1],
            epoch=epoch,
            actor=actor,
            reason=Reason.CANCEL_REQUESTED,
        )
    )
    return Accepted(
        reads=reads_of(snapshot, task, attempt),
        reply=Reply(
            "applied",
            task_id=task.task_id,
            task_state=TaskState.CANCELLED,
            cancel_requested=True,
        ),
        writes=tuple(writes),
        events=tuple(events),
    )
