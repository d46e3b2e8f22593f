"""Which eligible node gets a task: deterministic for a given snapshot of the fleet, with a score
for each node and factor (SCHED-03). Filters come first: nothing here makes a node eligible."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

from tenure.contract.ids import IncarnationId, TaskId, TenantId
from tenure.contract.states import TaskState
from tenure.coordinator.core.fairness import Turns
from tenure.coordinator.core.filters import (
    budget,
    concurrency_left,
    deadline,
    exclusion,
    has_rejected,
)
from tenure.coordinator.core.limits import Allowances
from tenure.coordinator.core.rows import (
    IncarnationRow,
    ProfileRow,
    ResourceAmounts,
    TaskRow,
    TenantRow,
)

WEIGHTS: Final = {"slots": 4, "build": 2, "cpu": 1, "memory": 1}
"""What a factor counts for in the total."""
FULL: Final = 1000
"""The most that a factor gives."""


@dataclass(frozen=True, slots=True)
class Score:
    """How well a node suits a task, in thousandths for each factor. ``slots``, ``cpu`` and
    ``memory``: what would be free afterwards; ``build``: whether it is the profile's own."""

    total: int
    slots: int
    build: int
    cpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A task, the node it goes to, and why this one: its score, and how many of ``nodes`` were
    ``eligible`` when a task of its kind was first placed in the same plan."""

    task_id: TaskId
    incarnation: IncarnationId
    score: Score
    eligible: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Kind:
    """Tasks of a tenant under one profile: all filters but those of size and time say the same."""

    tenant: TenantId
    profile: ProfileRow


@dataclass(frozen=True, slots=True)
class Room:
    """The most that any one eligible node has free for tasks of a kind; None: not limited.

    ``most``: so many may begin by the limits of the tenant and the type, and by the concurrency
    of the type on the nodes. ``closed_keys``: tasks
    with these may not. ``paces_keys``: starts are limited for each key by itself.
    """

    tenant: TenantId
    profile_digest: str
    cpu_millis: int | None
    memory_bytes: int | None
    most: int | None = None
    closed_keys: frozenset[str] = frozenset()
    paces_keys: bool = False


def score(task: TaskRow, node: IncarnationRow) -> Score:
    """How well ``node``, which is eligible, suits ``task``."""
    need = task.resources
    digest = None if task.profile is None else task.profile.digest
    slots = FULL * (node.slots - node.slots_used - need.slots) // node.slots
    build = FULL if any(run.digest == digest for run in node.profiles) else 0
    cpu = _free(node.cpu_millis, node.cpu_used + need.cpu_millis)
    memory = _free(node.memory_bytes, node.memory_used + need.memory_bytes)
    total = (
        WEIGHTS["slots"] * slots
        + WEIGHTS["build"] * build
        + WEIGHTS["cpu"] * cpu
        + WEIGHTS["memory"] * memory
    )
    return Score(total, slots, build, cpu, memory)


def rooms(
    kinds: Sequence[Kind],
    nodes: Sequence[IncarnationRow],
    tenants: Mapping[TenantId, TenantRow],
    now: int,
) -> list[Room]:
    """Which of the waiting kinds some node could take now, and how large a task may be: what is
    worth looking for."""
    found = []
    allowances = Allowances(tenants, now)
    for kind in kinds:
        limited = kind.tenant, kind.profile.type
        most = allowances.left(*limited)
        if most == 0:
            continue
        probe = smallest(kind)
        tenant = tenants.get(kind.tenant)
        eligible = [node for node in nodes if exclusion(probe, node, tenant, now) is None]
        if eligible:
            taken = [concurrency_left(node, kind.profile.type) for node in eligible]
            if None not in taken:
                at_once = sum(one for one in taken if one is not None)
                most = at_once if most is None else min(most, at_once)
            found.append(
                Room(
                    kind.tenant,
                    kind.profile.digest,
                    _most(_left(node.cpu_millis, node.cpu_used) for node in eligible),
                    _most(_left(node.memory_bytes, node.memory_used) for node in eligible),
                    most,
                    allowances.closed_keys(*limited),
                    allowances.paces_keys(*limited),
                )
            )
    return found


class _Candidates:
    """Eligible nodes for tasks that are alike, the best first.

    A heap whose entries may be out of date. What a node gets only lowers its score, so an entry is
    never better than it says: it is scored anew when it comes to the top.
    """

    def __init__(
        self,
        task: TaskRow,
        free: Mapping[IncarnationId, IncarnationRow],
        tenant: TenantRow | None,
        now: int,
    ) -> None:
        self._scored: dict[IncarnationId, IncarnationRow] = {
            node.incarnation: node
            for node in free.values()
            if not has_rejected(task, node) and exclusion(task, node, tenant, now) is None
        }
        self._heap = [(-score(task, node).total, name) for name, node in self._scored.items()]
        heapify(self._heap)
        self.eligible = len(self._heap)

    def best(
        self,
        task: TaskRow,
        free: Mapping[IncarnationId, IncarnationRow],
        tenant: TenantRow | None,
        now: int,
    ) -> IncarnationRow | None:
        """The node with the highest score, as nodes are now; equal ones by incarnation."""
        while self._heap:
            name = self._heap[0][1]
            node = free.get(name)
            if node is not None and self._scored[name] is node:
                return node
            heappop(self._heap)
            if node is not None and exclusion(task, node, tenant, now) is None:
                self._scored[name] = node
                heappush(self._heap, (-score(task, node).total, name))
        return None


def plan(
    tasks: Sequence[TaskRow],
    nodes: Sequence[IncarnationRow],
    tenants: Mapping[TenantId, TenantRow],
    used: Mapping[TenantId, int],
    now: int,
    limit: int,
) -> list[Placement]:
    """At most ``limit`` placements, in the order of the tasks' turns. ``used``: slots by tenant.

    Among eligible nodes the one with the highest score; equal ones by incarnation. What a placement
    takes is subtracted before the next is looked at. A task that no node can take is left out and
    keeps nobody else waiting.
    """
    free = {node.incarnation: node for node in nodes if node.slots_used < node.slots}
    accounts = dict(tenants)
    allowances = Allowances(tenants, now)
    turns = Turns(tasks, tenants, used)
    placements: list[Placement] = []
    candidates: dict[object, _Candidates] = {}
    while free and len(placements) < limit:
        task = turns.next()
        if task is None:
            break
        tenant = accounts.get(task.tenant)
        # What is no matter of the node is asked once, before any node.
        if budget(task, nodes[0], tenant, now) or deadline(task, nodes[0], tenant, now):
            continue
        if not allowances.permit(task):
            continue
        alike = (task.tenant, task.type, task.profile, task.resources, task.rejected_by)
        if alike not in candidates:
            candidates[alike] = _Candidates(task, free, tenant, now)
        best = candidates[alike].best(task, free, tenant, now)
        if best is None:
            continue
        eligible = candidates[alike].eligible
        placements.append(
            Placement(task.task_id, best.incarnation, score(task, best), eligible, len(nodes))
        )
        turns.placed(task)
        allowances.begin(task)
        if tenant is not None and task.profile is not None and task.profile.cost_minor:
            held = tenant.held_minor + task.profile.cost_minor
            accounts[task.tenant] = replace(tenant, held_minor=held)
        taken = replace(
            best,
            slots_used=best.slots_used + task.resources.slots,
            cpu_used=best.cpu_used + task.resources.cpu_millis,
            memory_used=best.memory_used + task.resources.memory_bytes,
            running={**best.running, task.type: best.running.get(task.type, 0) + 1},
        )
        if taken.slots_used >= taken.slots:
            del free[best.incarnation]
        else:
            free[best.incarnation] = taken
    return placements


def _free(capacity: int | None, used: int) -> int:
    """What is left of a capacity, in thousandths; all of it where there is no limit."""
    if capacity is None:
        return FULL
    return FULL * (capacity - used) // capacity if capacity else 0


def _left(capacity: int | None, used: int) -> int | None:
    return None if capacity is None else capacity - used


def _most(amounts: Iterable[int | None]) -> int | None:
    found = list(amounts)
    return None if None in found else max(one for one in found if one is not None)


def smallest(kind: Kind) -> TaskRow:
    """A waiting task of the kind that needs nothing but a slot, and has time."""
    return TaskRow(
        task_id=TaskId(""),
        tenant=kind.tenant,
        type=kind.profile.type,
        state=TaskState.OPEN,
        version=0,
        sequence=0,
        generation=0,
        current_attempt_id=None,
        failures=0,
        losses=0,
        not_before=None,
        deadline=None,
        effects=kind.profile.effects,
        max_attempts=1,
        resources=ResourceAmounts(),
        cancel_requested_at=None,
        cancel_delivered_at=None,
        rejected_by=(),
        decided_at=0,
        profile=kind.profile,
    )
