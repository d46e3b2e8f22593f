"""Why a task is not running: what each filter says of every node (SCHED-02). Pure; decides nothing.

It asks the very functions that decide, for every node and every filter, not only for the first that
excludes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tenure.contract.ids import IncarnationId, NodeId
from tenure.contract.states import AttemptState, TaskState
from tenure.coordinator.core import flow
from tenure.coordinator.core.filters import (
    FILTERS,
    Excluded,
    Exclusion,
    Filter,
    exclusions,
    has_rejected,
    paused,
    unavailable,
)
from tenure.coordinator.core.limits import Reached, reached
from tenure.coordinator.core.rows import IncarnationRow, PauseRow, TaskRow, TenantRow


class Standing(StrEnum):
    """Why a task is where it is, in one word."""

    ENDED = "ended"
    HELD = "held"  # a person has to decide
    WITH_A_NODE = "with_a_node"
    NOT_BEFORE = "not_before"  # its time has not come
    DEADLINE_PASSED = "deadline_passed"  # it ends as soon as the sweeper comes by
    PAUSED = "paused"  # everything, its tenant or its type: somebody has to resume it
    LIMITED = "limited"  # as many run, or have started, as a limit of the tenant lets
    NO_NODE = "no_node"  # the tenant has no node that takes work now
    EXCLUDED = "excluded"  # every node is excluded by a filter
    QUEUED = "queued"  # a node can take it: its turn comes


@dataclass(frozen=True, slots=True)
class Miss:
    """The node that came nearest to passing a filter. ``others``: filters that exclude it too."""

    node_id: NodeId
    incarnation: IncarnationId
    excluded: Excluded
    others: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One filter over all nodes that are there."""

    filter: Filter
    removed: int
    codes: Mapping[Exclusion, int]
    nearest: Miss | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Counts of nodes. ``unavailable`` are not asked any filter. ``pauses``: those in force that
    keep the task from every node, or every task from some of the nodes. ``limits``: those that are
    reached."""

    standing: Standing
    nodes: int
    unavailable: Mapping[Exclusion, int]
    eligible: int
    verdicts: tuple[Verdict, ...]
    pauses: tuple[PauseRow, ...] = ()
    limits: tuple[Reached, ...] = ()


def explain(
    task: TaskRow,
    attempt: AttemptState | None,
    nodes: Sequence[IncarnationRow],
    tenant: TenantRow | None,
    now: int,
    silence_microseconds: int,
) -> Explanation:
    """What every filter says of every one of ``nodes``. ``attempt``: state of the current one."""
    away: Counter[Exclusion] = Counter()
    misses: dict[Filter, list[Miss]] = {name: [] for name, _ in FILTERS}
    eligible = 0
    of_task = flow.pauses_of_task(task, tenant, now)
    pauses = dict.fromkeys(of_task)
    for node in nodes:
        absent = unavailable(node, now, silence_microseconds)
        if absent is None and has_rejected(task, node):
            absent = Excluded(Exclusion.TASK_REJECTED, "a node that takes it", "it has rejected it")
        if absent is None and (of_node := flow.pauses_of_node(node, tenant, now)):
            pauses |= dict.fromkeys(of_node)
            absent = paused(of_node[0])
        if absent is not None:
            away[absent.code] += 1
            continue
        found = exclusions(task, node, tenant, now)
        eligible += not found
        for name, excluded in found:
            others = tuple(other for other, _ in found if other is not name)
            misses[name].append(Miss(node.node_id, node.incarnation, excluded, others))
    reached_limits = reached(task, tenant, now)
    kept = Standing.PAUSED if of_task else Standing.LIMITED if reached_limits else None
    return Explanation(
        standing=_standing(task, attempt, kept, now, len(nodes) - away.total(), eligible),
        nodes=len(nodes),
        unavailable=dict(away),
        eligible=eligible,
        verdicts=tuple(_verdict(name, misses[name]) for name, _ in FILTERS),
        pauses=tuple(pauses),
        limits=reached_limits,
    )


def _verdict(name: Filter, misses: Sequence[Miss]) -> Verdict:
    """The nearest miss is the node that the fewest other filters exclude, then the one that lacks
    the least."""
    nearest = min(
        misses,
        key=lambda miss: (len(miss.others), miss.excluded.distance, miss.node_id, miss.incarnation),
        default=None,
    )
    codes = Counter(miss.excluded.code for miss in misses)
    return Verdict(name, len(misses), dict(sorted(codes.items())), nearest)


def _standing(
    task: TaskRow,
    attempt: AttemptState | None,
    kept: Standing | None,
    now: int,
    available: int,
    eligible: int,
) -> Standing:
    if task.state is TaskState.HELD:
        return Standing.HELD
    if task.state is not TaskState.OPEN:
        return Standing.ENDED
    if attempt is not None:
        return Standing.WITH_A_NODE
    if task.deadline is not None and task.deadline <= now:
        return Standing.DEADLINE_PASSED
    if task.not_before is not None and task.not_before > now:
        return Standing.NOT_BEFORE
    if kept is not None:
        return kept
    if not available:
        return Standing.NO_NODE
    return Standing.QUEUED if eligible else Standing.EXCLUDED
