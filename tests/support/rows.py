"""Rows as a decision finds them, without a database: a task, its attempt, a node."""

import json
from dataclasses import replace
from hashlib import sha256
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

PROFILE = rows.ProfileRow(
    digest="aa" * 32,
    type="sha256",
    effects=Effects.IDEMPOTENT,
    max_attempts=3,
    resources=rows.ResourceAmounts(cpu_millis=100, memory_bytes=100),
)
UNLIMITED = rows.TenantRow(
    tenant=TENANT,
    version=11,
    authorized=True,
    node_pools=frozenset({rows.ANY}),
    locations=frozenset({rows.ANY}),
    networks=frozenset({rows.ANY}),
    budget_unlimited=True,
)
TENANTS = {TENANT: UNLIMITED}
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
    cancel_delivered_at=None,
    rejected_by=(),
    decided_at=NOW - SECOND,
    profile=PROFILE,
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
    profiles=(rows.RunProfile("sha256", PROFILE.digest, Effects.IDEMPOTENT),),
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
RECEIVE = commands.ReceiveCancel(**ABOUT_ATTEMPT)
HOLD = commands.Hold(**COMMON, task_id=TASK.task_id, message="why")
RELEASE = commands.Release(**COMMON, task_id=TASK.task_id)
TRY_AGAIN = commands.TryAgain(**COMMON, task_id=TASK.task_id)
HOLD_REJECTED = commands.HoldRejected(**COMMON, task_id=TASK.task_id)
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
    return Snapshot(epoch=1, task=task, tenant=UNLIMITED, incarnation=NODE)


def declared(
    name: str,
    effects: Effects = Effects.IDEMPOTENT,
    max_attempts: int = 5,
    resources: rows.ResourceAmounts = rows.ResourceAmounts(),  # noqa: B008 - immutable
    **profile: Any,
) -> commands.TaskTypeDeclared:
    """A task type as an executor declares it; ``profile`` are further fields of its profile."""
    text = repr((name, effects, max_attempts, resources, sorted(profile.items())))
    return commands.TaskTypeDeclared(
        name=name,
        profile=rows.ProfileRow(
            digest=sha256(text.encode()).hexdigest(),
            type=name,
            effects=effects,
            max_attempts=max_attempts,
            resources=resources,
            **profile,
        ),
        profile_text=json.dumps(text),
        input_schema=None,
        output_schema=None,
    )
