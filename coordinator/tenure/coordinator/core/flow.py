"""Flow control: what is paused begins nothing, and what runs of it goes on (FLOW-01). Pure.

A pause that has an end is over by itself, by the authority's clock.
"""

from collections.abc import Iterable, Iterator

from tenure.contract.states import PauseScope
from tenure.coordinator.core.rows import IncarnationRow, PauseRow, TaskRow, TenantRow


def pauses_of_task(task: TaskRow, tenant: TenantRow | None, now: int) -> tuple[PauseRow, ...]:
    """The pauses in force that keep a task from every node."""
    return _in_force(_of_task(task, tenant), now)


def pauses_of_node(
    node: IncarnationRow, tenant: TenantRow | None, now: int
) -> tuple[PauseRow, ...]:
    """The pauses in force that keep every task from a node."""
    return _in_force(_of_node(node, tenant), now)


def over_since(
    task: TaskRow, node: IncarnationRow, tenant: TenantRow | None, now: int
) -> int | None:
    """The latest end of the pauses that would concern an allocation and are over, or None: what
    counts as over has to be over still when the allocation is committed."""
    concerned = (*_of_task(task, tenant), *_of_node(node, tenant))
    ends = (pause.until for pause in concerned)
    return max((end for end in ends if end is not None and end <= now), default=None)


def _of_task(task: TaskRow, tenant: TenantRow | None) -> Iterator[PauseRow]:
    for pause in () if tenant is None else tenant.pauses:
        match pause.scope:
            case PauseScope.ALL | PauseScope.TENANT:
                yield pause
            case PauseScope.TYPE if pause.name == task.type:
                yield pause


def _of_node(node: IncarnationRow, tenant: TenantRow | None) -> Iterator[PauseRow]:
    for pause in () if tenant is None else tenant.pauses:
        match pause.scope:
            case PauseScope.NODE if pause.name == node.node_id:
                yield pause
            case PauseScope.LABEL if pause.name in map("=".join, node.facts.labels):
                yield pause


def _in_force(pauses: Iterable[PauseRow], now: int) -> tuple[PauseRow, ...]:
    return tuple(pause for pause in pauses if pause.until is None or pause.until > now)
