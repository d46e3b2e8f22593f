"""What a test has in hand: submit tasks to an executor, let time pass, and do harm.

One interface, two fleets behind it: ``MemoryFleet`` needs no server and decides with the
coordinator's own rules, and ``tenure.cli.testing.ServerFleet`` is PostgreSQL, RabbitMQ, a
coordinator and a relay. A test does not say which.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from pydantic import BaseModel

from tenure.contract.ids import TaskId
from tenure.contract.scope import Scope
from tenure.contract.states import TaskState
from tenure.contract.tasktype import TaskType
from tenure.executor.app import Executor
from tenure.executor.testing.messages import Where
from tenure.executor.testing.story import Attempt, Receipt, Story

InputT = TypeVar("InputT", bound=BaseModel)
OutputT = TypeVar("OutputT", bound=BaseModel)

OPENED_BY_THE_LIFESPAN: Final = object()


class Stuck(AssertionError):
    """What a test waits for does not come; the message has the task's history."""


class NotOpen(RuntimeError):
    """A fleet is used outside of its block."""

    def __init__(self) -> None:
        super().__init__("the fleet is not open: `async with tenure_fleet(app) as fleet`")


class NotDelivered(AssertionError):
    """A task ended, or is held, without an output; the message has its history."""

    def __init__(self, story: Story) -> None:
        super().__init__(f"no output:\n{story}")
        self.story = story


@dataclass(frozen=True, slots=True)
class FleetTask(Generic[OutputT]):
    """A task that was submitted. Its output's type comes with it."""

    task_id: str
    output: type[OutputT]


def id_of(task: FleetTask[Any]) -> TaskId:
    """Which task is meant. Raises TypeError for what is none, like a submission that is not awaited
    or an id."""
    if not isinstance(task, FleetTask):
        raise TypeError(f"{task!r} is no task: give what `await fleet.submit(…)` gave back")
    return TaskId(task.task_id)


class Clock(Protocol):
    """The authority's time, which the nodes share."""

    @property
    def now(self) -> datetime:
        """In UTC."""

    async def advance(self, *, seconds: float) -> None:
        """Let time pass: leases are renewed where nothing keeps them from it and run out where
        something does, delays end."""


class Fleet(ABC):
    """Use it as ``async with``. Everything is awaited in the test's own event loop."""

    clock: Clock

    # Work ----------------------------------------------------------------------------------------

    @abstractmethod
    async def submit(
        self,
        task_type: TaskType[InputT, OutputT],
        input: InputT,
        *,
        priority: int = 0,
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        idempotency_key: str | None = None,
        scope: Scope | None = None,
        traceparent: str | None = None,
    ) -> FleetTask[OutputT]:
        """Submit a task. Nothing of it begins before the test waits for something.

        Raises TypeError for an input of another type, AssertionError for one that is refused,
        NotOpen.
        """

    @abstractmethod
    async def run_until_idle(self) -> None:
        """Until nothing goes on by itself any more: every task has ended, is held, or waits for
        something that the test has to do. Time passes where only time is waited for (a delay, the
        lease of a node that is gone). Raises Stuck when a handler does not end."""

    async def result(self, task: FleetTask[OutputT]) -> OutputT:
        """The output, once the task is delivered. Raises NotDelivered, Stuck."""
        await self.ended(task)
        story = await self.story(task)
        if story.state is not TaskState.DELIVERED:
            raise NotDelivered(story)
        return task.output.model_validate(story.output)

    @abstractmethod
    async def ended(self, task: FleetTask[Any]) -> Story:
        """Wait until the task has ended, or is held. Raises Stuck."""

    @abstractmethod
    async def story(self, task: FleetTask[Any]) -> Story:
        """Everything about a task, as it is now."""

    @abstractmethod
    async def cancel(self, task: FleetTask[Any]) -> None:
        """Ask for its cancellation, as an application does."""

    # Harm ----------------------------------------------------------------------------------------

    @abstractmethod
    async def expire_lease(self, task: FleetTask[Any]) -> Attempt:
        """Let the lease of its attempt run out: no renewal gets through.

        A handler that runs is ended by the watchdog. Where none runs, the next one is caught as it
        is about to have control, and never has it. Gives back the attempt as it ended.
        """

    @abstractmethod
    async def late_receipt(self, task: FleetTask[Any]) -> Receipt:
        """Let the handler do all its work, and its report come too late: the lease has run out by
        then, and the next attempt has ended. Gives back the receipt, which is evidence only."""

    @abstractmethod
    async def duplicate(self, task: FleetTask[Any]) -> int:
        """Let the assignment of its attempt arrive once more, while the attempt runs and after its
        end. Gives back how many copies the node has recognised."""

    @abstractmethod
    async def reorder(self, task: FleetTask[Any]) -> Attempt:
        """Let the assignment of its first attempt arrive after that of the second. Gives back the
        first attempt, which nobody has begun."""

    @abstractmethod
    async def kill_relay_after_confirm(self, task: FleetTask[Any]) -> int:
        """Kill the relay when the broker has confirmed the task's assignment and the cursor has not
        been moved; its successor publishes again. Gives back how often the assignment came."""

    @abstractmethod
    async def zombie(self, task: FleetTask[Any], *, at: Where = "handler") -> Attempt:
        """Stop a node whose handler is about to have control (``at="effect"``: about to write); let
        its lease run out and another node do the work; then let the first go on, sure that its
        lease is live.

        Its handler runs to its end, and only its receivers stand in its way. Gives back its
        attempt: ``raised`` is what the handler met, None where nobody refused it. Effects are those
        of coroutines: ``async with context.side_effect(...)``, and the guards that are awaited. A
        handler in a process of its own, or a command, is stopped as its process is about to be
        started. Raises ValueError for an effect of a handler that is no coroutine, and for a fleet
        without a second node.
        """

    @abstractmethod
    async def kill_node(self, task: FleetTask[Any]) -> Attempt:
        """End the process that runs the task's handler when its work is done and not reported, as
        SIGKILL does. The node starts again. Gives back the attempt, which is lost."""

    # Life ----------------------------------------------------------------------------------------

    @abstractmethod
    async def open(self) -> None:
        """Start. Called by ``async with``."""

    @abstractmethod
    async def close(self) -> None:
        """End everything that runs. Called by ``async with``."""

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    def tell(self) -> str:
        """The stories of all tasks as they are known here, for a failing test. Never raises."""


class MakeFleet(Protocol):
    """The fixture ``tenure_fleet``: makes a fleet of nodes that run an executor."""

    def __call__(
        self,
        app: Executor,
        *,
        nodes: int = 2,
        slots: int = 4,
        lease_seconds: float | None = None,
        resources: Any = OPENED_BY_THE_LIFESPAN,
        patience_seconds: float | None = None,
    ) -> Fleet:
        """``resources``: what handlers find as ``context.resources`` in place of what the lifespan
        opens, for all nodes the same. ``lease_seconds``: of the policy; None: the usual ones.
        ``patience_seconds``: how long, by a real clock, a wait may take until it is Stuck."""
