"""What executors say to the coordinator, and what it answers. HTTP under ``/v1/nodes``.

Durations are seconds and count from *before* the request was sent (LEASE-09): a reply gives no wall
time to trust, except ``expires_at``, which guards hand to receivers as the authority granted it.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tenure.contract import quantities
from tenure.contract.ids import GENERATION_LIMIT, NODE_PATTERN, TASK_TYPE_PATTERN
from tenure.contract.isolation import (
    MAX_TIME_LIMIT_SECONDS,
    Enforcement,
    Limits,
    OnAuthorityLoss,
    RunsIn,
)
from tenure.contract.quantities import MAX_CPU_MILLIS, MAX_MEMORY_BYTES
from tenure.contract.scope import UNLIMITED, Scope
from tenure.contract.states import AttemptState, Effects, Match, NodeState

PROTOCOL_VERSIONS: Final = (1, 1)
"""Lowest and highest executor protocol version that this release speaks, both included."""
MAX_REPORTS_PER_REQUEST: Final = 256
MAX_RENEWALS_PER_REQUEST: Final = 1024
MAX_REASON_CHARACTERS: Final = 2000
MAX_RETRY_AFTER_SECONDS: Final = 30 * 86_400
"""A retry cannot be asked for later than that."""
MAX_SLOTS: Final = 100_000
"""Tasks at once on one node."""
MAX_COST_MINOR: Final = 10**15

Uuid = Annotated[
    str,
    Field(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"),
]
Token = Annotated[int, Field(ge=GENERATION_LIMIT, lt=2**53)]


class Frozen(BaseModel):
    """Base of everything that crosses a border: immutable, and unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _with_quantities(schema: dict[str, Any]) -> None:
    """The schema of Resources with the quantities that may be sent in the place of the numbers."""
    schema["properties"] |= {
        "cpu": {
            "type": "string",
            "description": "instead of cpu_millis: 500m, 2",
            "writeOnly": True,
        },
        "memory": {
            "type": "string",
            "description": "instead of memory_bytes: 2Gi, 512M",
            "writeOnly": True,
        },
    }


class Resources(Frozen):
    """What a task needs or a node offers, besides one slot for each task.

    Quantities may be given as Kubernetes writes them: ``Resources.of(cpu="500m", memory="2Gi")``,
    and in JSON ``{"cpu": "500m", "memory": "2Gi"}``.
    """

    model_config = ConfigDict(json_schema_extra=_with_quantities)

    cpu_millis: int = Field(default=0, ge=0, le=MAX_CPU_MILLIS, description="thousandths of a core")
    memory_bytes: int = Field(default=0, ge=0, le=MAX_MEMORY_BYTES)

    @classmethod
    def of(cls, *, cpu: str | int | float = 0, memory: str | int = 0) -> Self:
        """From quantities. Raises ValueError for what is none."""
        return cls(
            cpu_millis=quantities.cpu_millis(cpu), memory_bytes=quantities.memory_bytes(memory)
        )

    @model_validator(mode="before")
    @classmethod
    def _read_quantities(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not {"cpu", "memory"} & value.keys():
            return value
        numbers = dict(value)
        for name, field, read in _QUANTITIES:
            if name not in numbers:
                continue
            if field in numbers:
                raise ValueError(f"{name} and {field} are given both")
            quantity = numbers.pop(name)
            if not isinstance(quantity, str):
                raise ValueError(f"{name} is a text like {'500m' if name == 'cpu' else '2Gi'}")
            numbers[field] = read(quantity)
        return numbers


_QUANTITIES: Final[tuple[tuple[str, str, Callable[[str], int]], ...]] = (
    ("cpu", "cpu_millis", quantities.cpu_millis),
    ("memory", "memory_bytes", quantities.memory_bytes),
)


Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
"""A name of a pool, a location, a zone, a network or a label."""
LabelValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]{0,127}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, hexadecimal")]


class Requirements(Frozen):
    """What a workload demands of the nodes that run it, besides resources."""

    locations: tuple[Word, ...] | None = Field(
        default=None, min_length=1, max_length=100, description="any of these; null: anywhere"
    )
    networks: tuple[Word, ...] = Field(default=(), max_length=100, description="all of these")
    labels: dict[Word, LabelValue] = Field(
        default={}, max_length=100, description="all of these, each with this value"
    )


class TaskTypeDeclaration(Frozen):
    """A task type as an executor declares it. All of it is the workload profile, which is frozen in
    each task at its submission."""

    name: str = Field(pattern=f"^{TASK_TYPE_PATTERN.pattern}$")
    effects: Effects = Effects.IDEMPOTENT
    max_attempts: int = Field(
        default=5, ge=1, le=1000, description="failures until it stays failed"
    )
    resources: Resources = Resources()
    requirements: Requirements = Requirements()
    match: Match = Field(
        default=Match.COMPATIBLE,
        description="whether later builds may take tasks that were submitted before",
    )
    cost_minor: int = Field(
        default=0,
        ge=0,
        le=MAX_COST_MINOR,
        description="held of the tenant's budget by an attempt",
    )
    runs_in: RunsIn = Field(
        default="executor", description="process and command: in a process of its own"
    )
    time_limit_seconds: float | None = Field(
        default=None, gt=0, le=MAX_TIME_LIMIT_SECONDS, description="of one attempt; null: none"
    )
    limits: Limits = Limits()
    on_authority_loss: OnAuthorityLoss = Field(
        default="cancel", description="isolate: it ends by itself, its output is kept as evidence"
    )
    scope: Scope = Field(
        default=UNLIMITED, description="operations and objects that its leases permit"
    )
    program_digest: Digest | None = Field(
        default=None, description="SHA-256 of the program that is started; null: no command"
    )
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None


class NodeFacts(Frozen):
    """What is stated about a node; null: not stated, and what asks for it is refused."""

    pool: Word | None = None
    location: Word | None = None
    zone: Word | None = None
    networks: tuple[Word, ...] | None = Field(default=None, max_length=100)
    labels: dict[Word, LabelValue] = Field(default={}, max_length=100)


class Executable(Frozen):
    """The program that a node runs, down to the bytes (OPS-02)."""

    name: str = Field(min_length=1, max_length=200)
    version: str = Field(min_length=1, max_length=200)
    digest: Digest
    inventory_digest: Digest | None = Field(
        default=None, description="of the names and versions of everything installed beside it"
    )


class Registration(Frozen):
    """``POST /v1/nodes``: one start of one executor process."""

    node_id: str = Field(pattern=f"^{NODE_PATTERN.pattern}$")
    incarnation: Uuid
    protocol_version: int
    software: str = Field(max_length=200, description="name and version, for people")
    slots: int = Field(ge=1, le=MAX_SLOTS)
    resources: Resources | None = Field(default=None, description="null: not limited by resources")
    task_types: tuple[TaskTypeDeclaration, ...] = Field(min_length=1, max_length=1000)
    executable: Executable | None = Field(
        default=None, description="null: unknown, so no profile that matches exactly is its own"
    )
    queue: bool = Field(
        default=True, description="false: it has no broker, and asks for its assignments"
    )
    concurrency: dict[str, Annotated[int, Field(ge=1, le=MAX_SLOTS)]] = Field(
        default={}, description="so many tasks of these types at once; others: as many as slots"
    )
    facts: NodeFacts = Field(
        default=NodeFacts(), description="as the node states them; an operator's word goes before"
    )


class LeaseTerms(Frozen):
    """Terms of leases by one version of the policy. A lease keeps those that it was granted under
    (LEASE-08); what remains of it is said in each reply."""

    duration_seconds: float
    renewal_interval_seconds: float = Field(description="from one renewal to the next")
    clock_tolerance_seconds: float
    policy_version: int


class RegistrationReply(Frozen):
    """Answer to a registration. Registering again with the same body gives the same answer."""

    node_id: str
    incarnation: str
    queue: str = Field(
        description="declare passively; retry while it does not exist yet; empty: there is none"
    )
    events_exchange: str
    lease: LeaseTerms = Field(description="the policy in force")


class _AboutAttempt(Frozen):
    report_id: Uuid
    task_id: Uuid
    attempt_id: Uuid
    fencing_token: Token


class Accept(_AboutAttempt):
    """The executor accepts the work and its authority. submitted → accepted."""

    kind: Literal["accept"] = "accept"


class Start(_AboutAttempt):
    """Work begins. accepted → running."""

    kind: Literal["start"] = "start"


class Take(_AboutAttempt):
    """Accept and start in one step, the usual case: two events, one commit."""

    kind: Literal["take"] = "take"


class Deliver(_AboutAttempt):
    """Output. running → delivered. Late or superseded: kept as evidence, never active."""

    kind: Literal["deliver"] = "deliver"
    output: Any = None
    enforced: Enforcement | None = Field(
        default=None, description="null: it ran in the executor, held to nothing"
    )


class Fail(_AboutAttempt):
    """The work ended without output. accepted or running → failed."""

    kind: Literal["fail"] = "fail"
    reason: str = Field(min_length=1, max_length=100, description="stable word, see Reason")
    message: str = Field(default="", max_length=MAX_REASON_CHARACTERS)
    retryable: bool = True
    retry_after_seconds: float | None = Field(
        default=None,
        ge=0,
        le=MAX_RETRY_AFTER_SECONDS,
        description="earliest next attempt, instead of the drawn delay (STATE-05)",
    )

    @model_validator(mode="after")
    def _check_retry(self) -> Self:
        if self.retry_after_seconds is not None and not self.retryable:
            raise ValueError("retry_after_seconds is given for a failure that is not retryable")
        return self


class Reject(_AboutAttempt):
    """The executor does not accept: another node may. submitted → rejected. No failure."""

    kind: Literal["reject"] = "reject"
    reason: str = Field(min_length=1, max_length=100)
    message: str = Field(default="", max_length=MAX_REASON_CHARACTERS)


class CancelReceived(_AboutAttempt):
    """The executor has heard of a requested cancellation, and asks its handler to end. No move."""

    kind: Literal["cancel_received"] = "cancel_received"


class Cancelled(_AboutAttempt):
    """Confirms a cancellation that was requested. accepted or running → cancelled."""

    kind: Literal["cancelled"] = "cancelled"


Report = Annotated[
    Accept | Start | Take | Deliver | Fail | Reject | CancelReceived | Cancelled,
    Field(discriminator="kind"),
]


class Reports(Frozen):
    """``POST /v1/nodes/{node_id}/reports``: all slots of a node share one stream of these."""

    incarnation: Uuid
    reports: tuple[Report, ...] = Field(min_length=1, max_length=MAX_REPORTS_PER_REQUEST)


class ReportReply(Frozen):
    """Answer to one report; repeating the report gives it again, with what remains by then.

    ``applied``: the state changed (now, or when this report id was first seen).
    ``recorded``: kept as evidence, not active; ``code`` says why (LATE-02).
    ``refused``: nothing changed; ``code`` says why. ``retry``: nothing is known to have changed,
    repeat the same report id.
    """

    report_id: str
    outcome: Literal["applied", "recorded", "refused", "retry"]
    code: str | None = None
    message: str | None = None
    attempt_state: AttemptState | None = None
    remaining_seconds: float | None = Field(
        default=None, description="authority left, counted from before the request was sent"
    )
    expires_at: datetime | None = None
    lease: LeaseTerms | None = Field(default=None, description="that this lease was granted under")
    cancel_requested: bool = False
    suspect: bool = Field(
        default=False,
        description="attempts of the task were lost: run it alone, in a process of its own",
    )
    input: Any = Field(default=None, description="with accept and take")
    checkpoint: Any = Field(
        default=None, description="what an earlier attempt saved last; with these too"
    )
    scope: Scope | None = Field(default=None, description="what the lease permits; with these too")
    narrowed: Scope | None = Field(
        default=None, description="what the submission permits of it: what is done has to fit both"
    )
    traceparent: str | None = Field(default=None, description="of the submission; with these too")
    task_type: str | None = None
    receipt_id: str | None = None
    admitted_at: datetime | None = None
    state_version: int | None = None
    generation: int | None = None


class ReportReplies(Frozen):
    """Replies in the order of the reports."""

    replies: tuple[ReportReply, ...]


class HeldLease(Frozen):
    """A lease that the node wants renewed."""

    task_id: Uuid
    attempt_id: Uuid
    fencing_token: Token


class Renewals(Frozen):
    """``POST /v1/nodes/{node_id}/renewals``. Also the heartbeat: an empty list is one."""

    incarnation: Uuid
    leases: tuple[HeldLease, ...] = Field(default=(), max_length=MAX_RENEWALS_PER_REQUEST)


class RenewalReply(Frozen):
    """Answer for one lease. ``refused`` is final: the authority is gone (LEASE-06)."""

    attempt_id: str
    outcome: Literal["renewed", "refused", "retry"]
    code: str | None = None
    remaining_seconds: float | None = None
    expires_at: datetime | None = None
    cancel_requested: bool = False


class RenewalReplies(Frozen):
    """Replies in the order of the leases, and the node's own state."""

    node_state: NodeState
    lease: LeaseTerms | None = Field(
        default=None, description="the policy in force: how often a heartbeat is expected"
    )
    replies: tuple[RenewalReply, ...]


class Assignment(Frozen):
    """An attempt that the coordinator holds as this incarnation's and that has not ended."""

    task_id: str
    attempt_id: str
    fencing_token: int
    task_type: str
    state: AttemptState
    ordinal: int | None = Field(default=None, description="number of the attempt, from 1")
    event_id: str = Field(description="of the assignment's event, for the inbox")
    cancel_requested: bool = False


class Assignments(Frozen):
    """``GET /v1/nodes/{node_id}/assignments?incarnation=``: what notifications may have lost."""

    assignments: tuple[Assignment, ...]
    version: str = Field(
        default="",
        description="stands for what is new; sent as `seen`, another is waited for",
    )


class DrainRequest(Frozen):
    """``POST /v1/nodes/{node_id}/drain``: nothing new for this incarnation.

    ``gone``: the process ends now; its remaining leases run out by themselves.
    """

    incarnation: Uuid
    gone: bool = False
