"""Work by stream: each stream in order, many streams at once."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import TypeAlias

Job: TypeAlias = Callable[[], Awaitable[None]]


class Room:
    """For so many at once; or for one that wants to be alone."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._inside = 0
        self._lonely = 0  # who wants to be alone and waits, or is in
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def place(self, *, alone: bool = False) -> AsyncIterator[None]:
        """A place for the length of a block. Who wants to be alone goes before who does not."""
        async with self._changed:
            if alone:
                self._lonely += 1
                try:
                    await self._changed.wait_for(lambda: self._inside == 0)
                except BaseException:
                    self._lonely -= 1
                    self._changed.notify_all()
                    raise
                self._inside = self._places
            else:
                await self._changed.wait_for(
                    lambda: self._lonely == 0 and self._inside < self._places
                )
                self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= self._places if alone else 1
                self._lonely -= alone
                self._changed.notify_all()


class Lanes:
    """``put`` work of a stream behind what waits there; jobs take a place in ``room`` while they
    work, and none while they wait to try again, so that at most ``concurrency`` streams are worked
    on at once. A job must not raise."""

    def __init__(self, concurrency: int) -> None:
        self.room = Room(concurrency)
        self._waiting: dict[Hashable, deque[Job]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, stream: Hashable, job: Job) -> None:
        """Work, in its turn."""
        if stream in self._waiting:
            self._waiting[stream].append(job)
            return
        self._waiting[stream] = deque([job])
        task = asyncio.create_task(self._work(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def __contains__(self, stream: Hashable) -> bool:
        """Whether work of this stream waits or is under way."""
        return stream in self._waiting

    async def empty(self) -> None:
        """Until nothing waits and nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """End what is under way and forget what waits."""
        tasks = set(self._tasks)
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, stream: Hashable) -> None:
        while waiting := self._waiting.get(stream):
            await waiting[0]()
            waiting.popleft()
        self._waiting.pop(stream, None)
