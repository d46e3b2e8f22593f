"""Which nodes may take a task: mandatory filters, each with a code of its own (SCHED-01).

A closed set of pure functions. No filter is ever relaxed; a missing fact fails closed. Present so
far: the workload (the node runs the type) and the resources.
"""

from enum import StrEnum

from tenure.coordinator.core.rows import IncarnationRow, TaskRow


class Exclusion(StrEnum):
    """Why a node may not take a task."""

    TYPE_NOT_RUN = "type_not_run"
    NO_FREE_SLOT = "no_free_slot"
    NOT_ENOUGH_CPU = "not_enough_cpu"
    NOT_ENOUGH_MEMORY = "not_enough_memory"


def exclusion(task: TaskRow, node: IncarnationRow) -> Exclusion | None:
    """The first filter that excludes ``node``, or None."""
    if task.type not in node.task_types:
        return Exclusion.TYPE_NOT_RUN
    need = task.resources
    if node.slots_used + need.slots > node.slots:
        return Exclusion.NO_FREE_SLOT
    if node.cpu_millis is not None and node.cpu_used + need.cpu_millis > node.cpu_millis:
        return Exclusion.NOT_ENOUGH_CPU
    if node.memory_bytes is not None and node.memory_used + need.memory_bytes > node.memory_bytes:
        return Exclusion.NOT_ENOUGH_MEMORY
    return None
