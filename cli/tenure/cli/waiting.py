"""What a task that waits is waiting for, in words for people."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from tenure.cli.output import cell
from tenure.contract.states import NodeState, Phase
from tenure.contract.tasks import NodeView, TaskSummary

SILENCE_SECONDS: Final = 30.0
"""A node that works is heard more often; one that was killed counts as active for a while."""


def waits_for(task: TaskSummary, nodes: Iterable[NodeView], now: datetime | None = None) -> str:
    """Why no node has the task; empty when it does not wait, or nothing here tells."""
    if task.phase is not Phase.WAITING:
        return ""
    if task.not_before is not None and task.not_before > (now or datetime.now(UTC)):
        return f"its time: not before {cell(task.not_before)}"
    takers = [
        node
        for node in nodes
        if node.state == NodeState.ACTIVE.value and task.type in node.task_types
    ]
    if not takers:
        return f"an executor: none that runs declares {task.type!r}; see `tenure node list`"
    silence = min(node.seconds_since_seen for node in takers)
    if silence > SILENCE_SECONDS:
        return f"an executor: none that declares {task.type!r} was heard for {silence:.0f} s"
    if all(node.slots_used >= node.slots for node in takers):
        return "a free slot: every node that takes its type is full; see `tenure node list`"
    return ""
