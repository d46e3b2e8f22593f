"""What a decision gives back: guards, writes, events and the reply; or that nothing changes.

A decision returns ``Refused``, ``Answered`` or ``Accepted``. The guards of an accepted item are the
versions of every row the decision read, plus every time bound it relied on: the commit checks them
again under the row locks, with the clock read after the last lock (LEASE-05), and what no longer
holds is loaded and decided anew. Units as in ``rows``.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from tenure.contract.codes import Code, Reason
from tenure.contract.ids import (
    AttemptId,
    EventId,
    FencingToken,
    IncarnationId,
    LeaseId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import AttemptState, Effects, EntityType, NodeState, TaskState
from tenure.coordinator.core.commands import Executable, TaskTypeDeclared
from tenure.coordinator.core.ranking import Placement
from tenure.coordinator.core.rows import ProfileRow, ResourceAmounts


@dataclass(frozen=True, slots=True)
class Reads:
    """Guards: row versions (None: the row was not read) and time bounds of one item."""

    epoch: int
    task_id: TaskId | None = None
    task_version: int | None = None
    attempt_id: AttemptId | None = None
    attempt_version: int | None = None
    incarnation: IncarnationId | None = None
    incarnation_version: int | None = None
    node_id: NodeId | None = None
    node_incarnation: IncarnationId | None = None  # expected current one, with ``node_id``
    lease_live: bool = False  # the attempt's lease has not run out
    lease_over: bool = False  # it has
    not_before_passed: bool = False
    deadline_open: bool = False  # the task's deadline is ahead, or it has none
    deadline_passed: bool = False
    tenant_version: int | None = None  # of the item's tenant
    pause_over: int | None = None  # a pause that ends at this instant is over
    seen_within: int | None = None  # the incarnation was heard of within these microseconds
    silent_for: int | None = None  # it was not, for these microseconds at least
    intake_id: int | None = None  # the row still waits
    policy_version: int | None = None  # the policy in force
    fleet: tuple[tuple[IncarnationId, int], ...] | None = None  # active ones, all, with versions
    node_quarantined: bool | None = None  # whether the node is, with ``node_id``


@dataclass(frozen=True, slots=True)
class TaskCreated:
    """Insert a task, version 1, sequence 1."""

    task_id: TaskId
    tenant: TenantId
    type: str
    input_text: str
    priority: int
    not_before: int | None
    deadline: int | None
    effects: Effects
    max_attempts: int
    resources: ResourceAmounts
    profile_digest: str
    retry_of: TaskId | None
    head_start: int  # microseconds by which it counts as queued earlier than it was
    concurrency_key: str | None = None  # what it counts with under limits
    traceparent: str | None = None
    scope_text: str | None = None  # what its leases permit of what its type permits (LEASE-11)


@dataclass(frozen=True, slots=True)
class TaskChanged:
    """The changeable columns of a task, whole. ``ended_at`` follows from the state."""

    task_id: TaskId
    state: TaskState
    reason: str | None
    message: str | None
    sequence: int
    generation: int
    current_attempt_id: AttemptId | None
    failures: int
    not_before: int | None
    cancel_requested: bool
    delay: int | None = None  # ``not_before`` is so many microseconds after the commit's clock
    losses: int = 0
    cancel_delivered: bool = False
    rejected_by: tuple[IncarnationId, ...] = ()
    profile: ProfileRow | None = None  # another one, with the two that follow from it
    resources: ResourceAmounts | None = None


@dataclass(frozen=True, slots=True)
class AttemptCreated:
    """Insert an attempt with its lease and its reservation (LEASE-01)."""

    attempt_id: AttemptId
    task_id: TaskId
    tenant: TenantId
    ordinal: int
    node_id: NodeId
    incarnation: IncarnationId
    lease_id: LeaseId
    fencing_token: FencingToken
    policy_version: int
    lease_microseconds: int
    operations: tuple[str, ...]  # patterns: what the lease permits
    objects: tuple[str, ...]
    dispatch_event_id: EventId
    resources: ResourceAmounts
    placement: Placement | None  # why this node, for people
    cost_minor: int  # held of the tenant's budget until the attempt ends, spent if it delivers
    type: str  # of the task: with its key, what it counts with under limits
    concurrency_key: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptChanged:
    """Move an attempt. A terminal state sets its end and releases its reservation."""

    attempt_id: AttemptId
    state: AttemptState
    reason: str | None
    message: str | None
    sequence: int
    retry_delay: int | None = None  # microseconds until the next attempt may begin, as drawn


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """Extend a lease to the commit's clock plus its own duration, and record that (LEASE-06)."""

    attempt_id: AttemptId
    renewed_by: str


@dataclass(frozen=True, slots=True)
class ReceiptRecorded:
    """Insert a receipt; ``code`` is None for the admitted one."""

    receipt_id: str
    tenant: TenantId
    task_id: TaskId
    attempt_id: AttemptId
    node_id: NodeId
    incarnation: IncarnationId
    code: str | None
    state_version: int
    generation: int
    fencing_token: FencingToken
    content_digest: bytes
    output_text: str
    enforced_text: str | None = None


@dataclass(frozen=True, slots=True)
class IncarnationCreated:
    """Insert an incarnation, make it the node's current one, and register its task types."""

    incarnation: IncarnationId
    tenant: TenantId
    node_id: NodeId
    queue: str
    software: str
    protocol_version: int
    slots: int
    cpu_millis: int | None
    memory_bytes: int | None
    task_types: tuple[TaskTypeDeclared, ...]
    facts_text: str
    executable: Executable | None
    state: NodeState
    concurrency: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class IncarnationChanged:
    """Move an incarnation."""

    incarnation: IncarnationId
    state: NodeState
    sequence: int


@dataclass(frozen=True, slots=True)
class NodeQuarantined:
    """The node of the guards is taken out of service, or with no reason let back."""

    reason: str | None
    by: str


@dataclass(frozen=True, slots=True)
class ReviewChanged:
    """A health review of an incarnation is opened, or with an ``outcome`` closed."""

    incarnation: IncarnationId
    outcome: str | None = None
    by: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class IntakeDecided:
    """A row of the intake became a task, or with a ``code`` did not."""

    intake_id: int
    code: str | None = None
    message: str | None = None


Write: TypeAlias = (
    TaskCreated
    | TaskChanged
    | AttemptCreated
    | AttemptChanged
    | LeaseRenewed
    | ReceiptRecorded
    | IncarnationCreated
    | IncarnationChanged
    | NodeQuarantined
    | ReviewChanged
    | IntakeDecided
)


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of a decision, before it is encoded.

    ``to_node``: a copy of the event also goes to this incarnation's queue, where a route is
    required.
    """

    event_id: EventId
    entity_type: EntityType
    entity_id: str
    tenant: TenantId
    epoch: int
    sequence: int
    actor: str
    previous_state: str | None
    next_state: str
    task_id: TaskId | None = None
    attempt_id: AttemptId | None = None
    reason: str | None = None
    task_type: str | None = None
    node_id: NodeId | None = None
    incarnation: IncarnationId | None = None
    fencing_token: FencingToken | None = None
    ordinal: int | None = None
    receipt_id: str | None = None
    retry_delay: int | None = None  # microseconds
    cancel_requested: bool | None = None
    to_node: IncarnationId | None = None
    traceparent: str | None = None  # of the task's submission


@dataclass(frozen=True, slots=True)
class Reply:
    """What the caller is told. Stored with the command; ``expires_at`` becomes what remains at the
    moment of answering."""

    outcome: str  # "applied"; "recorded": kept as evidence; "ended": there was nothing to do;
    # "refused": a row of the intake
    code: str | None = None
    message: str | None = None
    task_id: TaskId | None = None
    task_state: TaskState | None = None
    attempt_state: AttemptState | None = None
    expires_at: int | None = None
    policy_version: int | None = None  # that the lease was granted under, with ``expires_at``
    cancel_requested: bool = False
    suspect: bool = False
    receipt_id: str | None = None
    state_version: int | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing changes. Not stored: the same command may be accepted later."""

    code: Code
    message: str
    detail: Reason | None = None


@dataclass(frozen=True, slots=True)
class HistoryLost(Refused):
    """What the command presents can only have been granted by a later state of this authority: the
    database has lost history (LEASE-04). Nothing is granted from now on."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Nothing changes because it already happened under another command id: the original answer."""

    reply: Reply
    at: int | None  # when; None: the moment of answering


@dataclass(frozen=True, slots=True)
class Accepted:
    """Guards, writes, events and the reply of one item; applied whole or not at all.

    ``stored``: the reply is kept under the command's id, for who asks again.
    """

    reads: Reads
    reply: Reply
    writes: tuple[Write, ...] = ()
    events: tuple[Happened, ...] = field(default=())
    stored: bool = True


Decision: TypeAlias = Refused | Answered | Accepted


class ItemOutcome(IntEnum):
    """What the commit says of one item."""

    APPLIED = 0
    STALE = 1  # a guard did not hold: load and decide again
    SEEN_BEFORE = 2  # the stored outcome is the answer: load again
    CONFLICT = 3  # the same command id with other content
    AUTHORITY_UNCONFIRMED = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a lane answers for one command.

    ``at`` is when it was decided first, ``now`` the authority's clock when this answer was read,
    never before ``at``: ``reply.expires_at - now`` is the authority that remains, and never more
    than was granted, wherever the clock was set meanwhile. ``refused`` is set instead of ``reply``.
    """

    now: int
    at: int
    reply: Reply | None = None
    refused: Refused | None = None
    replayed: bool = False
    input_text: str | None = None  # with accept and take
    scope_text: str | None = None  # with these too
    narrowed_text: str | None = None  # and what the submission permits of it
    traceparent: str | None = None  # and the submission's
    checkpoint_text: str | None = None  # and of an earlier attempt
    task_type: str | None = None
