"""Which nodes may take a task: seven mandatory filters, each a pure function (SCHED-01).

A closed set. No filter is ever relaxed, whatever the load (SCHED-02). A fact that nobody has stated
excludes; the absence of a limit counts only where it is stated. Every filter says what it wanted,
what it found, and how far the two are apart, so that the nearest miss can be told.

Whether a node is there at all (``unavailable``) and whether anything is paused are asked before:
these are no matters of policy.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from tenure.contract.states import Effects, Match, NodeState
from tenure.coordinator.core import flow
from tenure.coordinator.core.rows import (
    ANY,
    IncarnationRow,
    PauseRow,
    RunProfile,
    TaskRow,
    TenantRow,
)


class Filter(StrEnum):
    """The mandatory filters, in the order in which they are asked."""

    TENANT_AUTHORIZATION = "tenant_authorization"
    DATA_LOCATION = "data_location"
    WORKLOAD_COMPATIBILITY = "workload_compatibility"
    RESOURCES = "resources"
    NETWORK_ACCESS = "network_access"
    BUDGET = "budget"
    DEADLINE = "deadline"


class Exclusion(StrEnum):
    """Why a node may not take a task. "Not stated": the fact is missing, so the filter closes."""

    # Is the node there?
    NODE_NOT_ACTIVE = "node_not_active"
    NODE_SILENT = "node_silent"
    NODE_UNDER_REVIEW = "node_under_review"
    TASK_REJECTED = "task_rejected"
    PAUSED = "paused"
    # tenant authorization
    TENANT_UNKNOWN = "tenant_unknown"
    TENANT_SUSPENDED = "tenant_suspended"
    OTHER_TENANT = "other_tenant"
    TENANT_POOLS_NOT_STATED = "tenant_pools_not_stated"
    NODE_POOL_NOT_STATED = "node_pool_not_stated"
    POOL_NOT_PERMITTED = "pool_not_permitted"
    # data location
    TENANT_LOCATIONS_NOT_STATED = "tenant_locations_not_stated"
    NODE_LOCATION_NOT_STATED = "node_location_not_stated"
    LOCATION_NOT_PERMITTED = "location_not_permitted"
    LOCATION_NOT_DEMANDED = "location_not_demanded"
    # workload compatibility
    PROFILE_UNKNOWN = "profile_unknown"
    TYPE_NOT_RUN = "type_not_run"
    EXECUTABLE_WITHDRAWN = "executable_withdrawn"
    BUILD_DIFFERS = "build_differs"
    EFFECTS_DIFFER = "effects_differ"
    # resource requirements
    LABEL_MISSING = "label_missing"
    NO_FREE_SLOT = "no_free_slot"
    TYPE_AT_CONCURRENCY = "type_at_concurrency"
    NOT_ENOUGH_CPU = "not_enough_cpu"
    NOT_ENOUGH_MEMORY = "not_enough_memory"
    # network access
    TENANT_NETWORKS_NOT_STATED = "tenant_networks_not_stated"
    NODE_NETWORKS_NOT_STATED = "node_networks_not_stated"
    NETWORK_NOT_PERMITTED = "network_not_permitted"
    NETWORK_NOT_REACHED = "network_not_reached"
    # budget
    BUDGET_NOT_STATED = "budget_not_stated"
    BUDGET_EXHAUSTED = "budget_exhausted"
    # deadline
    DEADLINE_PASSED = "deadline_passed"


@dataclass(frozen=True, slots=True)
class Excluded:
    """A filter's no. ``wanted`` and ``found`` are for people; ``distance`` compares two misses of
    one code, in the unit of that code: 1 where there is nothing to measure."""

    code: Exclusion
    wanted: str
    found: str
    distance: int = 1


def unavailable(node: IncarnationRow, now: int, silence_microseconds: int) -> Excluded | None:
    """Whether a node takes no new work at all: it drains, has ended, or has not been heard of
    (LEASE-07)."""
    if node.state is not NodeState.ACTIVE:
        return Excluded(Exclusion.NODE_NOT_ACTIVE, NodeState.ACTIVE.value, node.state.value)
    silent = now - node.last_seen_at
    if silent >= silence_microseconds:
        return Excluded(
            Exclusion.NODE_SILENT,
            f"a heartbeat within {silence_microseconds // 1_000_000} s",
            f"the last one {silent // 1_000_000} s ago",
            silent,
        )
    if node.under_review:
        return Excluded(Exclusion.NODE_UNDER_REVIEW, "a closed health review", "one that is open")
    return None


def tenant_authorization(
    task: TaskRow, node: IncarnationRow, tenant: TenantRow | None, now: int
) -> Excluded | None:
    """The tenant is authorized, and the node is its own and in a pool that it may use."""
    if tenant is None:
        return Excluded(Exclusion.TENANT_UNKNOWN, f"facts about tenant {task.tenant}", "none")
    if not tenant.authorized:
        return Excluded(Exclusion.TENANT_SUSPENDED, "an authorized tenant", "suspended")
    if node.tenant != task.tenant:
        return Excluded(Exclusion.OTHER_TENANT, task.tenant, node.tenant)
    pools = tenant.node_pools
    if pools is None:
        return Excluded(Exclusion.TENANT_POOLS_NOT_STATED, "the tenant's node pools", "not stated")
    if ANY in pools:
        return None
    if node.facts.pool is None:
        return Excluded(Exclusion.NODE_POOL_NOT_STATED, _listed(pools), "not stated")
    if node.facts.pool not in pools:
        return Excluded(Exclusion.POOL_NOT_PERMITTED, _listed(pools), node.facts.pool)
    return None


def data_location(
    task: TaskRow, node: IncarnationRow, tenant: TenantRow | None, now: int
) -> Excluded | None:
    """The node is where the tenant's data may be, and where the workload wants it."""
    permitted = None if tenant is None else tenant.locations
    if permitted is None:
        return Excluded(
            Exclusion.TENANT_LOCATIONS_NOT_STATED, "the tenant's locations", "not stated"
        )
    demanded = None if task.profile is None else task.profile.requirements.locations
    if ANY in permitted and demanded is None:
        return None
    location = node.facts.location
    if location is None:
        wanted = permitted if demanded is None else demanded
        return Excluded(Exclusion.NODE_LOCATION_NOT_STATED, _listed(wanted), "not stated")
    if ANY not in permitted and location not in permitted:
        return Excluded(Exclusion.LOCATION_NOT_PERMITTED, _listed(permitted), location)
    if demanded is not None and location not in demanded:
        return Excluded(Exclusion.LOCATION_NOT_DEMANDED, _listed(demanded), location)
    return None


def workload_compatibility(
    task: TaskRow, node: IncarnationRow, tenant: TenantRow | None, now: int
) -> Excluded | None:
    """The node runs the task's type, in a build that the task's frozen profile admits.

    ``compatible`` admits any build that runs the type, unless a lost attempt would then be tried
    again although this build cannot say what it leaves behind. ``exact`` admits only the build that
    the profile was made from: the profile's digest covers the executable's.
    """
    if task.profile is None:
        return Excluded(Exclusion.PROFILE_UNKNOWN, "the task's profile", "unknown")
    if task.type not in node.task_types:
        return Excluded(Exclusion.TYPE_NOT_RUN, task.type, _listed(node.task_types))
    if node.executable_withdrawn:
        return Excluded(
            Exclusion.EXECUTABLE_WITHDRAWN,
            "a build that is registered",
            f"withdrawn: {_short(node.executable_digest)}",
        )
    run = _run_by(node, task.type)
    if task.profile.match is Match.EXACT and (run is None or run.digest != task.profile.digest):
        return Excluded(
            Exclusion.BUILD_DIFFERS,
            f"the profile {task.profile.digest}",
            f"the profile {'none' if run is None else run.digest}",
        )
    if run is None or (
        run.effects is Effects.UNGUARDED and task.profile.effects is not Effects.UNGUARDED
    ):
        return Excluded(
            Exclusion.EFFECTS_DIFFER,
            f"effects that are {task.profile.effects.value}",
            "not stated" if run is None else run.effects.value,
        )
    return None


def resources(
    task: TaskRow, node: IncarnationRow, tenant: TenantRow | None, now: int
) -> Excluded | None:
    """The node has the labels that the workload wants, and a slot and the resources left; and it
    runs fewer tasks of the type than it takes at once."""
    if task.profile is not None:
        missing = task.profile.requirements.labels - node.facts.labels
        if missing:
            wanted = _listed(f"{name}={value}" for name, value in missing)
            return Excluded(Exclusion.LABEL_MISSING, wanted, "absent", len(missing))
    need = task.resources
    if node.slots_used + need.slots > node.slots:
        free = node.slots - node.slots_used
        return _short_of(Exclusion.NO_FREE_SLOT, need.slots, free, "slots")
    left = concurrency_left(node, task.type)
    if left is not None and left < 1:
        return _short_of(Exclusion.TYPE_AT_CONCURRENCY, 1, left, f"more of type {task.type}")
    if node.cpu_millis is not None and node.cpu_used + need.cpu_millis > node.cpu_millis:
        free = node.cpu_millis - node.cpu_used
        return _short_of(Exclusion.NOT_ENOUGH_CPU, need.cpu_millis, free, "thousandths of a core")
    if node.memory_bytes is not None and node.memory_used + need.memory_bytes > node.memory_bytes:
        free = node.memory_bytes - node.memory_used
        return _short_of(Exclusion.NOT_ENOUGH_MEMORY, need.memory_bytes, free, "bytes")
    return None


def network_access(
    task: TaskRow, node: IncarnationRow, tenant: TenantRow | None, now: int
) -> Excluded | None:
    """The tenant may use the networks that the workload needs, and the node reaches them."""
    permitted = None if tenant is None else tenant.networks
    if permitted is None:
        return Excluded(Exclusion.TENANT_NETWORKS_NOT_STATED, "the tenant's networks", "not stated")
    needed = frozenset[str]() if task.profile is None else task.profile.requirements.networks
    refused = frozenset[str]() if ANY in permitted else needed - permitted
    if refused:
        return Excluded(
            Exclusion.NETWORK_NOT_PERMITTED, _listed(needed), _listed(permitted), len(refused)
        )
    if not needed:
        return None
    if node.facts.networks is None:
        return Excluded(Exclusion.NODE_NETWORKS_NOT_STATED, _listed(needed), "not stated")
    unreached = needed - node.facts.networks
    if unreached:
        return Excluded(
            Exclusion.NETWORK_NOT_REACHED,
            _listed(needed),
            _listed(node.facts.networks),
            len(unreached),
        )
    return None


def budget(
    task: TaskRow, node: IncarnationRow, tenant: TenantRow | None, now: int
) -> Excluded | None:
    """What is left of the tenant's budget, after what is held and spent, covers the task."""
    if tenant is None or (tenant.budget_minor is None and not tenant.budget_unlimited):
        return Excluded(Exclusion.BUDGET_NOT_STATED, "the tenant's budget", "not stated")
    if tenant.budget_minor is None:
        return None
    cost = 0 if task.profile is None else task.profile.cost_minor
    left = tenant.budget_minor - tenant.held_minor - tenant.spent_minor
    if cost > max(left, 0):
        return _short_of(Exclusion.BUDGET_EXHAUSTED, cost, left, "minor units")
    return None


def deadline(
    task: TaskRow, node: IncarnationRow, tenant: TenantRow | None, now: int
) -> Excluded | None:
    """The deadline is ahead (SCHED-04)."""
    if task.deadline is None or task.deadline > now:
        return None
    late = now - task.deadline
    return Excluded(
        Exclusion.DEADLINE_PASSED, "a deadline ahead", f"{late / 1_000_000:.3f} s ago", late
    )


FilterFunction: TypeAlias = Callable[
    [TaskRow, IncarnationRow, TenantRow | None, int], Excluded | None
]
FILTERS: Final[tuple[tuple[Filter, FilterFunction], ...]] = (
    (Filter.TENANT_AUTHORIZATION, tenant_authorization),
    (Filter.DATA_LOCATION, data_location),
    (Filter.WORKLOAD_COMPATIBILITY, workload_compatibility),
    (Filter.RESOURCES, resources),
    (Filter.NETWORK_ACCESS, network_access),
    (Filter.BUDGET, budget),
    (Filter.DEADLINE, deadline),
)
"""All of them. ``decide`` asks each, and so does every explanation."""


def exclusion(
    task: TaskRow, node: IncarnationRow, tenant: TenantRow | None, now: int
) -> Excluded | None:
    """The pause or the first filter that excludes ``node``, or None."""
    pauses = flow.pauses_of_task(task, tenant, now) or flow.pauses_of_node(node, tenant, now)
    if pauses:
        return paused(pauses[0])
    for _, judge in FILTERS:
        excluded = judge(task, node, tenant, now)
        if excluded is not None:
            return excluded
    return None


def exclusions(
    task: TaskRow, node: IncarnationRow, tenant: TenantRow | None, now: int
) -> tuple[tuple[Filter, Excluded], ...]:
    """Every filter that excludes ``node``."""
    judged = ((name, judge(task, node, tenant, now)) for name, judge in FILTERS)
    return tuple((name, excluded) for name, excluded in judged if excluded is not None)


def paused(pause: PauseRow) -> Excluded:
    """A pause, as what excludes a node."""
    return Excluded(Exclusion.PAUSED, "no pause", f"{pause.paused_by} paused it: {pause.reason}")


def concurrency_left(node: IncarnationRow, type_name: str) -> int | None:
    """How many more tasks of a type the node takes at once; None: as many as it has slots."""
    run = _run_by(node, type_name)
    if run is None or run.concurrency is None:
        return None
    return run.concurrency - node.running.get(type_name, 0)


def has_rejected(task: TaskRow, node: IncarnationRow) -> bool:
    """Whether this start of the node has handed the task back. Others are asked instead, until an
    operator releases the task (STATE-05)."""
    return node.incarnation in task.rejected_by


def could_take(task: TaskRow, node: IncarnationRow, tenant: TenantRow | None) -> bool:
    """Whether the node could take the task if it had nothing else to do: what all filters say of
    it, but for the tenant's budget and the deadline, which are no matter of the node."""
    idle = replace(node, slots_used=0, cpu_used=0, memory_used=0, running={})
    return all(
        judge(task, idle, tenant, 0) is None
        for name, judge in FILTERS
        if name not in (Filter.BUDGET, Filter.DEADLINE)
    )


def _run_by(node: IncarnationRow, type_name: str) -> RunProfile | None:
    return next((run for run in node.profiles if run.type == type_name), None)


def _short_of(code: Exclusion, need: int, free: int, unit: str) -> Excluded:
    return Excluded(code, f"{need} {unit}", f"{free} {unit}", need - free)


def _short(digest: str | None) -> str:
    return "no digest" if digest is None else digest


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
