"""Rows as loaded, which decisions read.

Instants are integer microseconds since 1970 (UTC) on the authority's clock, durations integer
microseconds, ids strings, JSON text. Nothing here reads a clock, mints an id or does I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tenure.contract.ids import (
    AttemptId,
    FencingToken,
    IncarnationId,
    LeaseId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import (
    AttemptState,
    Effects,
    LimitScope,
    Match,
    NodeState,
    PauseScope,
    TaskState,
)

ANY: Final = "*"
"""In a set of what a tenant may use: no limit, stated as a fact."""


@dataclass(frozen=True, slots=True)
class ResourceAmounts:
    """Thousandths of a core, bytes, and slots."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a workload demands of a node. ``locations``: None where the data may be anywhere."""

    locations: frozenset[str] | None = None
    networks: frozenset[str] = frozenset()
    labels: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A workload profile. It never changes: ``digest`` stands for its whole content.

    ``cost_minor``: what one task holds of its tenant's budget, in minor units of its currency.
    """

    digest: str
    type: str
    effects: Effects
    max_attempts: int
    resources: ResourceAmounts
    requirements: Requirements = Requirements()
    match: Match = Match.COMPATIBLE
    cost_minor: int = 0
    operations: tuple[str, ...] = (ANY,)  # patterns: what its leases permit
    objects: tuple[str, ...] = (ANY,)


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A scope in which nothing is begun (FLOW-01). ``until``: None while nobody resumes it."""

    scope: PauseScope
    tenant: str  # ``ANY`` where it is every tenant's
    name: str  # of the type or node, NAME=VALUE of the label, else empty
    until: int | None
    reason: str
    paused_by: str
    paused_at: int


@dataclass(frozen=True, slots=True)
class LimitRow:
    """How many tasks of a scope run at once, and how often one starts; None: as many as there are.

    ``name``: the type or the key; for each key the type, or ``ANY`` for every type; else empty.
    ``interval``: microseconds between two starts, of which ``burst`` may come at once.
    """

    scope: LimitScope
    name: str
    max_running: int | None = None
    interval: int | None = None
    burst: int = 1


Bucket: TypeAlias = tuple[LimitScope, str, str]
"""What counts together: a limit's scope and name, and the key where each counts by itself."""


@dataclass(frozen=True, slots=True)
class TenantRow:
    """What a tenant may use. ``version`` covers all but the account and what counts under limits.

    Sets: None is not stated, and fails closed; ``ANY`` in it is the stated absence of a limit, as
    is ``budget_unlimited``. ``held_minor`` and ``spent_minor`` are the account. ``running``: tasks
    that nodes have, ``full_at``: when the bucket of starts is full again; absent: none, and now.
    """

    tenant: TenantId
    version: int
    authorized: bool
    weight: int = 1
    node_pools: frozenset[str] | None = None
    locations: frozenset[str] | None = None
    networks: frozenset[str] | None = None
    budget_minor: int | None = None
    budget_unlimited: bool = False
    held_minor: int = 0
    spent_minor: int = 0
    pauses: tuple[PauseRow, ...] = ()  # that concern it, those that are over included
    limits: tuple[LimitRow, ...] = ()
    running: Mapping[Bucket, int] = field(default_factory=dict, hash=False)
    full_at: Mapping[Bucket, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is stated about a node, by itself or by an operator; None: not stated."""

    pool: str | None = None
    location: str | None = None
    zone: str | None = None
    networks: frozenset[str] | None = None
    labels: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class RunProfile:
    """A task type as one node runs it. ``concurrency``: so many at once; None: as many as slots."""

    type: str
    digest: str
    effects: Effects
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as loaded. ``version`` is raised by every change, ``sequence`` by every event.

    ``profile`` is frozen at the submission, and loaded only where nodes are judged by it.
    """

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
    cancel_delivered_at: int | None
    rejected_by: tuple[IncarnationId, ...]
    decided_at: int
    profile: ProfileRow | None = None
    queued_as_of: int = 0  # its place among its tenant's tasks: see ``fairness``
    concurrency_key: str | None = None  # what it counts with under limits
    traceparent: str | None = None  # of the submission


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
    facts: NodeFacts = NodeFacts()
    profiles: tuple[RunProfile, ...] = ()
    executable_digest: str | None = None
    executable_withdrawn: bool = False
    under_review: bool = False
    running: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Tasks that it has, by type; counted where it limits the concurrency of any."""


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
    """A declaration as registered last; its profile is frozen in each task at its submission."""

    name: str
    profile_digest: str
    effects: Effects
    max_attempts: int
    resources: ResourceAmounts
