"""Rows as loaded, which decisions read.

Instants are integer microseconds since 1970 (UTC) on the authority's clock, durations integer
microseconds, ids strings, JSON text. Nothing here reads a clock, mints an id or does I/O.
"""

from dataclasses import dataclass

from tenure.contract.ids import (
    AttemptId,
    FencingToken,
    IncarnationId,
    LeaseId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import AttemptState, Effects, NodeState, TaskState


@dataclass(frozen=True, slots=True)
class ResourceAmounts:
    """Thousandths of a core, bytes, and slots."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    slots: int = 1


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as loaded. ``version`` is raised by every change, ``sequence`` by every event."""

    task_id: TaskId
    tenant: TenantId
    type: str
    state: TaskState
    version: int
    sequence: int
    generation: int
    current_attempt_id: AttemptId | None
    failures: int
    losses: int
    not_before: int | None
    deadline: int | None
    effects: Effects
    max_attempts: int
    resources: ResourceAmounts
    cancel_requested_at: int | None
    decided_at: int


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt with its lease, as loaded."""

    attempt_id: AttemptId
    task_id: TaskId
    tenant: TenantId
    ordinal: int
    state: AttemptState
    version: int
    sequence: int
    node_id: NodeId
    incarnation: IncarnationId
    lease_id: LeaseId
    fencing_token: FencingToken
    policy_version: int
    lease_microseconds: int
    expires_at: int
    decided_at: int


@dataclass(frozen=True, slots=True)
class IncarnationRow:
    """One start of one executor process. ``version`` covers eligibility, not the counters."""

    incarnation: IncarnationId
    tenant: TenantId
    node_id: NodeId
    state: NodeState
    version: int
    sequence: int
    slots: int
    cpu_millis: int | None
    memory_bytes: int | None
    slots_used: int
    cpu_used: int
    memory_used: int
    task_types: frozenset[str]
    last_seen_at: int


@dataclass(frozen=True, slots=True)
class ReceiptRow:
    """A recorded delivery submission."""

    receipt_id: str
    attempt_id: AttemptId
    admitted: bool
    code: str | None
    admitted_at: int
    state_version: int
    generation: int
    content_digest: bytes


@dataclass(frozen=True, slots=True)
class TaskTypeRow:
    """A declaration as registered last; copied into each task at its submission."""

    name: str
    effects: Effects
    max_attempts: int
    resources: ResourceAmounts
