"""What applications say to the coordinator, and what it answers. HTTP under ``/v1/tasks``."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from tenure.contract.codes import Code
from tenure.contract.ids import TASK_TYPE_PATTERN, TRACEPARENT_PATTERN
from tenure.contract.isolation import Enforcement
from tenure.contract.progress import ProgressView
from tenure.contract.reports import Frozen, NodeFacts, Resources
from tenure.contract.scope import Scope
from tenure.contract.states import AttemptState, Phase, TaskState

MAX_TASKS_PER_REQUEST: Final = 1000
DEFAULT_PAYLOAD_LIMIT_BYTES: Final = 256 * 1024
MAX_WAIT_SECONDS: Final = 30.0
IDEMPOTENCY_KEY_HEADER: Final = "Idempotency-Key"
TRACEPARENT_HEADER: Final = "traceparent"
REPLAYED_HEADER: Final = "Idempotent-Replayed"


def _is_traceparent(value: str) -> str:
    if TRACEPARENT_PATTERN.fullmatch(value) is None:
        raise ValueError("not in the form of W3C Trace Context")
    return value


IdempotencyKey = Annotated[str, Field(min_length=1, max_length=255)]
TraceParent = Annotated[str, AfterValidator(_is_traceparent)]
ConcurrencyKey = Annotated[str, Field(min_length=1, max_length=255)]


class TaskSubmission(Frozen):
    """``POST /v1/tasks``; the Idempotency-Key comes as a header, in a batch as a field."""

    type: str = Field(pattern=f"^{TASK_TYPE_PATTERN.pattern}$")
    input: Any = None
    priority: int = Field(default=0, ge=-100, le=100, description="higher first")
    not_before: AwareDatetime | None = None
    deadline: AwareDatetime | None = None
    resources: Resources | None = Field(default=None, description="null: as the type declares")
    concurrency_key: ConcurrencyKey | None = Field(
        default=None, description="what it counts with under limits, like a customer"
    )
    traceparent: TraceParent | None = Field(
        default=None, description="trace that its events are told under; else that of the request"
    )
    scope: Scope | None = Field(
        default=None, description="what its leases permit of what its type permits; null: all of it"
    )
    idempotency_key: IdempotencyKey | None = None


class TaskBatch(Frozen):
    """``POST /v1/tasks/batch``: each task is decided by itself."""

    tasks: tuple[TaskSubmission, ...] = Field(min_length=1, max_length=MAX_TASKS_PER_REQUEST)


class Problem(Frozen):
    """RFC 9457 problem details, ``application/problem+json``."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    next_step: str = ""
    errors: tuple[dict[str, Any], ...] = ()


class Submitted(Frozen):
    """The durable task behind a submission; the same for every repetition of its key."""

    task_id: str
    created_at: datetime
    replayed: bool = Field(description="true when the key had been seen: nothing new was created")


class BatchEntry(Frozen):
    """Outcome of one task of a batch: one of the two is set."""

    submitted: Submitted | None = None
    problem: Problem | None = None


class BatchReply(Frozen):
    """Outcomes in the order of the tasks."""

    results: tuple[BatchEntry, ...]


class ReceiptView(Frozen):
    """A delivery submission as recorded (LATE-02)."""

    receipt_id: str
    attempt_id: str
    node_id: str
    admitted: bool
    code: str | None = Field(description="why it is not active")
    admitted_at: datetime
    state_version: int
    generation: int
    fencing_token: int
    content_digest: str = Field(description="sha256 of the output's stored text, hex")
    enforced: Enforcement | None = Field(
        default=None, description="what its process was held to; null: it ran in the executor"
    )


class ReceiptContent(ReceiptView):
    """A delivery submission with what it delivered."""

    output: Any
    erased: bool = Field(default=False, description="the output was erased")


class ReceiptList(Frozen):
    """``GET /v1/tasks/{task_id}/receipts``: all of a task, in the order of their admission."""

    receipts: tuple[ReceiptContent, ...]


class ReservedAmounts(Frozen):
    """What an attempt has of its node until it ends."""

    slots: int
    cpu_millis: int
    memory_bytes: int


class LeaseScope(Frozen):
    """What a lease permits (LEASE-03): operations on objects, as patterns, and what it reserves."""

    operations: tuple[str, ...]
    objects: tuple[str, ...]
    reservation: ReservedAmounts


class AttemptView(Frozen):
    """One attempt with its lease."""

    attempt_id: str
    ordinal: int
    state: AttemptState
    reason: str | None
    message: str | None
    node_id: str
    incarnation: str
    lease_id: str
    scope: LeaseScope
    fencing_token: int
    decision: Any = Field(description="why this node: its score by factor, and among how many")
    submitted_at: datetime
    accepted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    expires_at: datetime
    retry_delay_seconds: float | None = Field(
        description="how long after ended_at the next attempt begins, at the earliest"
    )


class TimelineEntry(Frozen):
    """One event of the task or one of its attempts, in the order of the log."""

    recorded_at: datetime
    entity_type: str
    entity_id: str
    previous_state: str | None
    next_state: str
    sequence: int
    epoch: int
    reason: str | None
    actor: str
    event_id: str


class TaskSummary(Frozen):
    """A task in a list."""

    task_id: str
    type: str
    state: TaskState
    phase: Phase
    reason: str | None
    priority: int
    created_at: datetime
    not_before: datetime | None
    deadline: datetime | None
    attempts: int
    node_id: str | None


class ErasureRequest(Frozen):
    """``POST /v1/tasks/{task_id}/erase``: what an ended task was about goes for good."""

    reason: str = Field(min_length=1, max_length=2000, description="why, for people")


class Erasure(Frozen):
    """An erasure, as it was done first: input, outputs and messages of a task are gone, its record
    is there."""

    task_id: str
    erased_at: datetime
    erased_by: str
    reason: str


class TaskView(TaskSummary):
    """``GET /v1/tasks/{task_id}``: the whole story."""

    tenant: str
    message: str | None
    failures: int
    losses: int = Field(
        description="attempts whose authority ended in the middle, or handed back; one that ended"
        " its own process while it ran alone counts three times"
    )
    max_attempts: int
    effects: str
    profile_digest: str = Field(description="of the workload profile that it is frozen under")
    resources: Resources
    concurrency_key: str | None = Field(description="what it counts with under limits")
    traceparent: str | None = Field(description="of the submission")
    scope: Scope | None = Field(
        default=None,
        description="what the submission permits of what an attempt's scope permits; null: all",
    )
    cancel_requested_at: datetime | None
    cancel_delivered_at: datetime | None = Field(description="the executor has heard of it")
    cancel_confirmed_at: datetime | None = Field(
        description="the attempt has ended for it, or nobody was at it; null also where the attempt"
        " failed or vanished meanwhile"
    )
    retry_of: str | None = Field(description="the ended task that this one does again")
    retried_by: str | None = Field(description="the task that does this ended one again")
    ended_at: datetime | None
    progress: ProgressView | None = Field(
        default=None, description="null: no attempt has said anything of it"
    )
    input: Any
    output: Any = Field(description="of the delivered attempt; null before")
    attempt_list: tuple[AttemptView, ...]
    receipts: tuple[ReceiptView, ...]
    timeline: tuple[TimelineEntry, ...]
    timeline_complete: bool = Field(
        default=True, description="false: its first events are no longer kept"
    )
    erasure: Erasure | None = Field(
        default=None, description="who erased its input, outputs and messages; null: nobody"
    )


class TaskResult(Frozen):
    """``GET /v1/tasks/{task_id}/result?wait=``: the short form that waiting clients read."""

    task_id: str
    state: TaskState
    phase: Phase
    reason: str | None
    message: str | None
    attempt_id: str | None
    output: Any
    erased: bool = Field(default=False, description="it was delivered, and its output was erased")


class TaskList(Frozen):
    """``GET /v1/tasks``: newest first. ``next`` goes into ``?after=`` for the following page."""

    tasks: tuple[TaskSummary, ...]
    next: str | None


class CancelReply(Frozen):
    """``requested``: an attempt is under way and must confirm, or its lease must end first."""

    task_id: str
    outcome: Literal["cancelled", "requested", "already_ended"]
    state: TaskState


class HoldRequest(Frozen):
    """``POST /v1/tasks/{task_id}/hold``: it begins nothing until it is released."""

    reason: str = Field(min_length=1, max_length=2000, description="why, for people")


class InterventionReply(Frozen):
    """What an operator's word made of a task. Saying it again changes nothing more."""

    task_id: str
    state: TaskState


class RetryReply(InterventionReply):
    """``waiting``: the task waits for a node now. ``submitted_again``: it had ended, and
    ``new_task_id`` does the same again, the same one however often it is asked for."""

    outcome: Literal["waiting", "submitted_again"]
    new_task_id: str | None = None


class StreamView(Frozen):
    """``GET /v1/streams/{type}/{id}?after=``: events as published, in order."""

    entity_type: str
    entity_id: str
    state: str | None = Field(description="current state of the entity; null when unknown")
    epoch: int
    sequence: int
    events: tuple[Any, ...]


class IntakeEntry(Frozen):
    """What an application asked for in a transaction of its own, and what became of it."""

    intake_id: int
    task_id: str
    type: str
    state: Literal["waiting", "taken", "refused"]
    code: str | None = Field(description="why it was refused")
    message: str | None
    idempotency_key: str | None
    priority: int
    not_before: datetime | None
    deadline: datetime | None
    enqueued_by: str = Field(description="the login of the transaction")
    created_at: datetime
    decided_at: datetime | None


class IntakeList(Frozen):
    """``GET /v1/intake``: newest first. ``next`` goes into ``?after=`` for the following page."""

    entries: tuple[IntakeEntry, ...]
    next: int | None


class IntakeRetry(Frozen):
    """``POST /v1/intake/retry``: let refused rows be decided anew; null: of any code or type."""

    code: Code | None = None
    type: str | None = Field(default=None, pattern=f"^{TASK_TYPE_PATTERN.pattern}$")


class IntakeRetried(Frozen):
    """How many rows wait once more: at most 10,000 at a time, the oldest first."""

    retried: int


class NodeExecutable(Frozen):
    """The program that a node runs."""

    name: str
    version: str
    digest: str
    withdrawn: bool = Field(description="the node is given nothing")


class NodeView(Frozen):
    """One incarnation of a node."""

    node_id: str
    incarnation: str
    state: str
    software: str
    protocol_version: int
    slots: int
    slots_used: int
    resources: Resources | None
    resources_used: Resources
    task_types: tuple[str, ...]
    profiles: dict[str, str] = Field(description="digest of the profile of each task type")
    concurrency: dict[str, int] = Field(
        default={}, description="so many tasks of these types at once, however many slots"
    )
    facts: NodeFacts = Field(description="what counts of what was stated about it")
    executable: NodeExecutable | None
    registered_at: datetime
    last_seen_at: datetime
    seconds_since_seen: float
    under_review: bool = Field(description="heartbeats are missing: it gets nothing new")


class NodeList(Frozen):
    """``GET /v1/nodes``."""

    nodes: tuple[NodeView, ...]


class IdentityView(Frozen):
    """``GET /v1/identity``: who a token stands for."""

    name: str = Field(description="the actor of every event that its requests cause")
    tenant: str
    role: str = Field(description="application, executor, operator or read_only")


class ShardStatus(Frozen):
    """Cursor of one shard."""

    shard: int
    position: int
    owner: str | None
    claimed_until: datetime | None
    lag_rows: int = Field(description="not published yet, counted up to 10,000")
    lag_seconds: float = Field(description="age of the oldest of these")
    parked: int = Field(description="messages that could not be published and are set aside")


class PartitionView(Frozen):
    """A part of the log: from one position up to, not including, another."""

    name: str
    first_position: int
    end_position: int
    oldest_at: datetime | None = Field(description="when its first row was recorded; null: empty")
    rows: int = Field(description="estimated")
    bytes: int


class OutboxStatus(Frozen):
    """``GET /v1/outbox``: how far publishing is behind the log, and how large that is."""

    head: int = Field(description="the last position of the log")
    lag_rows: int
    oldest_unpublished_seconds: float
    parked: int = Field(description="messages that could not be published and are set aside")
    needed_from: int = Field(
        description="the first position that has not been published, or is read by a replay; after"
        " the head: everything has"
    )
    bytes: int = Field(description="of the log with its indexes, on disk")
    kept_since: datetime | None = Field(description="when the first row that is kept was recorded")
    keep_seconds: int | None = Field(description="what the retention policy says; null: for ever")
    rows_beyond_partitions: int = Field(
        description="0, or nobody made partitions in time; counted up to 10,000"
    )
    partitions: tuple[PartitionView, ...]
    shards: tuple[ShardStatus, ...]
