"""What a fleet says to people: what it waited for, what to look at, what it cannot be made of."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias

from tenure.contract.faultpoints import FaultPoint
from tenure.contract.states import TERMINAL_ATTEMPT_STATES, TaskState
from tenure.executor.app import Executor
from tenure.executor.declare import HandlerDeclaration
from tenure.executor.testing.story import Attempt, Story

Where: TypeAlias = Literal["handler", "effect"]
_ZOMBIE_POINTS: Final[Mapping[Where, FaultPoint]] = {
    "handler": FaultPoint.BEFORE_HANDLER,
    "effect": FaultPoint.BEFORE_EFFECT,
}
_CAUGHT: Final = {
    FaultPoint.BEFORE_HANDLER: "an attempt whose handler is about to begin",
    FaultPoint.BEFORE_EFFECT: "an attempt whose handler enters `async with"
    " context.side_effect(…)` or an awaited guard's block",
    FaultPoint.BEFORE_REPORT: "an attempt whose handler has ended and is about to report",
}


def in_words(point: FaultPoint) -> str:
    """Who gets to a point."""
    return _CAUGHT.get(point, f"an attempt that gets to {point}")


def look_at(story: Story) -> str:
    """What keeps a task from what was waited for, as far as its history tells."""
    if story.state is TaskState.HELD:
        return "The task is held: its reason is below, and nobody here releases it."
    if story.state is not TaskState.OPEN:
        return (
            f"The task is {story.state} already: ask for what should happen to it before anything"
            " that waits for its end."
        )
    if not story.attempts:
        return (
            "No node has been given the task: look at `not_before`, and whether other handlers"
            " hold all slots."
        )
    last = story.attempts[-1]
    if last.state in TERMINAL_ATTEMPT_STATES:
        return "The next attempt has not been given to a node: a delay, or no node that may."
    return _look_at_attempt(last)


def _look_at_attempt(last: Attempt) -> str:
    if not last.began:
        return (
            f"The handler of attempt {last.ordinal} has not begun: look at its guards, whose fences"
            " are raised first, and at whether a fault of this test holds it."
        )
    return (
        f"The handler of attempt {last.ordinal} has begun and not ended, or its report is on its"
        " way: what does it wait for? An instant that it has passed, or never comes to, is waited"
        " for in the next attempt."
    )


def zombie_point(declaration: HandlerDeclaration, at: Where) -> FaultPoint:
    """Where a zombie of this handler is stopped. Raises ValueError where it cannot be."""
    if at not in _ZOMBIE_POINTS:
        raise ValueError(f"at={at!r} is none of {', '.join(_ZOMBIE_POINTS)}")
    if at == "effect" and not (declaration.is_async and declaration.runs_in == "executor"):
        where = {"process": "in a process of its own", "command": "as a program"}
        raise ValueError(
            f"the handler of {declaration.task_type.name!r} runs"
            f" {where.get(declaration.runs_in, 'in a thread')}: only a coroutine can be stopped at"
            " its effect. Leave `at` out: it is stopped as it is about to begin."
        )
    return _ZOMBIE_POINTS[at]


def check_fleet(app: Any, nodes: int) -> None:
    """Raises TypeError for what is no executor, ValueError for no nodes or handlers."""
    if not isinstance(app, Executor):
        raise TypeError(f"{_named(app)} is no Executor: {_instead(app)}")
    if nodes < 1 or not app.handlers:
        raise ValueError("a fleet has one node at least, and its executor one handler")


def _named(app: Any) -> str:
    return f"module {app.__name__}" if isinstance(app, ModuleType) else repr(app)


def _instead(app: Any) -> str:
    if not isinstance(app, ModuleType):
        return "give the object that has the handlers"
    names = [name for name, value in vars(app).items() if isinstance(value, Executor)]
    if not names:
        return "and there is none in it"
    return f"give {' or '.join(f'{app.__name__}.{name}' for name in names)}"
