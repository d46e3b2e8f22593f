"""Rows as a decision finds them, without a database: a task, its attempt, a node."""

from dataclasses import replace
from typing import Any

from tenure.contract.ids import (
    AttemptId,
    CommandId,
    EventId,
    IncarnationId,
    LeaseId,
    NodeId,
    TaskId,
    TenantId,
    fencing_token,
)
from tenure.contract.states import AttemptState, Effects, NodeState, TaskState
from tenure.coordinator.core import commands, rows
from tenure.coordinator.core.snapshot import LeasePolicy, Minted, Snapshot

NOW = 1_000_000_000
SECOND = 1_000_000
TENANT = TenantId("default")
POLICY = LeasePolicy()
MINTED = Minted((EventId("event-1"), EventId("event-2")), 0.5)

TASK = rows.TaskRow(
    task_id=TaskId("task"),
    tenant=TENANT,
    type="sha256",
    state=TaskState.OPEN,
    version=7,
    sequence=3,
    generation=2,
    current_attempt_id=AttemptId("attempt"),
    failures=0,
    losses=0,
    not_before=None,
    deadline=None,
    effects=Effects.IDEMPOTENT,
    max_attempts=3,
    resources=rows.ResourceAmounts(cpu_millis=100, memory_bytes=100),
    cancel_requested_at=None,
    decided_at=NOW - SECOND,
)
ATTEMPT = rows.AttemptRow(
    attempt_id=AttemptId("attempt"),
    task_id=TaskId("task"),
    tenant=TENANT,
    ordinal=2,
    state=AttemptState.RUNNING,
    version=4,
    sequence=3,
    node_id=NodeId("node"),
    incarnation=IncarnationId("incarnation"),
    lease_id=LeaseId("lease"),
    fencing_token=fencing_token(1, 2),
    policy_version=1,
    lease_microseconds=30 * SECOND,
    expires_at=NOW + 10 * SECOND,
    decided_at=NOW - SECOND,
)
NODE = rows.IncarnationRow(
    incarnation=IncarnationId("incarnation"),
    tenant=TENANT,
    node_id=NodeId("node"),
    state=NodeState.ACTIVE,
    version=1,
    sequence=1,
    slots=2,
    cpu_millis=1000,
    memory_bytes=1000,
    slots_used=0,
    cpu_used=0,
    memory_used=0,
    task_types=frozenset({"sha256"}),
    last_seen_at=NOW,
)
COMMON: dict[str, Any] = {
    "command_id": CommandId("command"),
    "fingerprint": b"fingerprint",
    "tenant": TENANT,
    "actor": "somebody",
}
ABOUT_ATTEMPT: dict[str, Any] = COMMON | {
    "node_id": ATTEMPT.node_id,
    "incarnation": ATTEMPT.incarnation,
    "task_id": TASK.task_id,
    "attempt_id": ATTEMPT.attempt_id,
    "fencing_token": ATTEMPT.fencing_token,
}
CANCEL = commands.Cancel(**COMMON, task_id=TASK.task_id)
EXPIRE = commands.Expire(**COMMON, task_id=TASK.task_id)
DELIVER = commands.Deliver(**ABOUT_ATTEMPT, output_text="1", content_digest=b"1")
FAIL = commands.Fail(**ABOUT_ATTEMPT, reason="handler_failed", message="why", retryable=True)
REJECT = commands.Reject(**ABOUT_ATTEMPT, reason="unknown_type", message="why")
ALLOCATE = commands.Allocate(
    **COMMON,
    task_id=TASK.task_id,
    incarnation=NODE.incarnation,
    attempt_id=AttemptId("new attempt"),
    lease_id=LeaseId("new lease"),
)


def with_attempt(state: AttemptState, *, task: rows.TaskRow = TASK, **changes: Any) -> Snapshot:
    """A task and its latest attempt in ``state``, the task's row as it is then."""
    attempt = replace(ATTEMPT, state=state, **changes)
    match state:
        case AttemptState.SUBMITTED | AttemptState.ACCEPTED | AttemptState.RUNNING:
            pass
        case AttemptState.DELIVERED:
            task = replace(task, state=TaskState.DELIVERED)
        case _:
            task = replace(task, current_attempt_id=None)
    return Snapshot(epoch=1, task=task, attempt=attempt)


def waiting(**changes: Any) -> Snapshot:
    """A task that nobody has, and a node."""
    task = replace(TASK, current_attempt_id=None, **changes)
    return Snapshot(epoch=1, task=task, incarnation=NODE)
