"""What operators state about tenants, nodes and programs, and how the scheduler explains itself."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tenure.contract.flow import PauseView
from tenure.contract.limits import ReachedLimit
from tenure.contract.reports import (
    Digest,
    Executable,
    Frozen,
    LabelValue,
    NodeFacts,
    TaskTypeDeclaration,
    Word,
)
from tenure.contract.states import Match, Phase, TaskState, TenantState
from tenure.contract.tasks import NodeView

ANY: Final = "*"
"""In a list of what a tenant may use: no limit, stated as a fact."""

Permitted = Annotated[
    tuple[Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._/-]{0,127})$")], ...],
    Field(max_length=100),
]


class TenantChange(Frozen):
    """``PATCH /v1/tenants/{tenant}``: what is absent stays; null takes a fact back, and what asks
    for it is refused from then on. ``["*"]`` and ``budget_unlimited`` state that there is no limit.
    """

    state: TenantState = Field(default=TenantState.AUTHORIZED)
    weight: int = Field(default=1, ge=1, le=1000, description="share beside other tenants")
    node_pools: Permitted | None = None
    locations: Permitted | None = Field(default=None, description="where its data may be processed")
    networks: Permitted | None = Field(default=None, description="what its work may reach")
    budget_minor: int | None = Field(
        default=None, ge=0, le=10**18, description="in minor units of the currency"
    )
    budget_unlimited: bool = False
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] | None = Field(
        default=None, description="ISO 4217"
    )


class TenantView(Frozen):
    """What is stated about a tenant; null: not stated."""

    tenant: str
    state: TenantState
    weight: int
    node_pools: tuple[str, ...] | None
    locations: tuple[str, ...] | None
    networks: tuple[str, ...] | None
    budget_minor: int | None
    budget_unlimited: bool
    currency: str | None
    held_minor: int = Field(description="by attempts that have not ended")
    spent_minor: int = Field(description="by attempts that delivered")
    version: int
    changed_at: datetime
    changed_by: str


class TenantList(Frozen):
    """``GET /v1/tenants``."""

    tenants: tuple[TenantView, ...]


class NodeFactsChange(Frozen):
    """``PATCH /v1/nodes/{node_id}/facts``: what is absent stays; null takes the operator's word
    back, so that the node's own counts again. The node need not have registered yet."""

    pool: Word | None = None
    location: Word | None = None
    zone: Word | None = None
    networks: tuple[Word, ...] | None = Field(default=None, max_length=100)
    labels: dict[Word, LabelValue | None] = Field(default={}, max_length=100)


class NodeDetail(Frozen):
    """``GET /v1/nodes/{node_id}``."""

    node_id: str
    stated: NodeFacts = Field(description="by operators; goes before what the node states itself")
    current: NodeView | None = Field(description="its current incarnation, if it has one")


class MissView(Frozen):
    """The node that came nearest to passing a filter."""

    node_id: str
    incarnation: str
    code: str
    wanted: str
    found: str
    other_filters: tuple[str, ...] = Field(description="which exclude this node too")


class FilterView(Frozen):
    """What one mandatory filter says of the nodes that are there."""

    filter: str
    removed: int = Field(description="nodes that it excludes")
    codes: dict[str, int] = Field(description="why, and of how many nodes")
    nearest: MissView | None


class Explanation(Frozen):
    """Every filter over every node. Nothing was decided or changed."""

    standing: str = Field(description="why the task is where it is, in one word")
    nodes: int = Field(description="of the tenant")
    unavailable: dict[str, int] = Field(description="nodes that take no work at all, by why")
    eligible: int
    filters: tuple[FilterView, ...]
    profile_digest: str
    match: Match
    pauses: tuple[PauseView, ...] = Field(
        default=(), description="that keep it from every node, or everything from some node"
    )
    limits: tuple[ReachedLimit, ...] = Field(
        default=(), description="that let it not begin now, and what counts under them"
    )


class Why(Frozen):
    """``GET /v1/tasks/{task_id}/why``."""

    task_id: str
    type: str
    state: TaskState
    phase: Phase
    reason: str | None
    since: datetime = Field(description="of the last change of the task")
    not_before: datetime | None
    deadline: datetime | None
    node_id: str | None = Field(description="who has it")
    position: int | None = Field(
        description="among the tenant's waiting tasks, the first is 1; counted up to 10,000"
    )
    explanation: Explanation


class BacklogGroup(Frozen):
    """Waiting tasks that are judged alike: one type, one profile, one need of resources."""

    type: str
    tasks: int
    oldest: datetime
    example_task_id: str
    cpu_millis: int
    memory_bytes: int
    explanation: Explanation


class Backlog(Frozen):
    """``GET /v1/backlog``: everything of the tenant that waits, largest group first."""

    waiting: int = Field(description="tasks that wait for a node; counted up to 100,000")
    not_before: int = Field(description="tasks whose time has not come; counted up to 100,000")
    groups: tuple[BacklogGroup, ...] = Field(description="at most 100")


class ExecutableView(Frozen):
    """A program that nodes run or ran."""

    name: str
    version: str
    digest: str
    inventory_digest: str | None
    state: Literal["registered", "withdrawn"]
    registered_at: datetime
    seen_at: datetime = Field(description="last registration of a node that runs it")
    nodes: int = Field(description="that run it now")


class ExecutableList(Frozen):
    """``GET /v1/executables``: newest first, at most 1,000."""

    executables: tuple[ExecutableView, ...]


class ExecutableChange(Frozen):
    """``PATCH /v1/executables/{digest}``: nodes of a withdrawn program are given nothing."""

    state: Literal["registered", "withdrawn"]


class ProfileView(Frozen):
    """A workload profile. ``content`` is the whole declaration that its digest is of."""

    type: str
    digest: Digest
    current: bool = Field(description="new tasks of the type are submitted under it")
    registered_at: datetime
    content: Any


class ProfileList(Frozen):
    """``GET /v1/profiles``: newest first, at most 1,000."""

    profiles: tuple[ProfileView, ...]


class ProfilePush(Frozen):
    """``POST /v1/profiles``: declarations before any node runs them. New tasks of the types are
    submitted under them from then on."""

    task_types: tuple[TaskTypeDeclaration, ...] = Field(min_length=1, max_length=1000)
    executable: Executable | None = None


class ProfileMove(Frozen):
    """``POST /v1/tasks/{task_id}/profile``: null: the profile that new tasks of the type get."""

    digest: Digest | None = None


class Explained(Frozen):
    """``POST /v1/tasks/explain``: what would become of a submission. Nothing was recorded."""

    type: str
    position: int = Field(description="that its task would have; counted up to 10,000")
    explanation: Explanation
