"""Gates at fault points: an attempt that gets to one stands there until the test lets it go on."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tenure.contract.faultpoints import FaultPoint
from tenure.contract.ids import AttemptId, TaskId


@dataclass(slots=True, eq=False)
class Gate:
    """Catches one attempt of one task. ``caught`` is the attempt once it stands there."""

    point: FaultPoint
    task_id: TaskId
    caught: AttemptId | None = None
    stands: bool = False
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Let it go on."""
        self.opened.set()


class Gates:
    """FaultPoints of all nodes of a fleet. ``is_of`` knows whether an attempt is a task's;
    ``moved`` is called when an attempt is caught or goes on."""

    def __init__(
        self,
        is_of: Callable[[AttemptId, TaskId], Awaitable[bool]],
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self._is_of = is_of
        self._moved = moved
        self._waiting: list[Gate] = []
        self._standing: set[Gate] = set()

    def put(self, point: FaultPoint, task_id: TaskId) -> Gate:
        """A gate for the next attempt of the task that gets to the point."""
        gate = Gate(point, task_id)
        self._waiting.append(gate)
        return gate

    def take_away(self, gate: Gate) -> None:
        """Catch nobody with it."""
        if gate in self._waiting:
            self._waiting.remove(gate)

    def standing(self) -> frozenset[AttemptId]:
        """Attempts that stand at a gate which is shut."""
        return frozenset(
            gate.caught
            for gate in self._standing
            if gate.caught is not None and not gate.opened.is_set()
        )

    def open_all(self) -> None:
        """Let everybody go on, and catch nobody more."""
        self._waiting.clear()
        for gate in self._standing:
            gate.open()

    async def reach(self, point: FaultPoint, subject: str = "") -> None:
        """Implements FaultPoints."""
        attempt_id = AttemptId(subject)
        for gate in [one for one in self._waiting if one.point is point]:
            if await self._is_of(attempt_id, gate.task_id) and gate in self._waiting:
                self._waiting.remove(gate)
                await self._stand(gate, attempt_id)
                return

    async def _stand(self, gate: Gate, attempt_id: AttemptId) -> None:
        gate.caught, gate.stands = attempt_id, True
        self._standing.add(gate)
        self._moved()
        try:
            await gate.opened.wait()
        finally:
            gate.stands = False
            self._standing.discard(gate)
            self._moved()
