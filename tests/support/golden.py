"""Golden messages: one of each kind of event that the coordinator records, with fixed content.

They are made by what makes the real ones: an event of the core, encoded by the store and stamped as
the commit does it.
"""

from dataclasses import replace
from datetime import UTC, datetime

from tenure.contract.codec import stamp
from tenure.contract.codes import Reason
from tenure.contract.ids import (
    AttemptId,
    EventId,
    IncarnationId,
    NodeId,
    TaskId,
    TenantId,
    fencing_token,
)
from tenure.contract.states import AttemptState, EntityType, NodeState, TaskState
from tenure.coordinator.core.decisions import Happened
from tenure.coordinator.encoding import encode

_RECORDED_AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
_TASK = TaskId("019c0000-0000-7000-8000-000000000001")
_ATTEMPT = AttemptId("019c0000-0000-7000-8000-000000000002")
_INCARNATION = IncarnationId("019c0000-0000-4000-8000-000000000003")
_RECEIPT = "019c0000-0000-7000-8000-000000000004"

_OF_TASK = Happened(
    event_id=EventId(""),
    entity_type=EntityType.TASK,
    entity_id=_TASK,
    tenant=TenantId("default"),
    epoch=1,
    sequence=2,
    actor="application",
    previous_state=TaskState.OPEN,
    next_state=TaskState.OPEN,
    task_id=_TASK,
    task_type="sha256",
)
_OF_ATTEMPT = Happened(
    event_id=EventId(""),
    entity_type=EntityType.ATTEMPT,
    entity_id=_ATTEMPT,
    tenant=TenantId("default"),
    epoch=1,
    sequence=4,
    actor="executor",
    previous_state=AttemptState.RUNNING,
    next_state=AttemptState.RUNNING,
    task_id=_TASK,
    attempt_id=_ATTEMPT,
    task_type="sha256",
    node_id=NodeId("node-1"),
    incarnation=_INCARNATION,
    fencing_token=fencing_token(1, 1),
    ordinal=1,
)
_OF_NODE = Happened(
    event_id=EventId(""),
    entity_type=EntityType.NODE,
    entity_id=_INCARNATION,
    tenant=TenantId("default"),
    epoch=1,
    sequence=2,
    actor="executor",
    previous_state=NodeState.ACTIVE,
    next_state=NodeState.GONE,
    node_id=NodeId("node-1"),
    incarnation=_INCARNATION,
)

_EVENTS = {
    "task open": replace(_OF_TASK, sequence=1, previous_state=None),
    "task open, cancellation requested": replace(
        _OF_TASK, attempt_id=_ATTEMPT, reason=Reason.CANCEL_REQUESTED, cancel_requested=True
    ),
    "task open, cancellation delivered": replace(
        _OF_TASK,
        sequence=3,
        actor="executor",
        attempt_id=_ATTEMPT,
        reason=Reason.CANCEL_DELIVERED,
    ),
    "task open, released": replace(
        _OF_TASK,
        sequence=3,
        actor="operator",
        previous_state=TaskState.HELD,
        reason=Reason.RELEASED,
    ),
    "task held": replace(
        _OF_TASK,
        actor="sweeper",
        next_state=TaskState.HELD,
        reason=Reason.LOST_WITH_POSSIBLE_EFFECT,
    ),
    "task delivered": replace(
        _OF_TASK, actor="executor", next_state=TaskState.DELIVERED, attempt_id=_ATTEMPT
    ),
    "task failed": replace(
        _OF_TASK, actor="executor", next_state=TaskState.FAILED, reason=Reason.ATTEMPTS_EXHAUSTED
    ),
    "task cancelled": replace(
        _OF_TASK, next_state=TaskState.CANCELLED, reason=Reason.CANCEL_REQUESTED
    ),
    "task expired": replace(
        _OF_TASK, actor="sweeper", next_state=TaskState.EXPIRED, reason=Reason.DEADLINE_PASSED
    ),
    "attempt submitted": replace(
        _OF_ATTEMPT,
        sequence=1,
        actor="scheduler",
        previous_state=None,
        next_state=AttemptState.SUBMITTED,
    ),
    "attempt accepted": replace(
        _OF_ATTEMPT,
        sequence=2,
        previous_state=AttemptState.SUBMITTED,
        next_state=AttemptState.ACCEPTED,
    ),
    "attempt running": replace(_OF_ATTEMPT, sequence=3, previous_state=AttemptState.ACCEPTED),
    "attempt delivered": replace(
        _OF_ATTEMPT, next_state=AttemptState.DELIVERED, receipt_id=_RECEIPT
    ),
    "attempt rejected": replace(
        _OF_ATTEMPT,
        sequence=2,
        previous_state=AttemptState.SUBMITTED,
        next_state=AttemptState.REJECTED,
        reason=Reason.UNKNOWN_TYPE,
    ),
    "attempt failed": replace(
        _OF_ATTEMPT,
        next_state=AttemptState.FAILED,
        reason=Reason.HANDLER_FAILED,
        retry_delay=2_000_000,
    ),
    "attempt cancelled": replace(
        _OF_ATTEMPT, next_state=AttemptState.CANCELLED, reason=Reason.CANCEL_REQUESTED
    ),
    "attempt expired": replace(
        _OF_ATTEMPT,
        actor="sweeper",
        next_state=AttemptState.EXPIRED,
        reason=Reason.LEASE_EXPIRED,
    ),
    "node active": replace(_OF_NODE, sequence=1, previous_state=None, next_state=NodeState.ACTIVE),
    "node draining": replace(_OF_NODE, next_state=NodeState.DRAINING),
    "node quarantined": replace(
        _OF_NODE, next_state=NodeState.QUARANTINED, reason="its key has leaked"
    ),
    "node gone": replace(_OF_NODE, sequence=3, previous_state=NodeState.DRAINING),
    "task open, of a trace": replace(
        _OF_TASK,
        sequence=1,
        previous_state=None,
        traceparent="00-5f0c9a1e7d3b48269c41d0e2f7a8b613-4e1d9c20b7a35f68-01",
    ),
}


def messages() -> dict[str, bytes]:
    """Bytes of each message by a name for people; event ids count up."""
    return {
        name: stamp(
            encode(replace(event, event_id=EventId(f"019c0000-0000-4000-8000-{number:012x}"))),
            _RECORDED_AT,
        )
        for number, (name, event) in enumerate(_EVENTS.items(), start=0x101)
    }
