"""Which eligible node gets a task: deterministic for a given snapshot of the fleet (SCHED-03)."""

from collections.abc import Sequence
from dataclasses import replace

from tenure.contract.ids import IncarnationId, TaskId
from tenure.coordinator.core.filters import exclusion
from tenure.coordinator.core.model import IncarnationRow, TaskRow


def plan(
    tasks: Sequence[TaskRow], nodes: Sequence[IncarnationRow]
) -> list[tuple[TaskId, IncarnationId]]:
    """Pairs of a waiting task and the node it goes to, in the order of ``tasks``.

    Among eligible nodes the one with the most free slots; equal ones by incarnation. What a pair
    takes is subtracted before the next is looked at. A task that no node can take is left out and
    keeps nobody else waiting.
    """
    free = {node.incarnation: node for node in nodes}
    pairs: list[tuple[TaskId, IncarnationId]] = []
    for task in tasks:
        if not free:
            break
        eligible = [
            node
            for node in free.values()
            if node.tenant == task.tenant and exclusion(task, node) is None
        ]
        if not eligible:
            continue
        best = min(eligible, key=lambda node: (node.slots_used - node.slots, node.incarnation))
        pairs.append((task.task_id, best.incarnation))
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
