"""Whose turn it is: weighted fair share between tenants, age and priority within one (SCHED-05).

Between tenants the one goes next that would use the smallest share of slots for its weight. Within
a tenant tasks are served by the instant from which they count as queued: a point of priority puts
it a minute back. So a task of higher priority goes first, and yet nothing waits for ever: it is
passed only by what came less than a minute a point later. The order of two tasks never changes
while they wait, so an index can keep it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tenure.contract.ids import TenantId
from tenure.coordinator.core.rows import TaskRow, TenantRow

AGEING_MICROSECONDS: Final = 60_000_000
"""How much longer a task has to wait to be served like one with a priority that is higher by 1."""
_SCALE: Final = 1_000_000


def head_start(priority: int) -> int:
    """Microseconds by which a task counts as queued earlier than it was; negative: later."""
    return priority * AGEING_MICROSECONDS


class Turns:
    """Waiting tasks in the order in which they are served. ``used``: slots of each tenant now."""

    def __init__(
        self,
        tasks: Sequence[TaskRow],
        tenants: Mapping[TenantId, TenantRow],
        used: Mapping[TenantId, int],
    ) -> None:
        self._waiting: dict[TenantId, list[TaskRow]] = {}
        for task in sorted(tasks, key=lambda one: (one.queued_as_of, one.task_id), reverse=True):
            self._waiting.setdefault(task.tenant, []).append(task)
        self._weights = {
            name: tenants[name].weight if name in tenants else 1 for name in self._waiting
        }
        self._used = {name: used.get(name, 0) for name in self._waiting}

    def next(self) -> TaskRow | None:
        """The task whose turn it is, which is then gone from here; None when there is none left."""
        if not self._waiting:
            return None
        tenant = min(self._waiting, key=self._share)
        tasks = self._waiting[tenant]
        task = tasks.pop()
        if not tasks:
            del self._waiting[tenant]
        return task

    def placed(self, task: TaskRow) -> None:
        """The task got a node: its tenant uses more from now on."""
        self._used[task.tenant] += task.resources.slots

    def _share(self, tenant: TenantId) -> tuple[int, TenantId]:
        return (self._used[tenant] + 1) * _SCALE // self._weights[tenant], tenant
