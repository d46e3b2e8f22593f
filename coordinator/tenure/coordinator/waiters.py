"""Clients that wait for the end of a task, and the one tail of the log that wakes them.

A waiter registers *before* it reads the state, so that a wake between the two is not lost. A wake
only says: look again. This replica's own commits wake directly; for the commits of other replicas
the tail asks the log once a tick, whatever the number of waiters, and not at all when there are
none.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog

from tenure.contract.states import TERMINAL_TASK_STATES, EntityType, TaskState
from tenure.coordinator.core.decisions import Happened
from tenure.coordinator.errors import Overloaded, Unavailable
from tenure.coordinator.store.postgres import PostgresError
from tenure.coordinator.store.views import Ended

log = structlog.get_logger()

WAKING_STATES: Final = frozenset(state.value for state in (*TERMINAL_TASK_STATES, TaskState.HELD))
"""What a client waits for: the end, or that a person is needed."""


class Waiter:
    """One waiting request. ``woken`` is set when it should look again."""

    __slots__ = ("woken",)

    def __init__(self) -> None:
        self.woken = asyncio.Event()


class Waiters:
    """All waiting requests of this replica, by task."""

    def __init__(
        self,
        ended_since: Callable[[int], Awaitable[Ended]],
        *,
        interval_seconds: float,
        max_waiters: int,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._ended_since = ended_since
        self._interval_seconds = interval_seconds
        self._max_waiters = max_waiters
        self._on_tick = on_tick
        self._by_task: dict[str, set[Waiter]] = {}
        self._number = 0
        self._tail: int | None = None  # None: nobody waits, so nothing has to be seen
        self._needed = asyncio.Event()
        self.closing = False

    def __len__(self) -> int:
        return self._number

    @asynccontextmanager
    async def waiting(self, task_id: str) -> AsyncIterator[Waiter]:
        """Registered from here on. Raises Overloaded when too many wait."""
        if self._number >= self._max_waiters:
            raise Overloaded(f"{self._number} requests wait for results already.")
        waiter = Waiter()
        self._by_task.setdefault(task_id, set()).add(waiter)
        self._number += 1
        try:
            yield waiter
        finally:
            self._number -= 1
            others = self._by_task[task_id]
            others.discard(waiter)
            if not others:
                del self._by_task[task_id]
            if self._number == 0:
                self._tail = None
                self._needed.clear()

    def watch_from(self, head: int) -> None:
        """Let the tail begin at ``head`` or before, where a registered waiter read the state.

        Going back costs a few rows; not going back would lose what was committed between the reads
        of two waiters that call this in the other order.
        """
        if self._number > 0:
            self._tail = head if self._tail is None else min(self._tail, head)
            self._needed.set()

    def on_commit(self, events: Sequence[Happened]) -> None:
        """Wake for this replica's own commits."""
        if self._number == 0:
            return
        self.wake(
            event.entity_id
            for event in events
            if event.entity_type is EntityType.TASK and event.next_state in WAKING_STATES
        )

    def wake(self, task_ids: Iterable[str]) -> None:
        """Let the waiters of these tasks look again."""
        for task_id in task_ids:
            for waiter in self._by_task.get(task_id, ()):
                waiter.woken.set()

    def close(self) -> None:
        """Wake everybody, for good: the process is about to stop."""
        self.closing = True
        self.wake(tuple(self._by_task))

    async def run(self) -> None:
        """Follow the log while anybody waits; ends by cancellation."""
        while True:
            await self._needed.wait()
            await self.tick()
            await asyncio.sleep(self._interval_seconds)

    async def tick(self) -> None:
        """One look at the log."""
        position = self._tail
        if position is None:
            return
        self._on_tick()
        try:
            ended = await self._ended_since(position)
        except (Unavailable, PostgresError) as error:
            log.warning("cannot follow the log for waiting clients", error=str(error))
            return
        self.wake(ended.task_ids)
        if ended.head < position:
            # The database has lost its newest history: what was seen may have to be seen again.
            self.wake(tuple(self._by_task))
        # While this looked, everybody may have left, and somebody new have set another beginning.
        if self._tail == position:
            self._tail = min(ended.position, ended.head)
