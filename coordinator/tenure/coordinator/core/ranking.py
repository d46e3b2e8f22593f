"""Which eligible node gets a task: deterministic for a given snapshot of the fleet (SCHED-03)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tenure.contract.ids import IncarnationId, TaskId, TenantId
from tenure.coordinator.core.filters import exclusion, has_rejected
from tenure.coordinator.core.rows import IncarnationRow, TaskRow, TenantRow


@dataclass(frozen=True, slots=True)
class Room:
    """The most that any one node has free for tasks of a kind; None: not limited."""

    tenant: TenantId
    type: str
    cpu_millis: int | None
    memory_bytes: int | None


def rooms(nodes: Sequence[IncarnationRow]) -> list[Room]:
    """What kinds of tasks ``nodes`` could take now, each once: what is worth looking for."""
    found: dict[tuple[TenantId, str], Room] = {}
    for node in nodes:
        cpu = None if node.cpu_millis is None else node.cpu_millis - node.cpu_used
        memory = None if node.memory_bytes is None else node.memory_bytes - node.memory_used
        for name in sorted(node.task_types):
            room = found.setdefault((node.tenant, name), Room(node.tenant, name, cpu, memory))
            found[node.tenant, name] = replace(
                room,
                cpu_millis=_larger(room.cpu_millis, cpu),
                memory_bytes=_larger(room.memory_bytes, memory),
            )
    return list(found.values())


def _larger(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def plan(
    tasks: Sequence[TaskRow],
    nodes: Sequence[IncarnationRow],
    tenants: Mapping[TenantId, TenantRow],
    now: int,
) -> list[tuple[TaskId, IncarnationId]]:
    """Pairs of a waiting task and the node it goes to, in the order of ``tasks``.

    Among eligible nodes the one with the most free slots; equal ones by incarnation. What a pair
    takes is subtracted before the next is looked at. A task that no node can take is left out and
    keeps nobody else waiting.
    """
    free = {node.incarnation: node for node in nodes}
    accounts = dict(tenants)
    pairs: list[tuple[TaskId, IncarnationId]] = []
    for task in tasks:
        if not free:
            break
        tenant = accounts.get(task.tenant)
        eligible = [
            node
            for node in free.values()
            if not has_rejected(task, node) and exclusion(task, node, tenant, now) is None
        ]
        if not eligible:
            continue
        best = min(eligible, key=lambda node: (node.slots_used - node.slots, node.incarnation))
        pairs.append((task.task_id, best.incarnation))
        if tenant is not None and task.profile is not None and task.profile.cost_minor:
            held = tenant.held_minor + task.profile.cost_minor
            accounts[task.tenant] = replace(tenant, held_minor=held)
        taken = replace(
            best,
            slots_used=best.slots_used + task.resources.slots,
            cpu_used=best.cpu_used + task.resources.cpu_millis,
            memory_used=best.memory_used + task.resources.memory_bytes,
        )
        if taken.slots_used >= taken.slots:
            del free[best.incarnation]
        else:
            free[best.incarnation] = taken
    return pairs
