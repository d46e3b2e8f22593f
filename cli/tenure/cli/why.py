"""``tenure why``."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final

from cyclopts import Parameter

from tenure.cli.connection import open_client
from tenure.cli.exits import UsageError
from tenure.cli.output import Output, ago, cell, print_fields, print_json, print_table
from tenure.contract.flow import PauseView
from tenure.contract.limits import ReachedLimit
from tenure.contract.scheduling import Explanation, FilterView

START_ONE: Final = "start an executor that has it, `tenure executor MODULE:NAME`"
_TYPE_NOT_RUN: Final = "type_not_run"

TaskIdWord = Annotated[
    str, Parameter(name="ID", help="Of the task, as `tenure submit` and `tenure task list` say it.")
]


def why(
    task_id: TaskIdWord | None = None,
    /,
    *,
    backlog: Annotated[
        bool, Parameter(negative="", help="Of everything that waits, by kind.")
    ] = False,
    output: Output = "table",
) -> None:
    """Say why a task is not running: what each filter says of each node, and its turn."""
    if backlog == (task_id is not None):
        raise UsageError("name one task, or ask for the --backlog.")
    if task_id is None:
        _why_backlog(output)
    else:
        _why_task(task_id, output)


def _why_task(task_id: str, output: str) -> None:
    async def read() -> Any:
        async with open_client() as client:
            return await client.task(task_id).why()

    found = asyncio.run(read())
    if output == "json":
        print_json(found)
        return
    print_fields(
        [
            ("task", found.task_id),
            ("type", found.type),
            ("phase", found.phase.value),
            ("reason", found.reason),
            ("since", ago(found.since)),
            ("not before", found.not_before),
            ("deadline", found.deadline),
            ("node", found.node_id),
            ("turn", found.position and f"number {found.position} of what waits"),
            ("profile", f"{found.explanation.profile_digest} ({found.explanation.match.value})"),
            ("because", sentence(found.explanation, found.type)),
        ]
    )
    print()
    print_explanation(found.explanation)


def _why_backlog(output: str) -> None:
    async def read() -> Any:
        async with open_client() as client:
            return await client.backlog()

    found = asyncio.run(read())
    if output == "json":
        print_json(found)
        return
    wait = "task waits" if found.waiting == 1 else "tasks wait"
    print(f"{found.waiting} {wait} for a node, {found.not_before} for their time")
    for group in found.groups:
        print(
            f"\n{group.tasks} of type {group.type}, the oldest of {ago(group.oldest)},"
            f" like {group.example_task_id}: {sentence(group.explanation, group.type)}"
        )
        print_explanation(group.explanation)


def sentence(explained: Explanation, task_type: str) -> str:
    """The standing of a task of that type, for people; what they have to do about it, where nothing
    else would help."""
    there = explained.nodes - sum(explained.unavailable.values())
    everyone = "the one node" if there == 1 else f"each of {there} nodes"
    excluded: Counter[str] = Counter()
    for one in explained.filters:
        excluded.update(one.codes)
    if explained.standing == "excluded" and excluded[_TYPE_NOT_RUN] == there:
        away = _counted(explained.unavailable)
        who = f"no node that takes work runs the type {task_type!r} (away{away})"
        return f"{who if away else f'no node runs the type {task_type!r}'}: {START_ONE}"
    if explained.standing == "no_node" and explained.nodes == 0:
        return f"there is no node: {START_ONE}"
    return {
        "ended": "it has ended",
        "held": "it is held: somebody has to decide",
        "with_a_node": "a node has it",
        "not_before": "its time has not come",
        "deadline_passed": "its deadline has passed: it ends now",
        "limited": "a limit is reached: " + "; ".join(map(_limit, explained.limits)),
        "paused": "it is paused: " + "; ".join(map(_pause, explained.pauses)),
        "no_node": "no node takes work now" + _counted(explained.unavailable),
        "excluded": f"{everyone} is excluded{_counted(excluded)}",
        "queued": f"{explained.eligible} of {there} nodes can take it: it waits for its turn",
    }.get(explained.standing, explained.standing)


def _pause(pause: PauseView) -> str:
    """A pause in words."""
    until = "" if pause.until is None else f", until {cell(pause.until)}"
    scope = f"{pause.scope.value} {pause.name}".strip()
    return f"{scope} by {pause.paused_by}{until}: {pause.reason}"


def _limit(limit: ReachedLimit) -> str:
    """A limit in words."""
    key = "" if limit.key is None else f" for the key {limit.key!r}"
    words = []
    if limit.max_running is not None and limit.running >= limit.max_running:
        words.append(f"{limit.running} of at most {limit.max_running} run")
    if limit.next_start is not None:
        words.append(f"the next start is at {cell(limit.next_start)}")
    return f"{limit.scope.value} {limit.name}{key}: {', '.join(words)}"


def _counted(codes: Mapping[str, int]) -> str:
    """What keeps nodes away, the most frequent first."""
    ordered = sorted(codes.items(), key=lambda one: (-one[1], one[0]))
    return f": {', '.join(f'{number} {code}' for code, number in ordered)}" if ordered else ""


def print_explanation(explained: Explanation) -> None:
    """What each filter says of the nodes."""
    away = _counted(explained.unavailable)
    nodes = "1 node" if explained.nodes == 1 else f"{explained.nodes} nodes"
    print(nodes + (f", of which are away{away}" if away else ""))
    for pause in explained.pauses:
        print(f"paused: {_pause(pause)}")
    for limit in explained.limits:
        print(f"limit: {_limit(limit)}")
    print_table(
        ["filter", "excludes", "why", "nearest", "wants", "finds"],
        [_row(one) for one in explained.filters],
    )


def _row(one: FilterView) -> tuple[object, ...]:
    reasons = ", ".join(f"{number} {code}" for code, number in one.codes.items())
    if one.nearest is None:
        return one.filter, one.removed, None, None, None, None
    near = one.nearest
    return one.filter, one.removed, reasons, near.node_id, near.wanted, near.found
