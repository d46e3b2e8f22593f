"""What came of a run, judged."""

import inspect
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

from tenure.contract.states import TaskState

NAMED: Final = 20
"""So many faults are named; the rest are counted."""


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """One attempt. ``started``: whether its handler was begun."""

    ordinal: int
    state: str
    reason: str | None
    node: str
    fencing_token: int
    started: bool

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        begun = "" if self.started else ", never begun"
        return (
            f"attempt {self.ordinal} on {self.node} under token {self.fencing_token}:"
            f" {self.state}{why}{begun}"
        )


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What a check is given of each task, in the order of their submission. ``input`` and
    ``output`` are JSON; ``output`` is None unless it was delivered."""

    task_id: str
    type: str
    effects: str
    state: str
    reason: str | None
    input: Any
    output: Any
    attempts: tuple[AttemptOutcome, ...]

    @property
    def delivered(self) -> bool:
        """Whether its output is the active delivery."""
        return self.state == TaskState.DELIVERED

    @property
    def interrupted(self) -> int:
        """How often its handler was begun and did not come to a delivery."""
        return sum(one.started and one.state != "delivered" for one in self.attempts)

    def __str__(self) -> str:
        tried = "; ".join(map(str, self.attempts)) or "no attempt"
        return (
            f"task {self.task_id} of type {self.type!r} (declared {self.effects}),"
            f" {self.state}: {tried}"
        )


Found: TypeAlias = Mapping[str, int] | Iterable[str] | None
Check: TypeAlias = Callable[[Sequence[TaskOutcome]], Found | Awaitable[Found]]
"""Looks at what the handlers wrote. Returns how many effects each task has there, by task id; or
complaints; or None, where nothing is wrong. It may be a coroutine, and may raise AssertionError."""


def judge(tasks: Sequence[TaskOutcome], told: Sequence[str]) -> list[str]:
    """What is wrong with the tasks themselves. ``told``: whom submitters were told of."""
    faults = [
        f"task {one} was answered to its submitter and does not exist"
        for one in sorted(set(told) - {task.task_id for task in tasks})
    ]
    for task in tasks:
        if task.state == TaskState.OPEN:
            faults.append(f"has not ended: {task}")
        if task.state == TaskState.HELD and not task.reason:
            faults.append(f"is held without a reason: {task}")
        tokens = [one.fencing_token for one in task.attempts]
        if any(later <= earlier for earlier, later in pairwise(tokens)):
            faults.append(f"its tokens do not grow: {task}")
        if sum(one.state == "delivered" for one in task.attempts) > 1:
            faults.append(f"was delivered twice: {task}")
    return faults


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check finds wrong. ``twice``: types of which an effect was there more than once, with
    what they declare."""

    faults: list[str]
    twice: Mapping[str, str]


async def checked(check: Check, tasks: Sequence[TaskOutcome]) -> Verdict:
    """Ask the check. What it raises is a fault too: AssertionError by what it says, all else with
    its traceback on standard error."""
    try:
        found = check(tasks)
        if inspect.isawaitable(found):
            found = await found
    except AssertionError as error:
        return Verdict([f"the check says: {str(error) or 'assertion failed'}"], {})
    except Exception as error:  # noqa: BLE001 - somebody else's code
        traceback.print_exception(error)
        return Verdict([f"the check failed: {type(error).__name__}: {error}"], {})
    if found is None:
        return Verdict([], {})
    if isinstance(found, Mapping):
        return _once(found, tasks)
    return Verdict([f"the check says: {one}" for one in found], {})


def _once(effects: Mapping[str, int], tasks: Sequence[TaskOutcome]) -> Verdict:
    """Each delivered task has one effect, every other one at most."""
    faults: list[str] = []
    twice: dict[str, str] = {}
    for task in tasks:
        number = effects.get(task.task_id, 0)
        if number > 1:
            faults.append(f"{number} effects instead of one: {task}")
            twice[task.type] = task.effects
        elif number < 1 and task.delivered:
            faults.append(f"delivered without its effect: {task}")
    strangers = effects.keys() - {task.task_id for task in tasks}
    faults += [f"an effect of a task that nobody submitted: {one}" for one in sorted(strangers)]
    return Verdict(faults, twice)


def advice(twice: Mapping[str, str]) -> list[str]:
    """What the declarations of such types promise."""
    return [
        f"{name!r} is declared {effects}: {_PROMISES[effects]}"
        for name, effects in sorted(twice.items())
    ]


_PROMISES: Final = {
    "none": "an attempt that is lost is tried again, so its handler must change nothing",
    "idempotent": "an attempt that is lost is tried again, so doing it twice must be as once:"
    " key what it writes by context.task_id, or write through a guard",
    "guarded": "every effect must go through its guards, inside their transaction",
    "unguarded": "it was to be begun once, and an operator or the application let it begin again",
}


def counted(words: Iterable[str]) -> dict[str, int]:
    """How often each, the most frequent first."""
    return dict(Counter(words).most_common())
