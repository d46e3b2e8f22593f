"""What both fleets refuse, and what they say of a wait that does not end."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tenure.cli.testing.fleet import ServerFleet
from tenure.cli.testing.servers import Servers
from tenure.contract.faultpoints import FaultPoint
from tenure.contract.states import AttemptState, TaskState
from tenure.executor import Executor
from tenure.executor.testing import Attempt, Fleet, MemoryFleet, Story
from tenure.executor.testing.messages import in_words, look_at
from tests.support import kit_app


def on_servers(app: Any, **options: Any) -> Fleet:
    """A fleet on servers that none have been started for."""
    return ServerFleet(app, Servers(), **options)


BOTH = pytest.mark.parametrize("make", [MemoryFleet, on_servers], ids=["in memory", "on servers"])


@BOTH
@pytest.mark.parametrize(
    ("app", "words"),
    [
        (
            "tests.support.kit_app:app",
            "'tests.support.kit_app:app' is no Executor: give the object",
        ),
        (kit_app, "module tests.support.kit_app is no Executor: give tests.support.kit_app.app"),
        (math, "module math is no Executor: and there is none in it"),
        (ModuleType("two"), "module two is no Executor"),
    ],
)
def test_what_is_no_executor_is_refused(make: Callable[..., Fleet], app: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make(app)


@BOTH
def test_a_fleet_without_nodes_or_handlers_is_refused(make: Callable[..., Fleet]) -> None:
    for app, nodes in ((kit_app.app, 0), (Executor("empty", version="1"), 2)):
        with pytest.raises(ValueError, match="one node at least, and its executor one handler"):
            make(app, nodes=nodes)


@BOTH
async def test_time_runs_forward(make: Callable[..., Fleet]) -> None:
    with pytest.raises(ValueError, match="time runs forward"):
        await make(kit_app.app).clock.advance(seconds=-1)


def test_instants_are_told_in_words() -> None:
    assert in_words(FaultPoint.BEFORE_HANDLER) == "an attempt whose handler is about to begin"
    assert "context.side_effect(…)" in in_words(FaultPoint.BEFORE_EFFECT)
    assert in_words(FaultPoint.AFTER_ACK) == "an attempt that gets to after_ack"


def attempt(state: AttemptState, *, began: bool) -> Attempt:
    """The first of its task."""
    return Attempt(1, "a", "node-1", 1, state, None, None, began, None)


@pytest.mark.parametrize(
    ("state", "attempts", "words"),
    [
        (TaskState.HELD, (), "The task is held"),
        (TaskState.FAILED, (), "The task is failed already"),
        (TaskState.OPEN, (), "No node has been given the task: look at `not_before`"),
        (
            TaskState.OPEN,
            (attempt(AttemptState.RUNNING, began=False),),
            "The handler of attempt 1 has not begun: look at its guards",
        ),
        (
            TaskState.OPEN,
            (attempt(AttemptState.RUNNING, began=True),),
            "The handler of attempt 1 has begun and not ended",
        ),
        (
            TaskState.OPEN,
            (attempt(AttemptState.EXPIRED, began=True),),
            "The next attempt has not been given to a node",
        ),
    ],
)
def test_a_wait_that_does_not_end_says_what_to_look_at(
    state: TaskState, attempts: tuple[Attempt, ...], words: str
) -> None:
    story = Story("t", "ship", state, None, None, None, attempts, (), ())
    assert look_at(story).startswith(words)
