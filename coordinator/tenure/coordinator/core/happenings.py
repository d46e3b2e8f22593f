"""Constructors of events and changes, so that impossible mixtures of fields cannot be built."""

from dataclasses import replace

from tenure.contract.ids import AttemptId, EventId, IncarnationId, TaskId
from tenure.contract.states import AttemptState, EntityType, NodeState, TaskState
from tenure.coordinator.core.decisions import Happened, TaskChanged
from tenure.coordinator.core.rows import AttemptRow, IncarnationRow, TaskRow


def task_became(
    task: TaskRow,
    next_state: TaskState,
    *,
    event_id: EventId,
    epoch: int,
    actor: str,
    reason: str | None,
    cancel_requested: bool | None = None,
    to_node: IncarnationId | None = None,
    attempt_id: AttemptId | None = None,
) -> Happened:
    """The next event of a task's stream."""
    return Happened(
        event_id=event_id,
        entity_type=EntityType.TASK,
        entity_id=task.task_id,
        tenant=task.tenant,
        epoch=epoch,
        sequence=task.sequence + 1,
        actor=actor,
        previous_state=task.state.value,
        next_state=next_state.value,
        task_id=task.task_id,
        attempt_id=attempt_id,
        reason=reason,
        task_type=task.type,
        cancel_requested=cancel_requested,
        to_node=to_node,
        traceparent=task.traceparent,
    )


def attempt_became(
    task: TaskRow,
    attempt: AttemptRow,
    next_state: AttemptState,
    *,
    event_id: EventId,
    epoch: int,
    actor: str,
    reason: str | None = None,
    receipt_id: str | None = None,
    retry_delay: int | None = None,
) -> Happened:
    """The next event of an attempt's stream."""
    return Happened(
        event_id=event_id,
        entity_type=EntityType.ATTEMPT,
        entity_id=attempt.attempt_id,
        tenant=task.tenant,
        epoch=epoch,
        sequence=attempt.sequence + 1,
        actor=actor,
        previous_state=attempt.state.value,
        next_state=next_state.value,
        task_id=TaskId(task.task_id),
        attempt_id=attempt.attempt_id,
        reason=reason,
        task_type=task.type,
        node_id=attempt.node_id,
        incarnation=attempt.incarnation,
        fencing_token=attempt.fencing_token,
        ordinal=attempt.ordinal,
        receipt_id=receipt_id,
        retry_delay=retry_delay,
        traceparent=task.traceparent,
    )


def after(event: Happened, next_state: AttemptState, event_id: EventId) -> Happened:
    """The event that follows ``event`` in the same stream and the same commit."""
    return replace(
        event,
        event_id=event_id,
        sequence=event.sequence + 1,
        previous_state=event.next_state,
        next_state=next_state.value,
    )


def node_became(
    node: IncarnationRow,
    next_state: NodeState,
    *,
    event_id: EventId,
    epoch: int,
    actor: str,
    reason: str | None = None,
) -> Happened:
    """The next event of an incarnation's stream."""
    return Happened(
        event_id=event_id,
        entity_type=EntityType.NODE,
        entity_id=node.incarnation,
        tenant=node.tenant,
        epoch=epoch,
        sequence=node.sequence + 1,
        actor=actor,
        previous_state=node.state.value,
        next_state=next_state.value,
        node_id=node.node_id,
        incarnation=node.incarnation,
        reason=reason,
    )


def unchanged(task: TaskRow) -> TaskChanged:
    """The changeable columns as they are; ``replace`` the ones that change."""
    return TaskChanged(
        task_id=task.task_id,
        state=task.state,
        reason=None,
        message=None,
        sequence=task.sequence,
        generation=task.generation,
        current_attempt_id=task.current_attempt_id,
        failures=task.failures,
        not_before=task.not_before,
        cancel_requested=task.cancel_requested_at is not None,
        losses=task.losses,
        cancel_delivered=task.cancel_delivered_at is not None,
        rejected_by=task.rejected_by,
    )


def ended(task: TaskRow, state: TaskState, reason: str | None, message: str | None) -> TaskChanged:
    """The task ends; an event of its stream goes with it."""
    return replace(
        unchanged(task),
        state=state,
        reason=reason,
        message=message,
        sequence=task.sequence + 1,
        current_attempt_id=task.current_attempt_id if state is TaskState.DELIVERED else None,
    )
