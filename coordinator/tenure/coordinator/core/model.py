"""What decisions are made of: rows as loaded, commands as received, and what a decision gives back.

Instants are integer microseconds since 1970 (UTC) on the authority's clock, durations integer
microseconds, ids strings, JSON text. Nothing here reads a clock, mints an id or does I/O.

A decision returns ``Refused`` or ``Accepted``. The guards of an accepted item are the versions of
every row the decision read, plus every time bound it relied on: the commit checks them again under
the row locks, with the clock read after the last lock (LEASE-05), and what no longer holds is
loaded and decided anew.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from tenure.contract.codes import Code, Reason
from tenure.contract.ids import (
    AttemptId,
    CommandId,
    EventId,
    FencingToken,
    IncarnationId,
    LeaseId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import AttemptState, Effects, EntityType, NodeState, TaskState

# Rows, as loaded ------------------------------------------------------------------------------


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
class StoredCommand:
    """Outcome of a command that was seen before."""

    command_id: CommandId
    tenant: TenantId
    fingerprint: bytes
    reply: "Reply"
    at: int


@dataclass(frozen=True, slots=True)
class TaskTypeRow:
    """A declaration as registered last; copied into each task at its submission."""

    name: str
    effects: Effects
    max_attempts: int
    resources: ResourceAmounts


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything one decision may depend on, read by one statement."""

    epoch: int
    command: StoredCommand | None = None
    task_type: TaskTypeRow | None = None
    task: TaskRow | None = None
    attempt: AttemptRow | None = None  # the presented one, else the task's current one
    incarnation: IncarnationRow | None = None
    previous_incarnation: IncarnationRow | None = None  # current holder of the node's name
    same_content_receipt: ReceiptRow | None = None
    enqueued_task_id: TaskId | None = None  # what the submission's key stands for in the intake
    intake_waiting: bool = False  # the command's row of the intake has not been decided


# Commands -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """Whose command, and the id under which its outcome is stored.

    ``command_id`` is the caller's; ``fingerprint`` is a digest of the content, so that the same id
    with other content is a conflict and not a repetition.
    """

    command_id: CommandId
    fingerprint: bytes
    tenant: TenantId
    actor: str


@dataclass(frozen=True, slots=True)
class Submit(Command):
    """An application asks for a task."""

    task_id: TaskId
    type: str
    input_text: str
    priority: int
    not_before: int | None
    deadline: int | None
    resources: ResourceAmounts | None


@dataclass(frozen=True, slots=True)
class TakeIn(Submit):
    """An application asked for a task in a transaction of its own, which has committed."""

    intake_id: int


@dataclass(frozen=True, slots=True)
class RefuseIntake(Command):
    """What a row of the intake asks for is no submission. Not stored as a command."""

    task_id: TaskId
    intake_id: int
    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class Cancel(Command):
    """An application or operator no longer wants a task."""

    task_id: TaskId


@dataclass(frozen=True, slots=True)
class AttemptCommand(Command):
    """An executor reports about an attempt. ``command_id`` is its report id."""

    node_id: NodeId
    incarnation: IncarnationId
    task_id: TaskId
    attempt_id: AttemptId
    fencing_token: FencingToken


@dataclass(frozen=True, slots=True)
class Accept(AttemptCommand):
    """submitted → accepted."""


@dataclass(frozen=True, slots=True)
class Start(AttemptCommand):
    """accepted → running."""


@dataclass(frozen=True, slots=True)
class Take(AttemptCommand):
    """submitted → accepted → running, or accepted → running, in one commit."""


@dataclass(frozen=True, slots=True)
class Deliver(AttemptCommand):
    """Output. ``content_digest``: sha256 of ``output_text``. The receipt id is the report id."""

    output_text: str
    content_digest: bytes


@dataclass(frozen=True, slots=True)
class Fail(AttemptCommand):
    """The work ended without output."""

    reason: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Reject(AttemptCommand):
    """The executor does not accept the attempt."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ConfirmCancel(AttemptCommand):
    """The executor confirms a requested cancellation."""


@dataclass(frozen=True, slots=True)
class Renew(AttemptCommand):
    """The executor wants more time. Not stored as a command: repeating it only renews again."""


@dataclass(frozen=True, slots=True)
class Allocate(Command):
    """The scheduler gives a waiting task to a node."""

    task_id: TaskId
    incarnation: IncarnationId
    attempt_id: AttemptId
    lease_id: LeaseId


@dataclass(frozen=True, slots=True)
class Expire(Command):
    """The sweeper ends an attempt whose authority ran out, or a waiting task past its deadline."""

    task_id: TaskId


@dataclass(frozen=True, slots=True)
class TaskTypeDeclared:
    """A task type as an executor declares it. Schemas are JSON text."""

    name: str
    effects: Effects
    max_attempts: int
    resources: ResourceAmounts
    input_schema: str | None
    output_schema: str | None


@dataclass(frozen=True, slots=True)
class Register(Command):
    """A new incarnation of a node; its predecessor under the same name is gone."""

    node_id: NodeId
    incarnation: IncarnationId
    queue: str
    software: str
    protocol_version: int
    slots: int
    cpu_millis: int | None
    memory_bytes: int | None
    task_types: tuple[TaskTypeDeclared, ...]


@dataclass(frozen=True, slots=True)
class ChangeNode(Command):
    """A node drains, or its process ends. ``next_state`` is draining or gone."""

    node_id: NodeId
    incarnation: IncarnationId
    next_state: NodeState


AnyCommand: TypeAlias = (
    Submit
    | TakeIn
    | RefuseIntake
    | Cancel
    | Accept
    | Start
    | Take
    | Deliver
    | Fail
    | Reject
    | ConfirmCancel
    | Renew
    | Allocate
    | Expire
    | Register
    | ChangeNode
)


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """Versioned terms of leases and retries; a lease records the version it was granted under."""

    version: int = 1
    lease_microseconds: int = 30_000_000
    clock_tolerance_microseconds: int = 1_000_000
    node_silence_microseconds: int = 30_000_000
    retry_base_microseconds: int = 1_000_000
    retry_cap_microseconds: int = 300_000_000


@dataclass(frozen=True, slots=True)
class Minted:
    """What a decision may need that is random: ids, and a number in [0, 1) for jitter."""

    event_ids: tuple[EventId, ...]
    jitter: float


# Decisions ------------------------------------------------------------------------------------


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
    seen_within: int | None = None  # the incarnation was heard of within these microseconds
    intake_id: int | None = None  # the row still waits


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
    type: str  # the one operation that the lease's scope permits so far
    dispatch_event_id: EventId
    resources: ResourceAmounts


@dataclass(frozen=True, slots=True)
class AttemptChanged:
    """Move an attempt. A terminal state sets its end and releases its reservation."""

    attempt_id: AttemptId
    state: AttemptState
    reason: str | None
    message: str | None
    sequence: int


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


@dataclass(frozen=True, slots=True)
class IncarnationChanged:
    """Move an incarnation to draining or gone."""

    incarnation: IncarnationId
    state: NodeState
    sequence: int


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
    retry_not_before: int | None = None
    cancel_requested: bool | None = None
    to_node: IncarnationId | None = None


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
    cancel_requested: bool = False
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
    task_type: str | None = None
