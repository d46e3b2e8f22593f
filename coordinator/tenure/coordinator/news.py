"""Nodes without a broker that wait for assignments.

An assignment of this replica's own wakes its node at once. What other replicas assign is found by
looking: once a second and node, by one query over an index.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Final

from tenure.contract.ids import IncarnationId
from tenure.contract.reports import Assignment, Assignments
from tenure.contract.states import AttemptState
from tenure.coordinator.core.decisions import Happened
from tenure.coordinator.errors import Overloaded

MAX_NEWS_WAIT_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 1.0
_NEW: Final = frozenset({AttemptState.SUBMITTED, AttemptState.ACCEPTED})


class News:
    """All nodes that wait at this replica."""

    def __init__(self, *, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiting: dict[IncarnationId, set[asyncio.Event]] = {}
        self._number = 0
        self.closing = False

    async def await_change(
        self,
        incarnation: IncarnationId,
        read: Callable[[], Awaitable[Assignments]],
        *,
        seen: str | None,
        wait_seconds: float,
    ) -> Assignments:
        """What ``read`` gives, once that is not ``seen`` any more or the time is over.

        Raises Overloaded when too many wait, and what ``read`` raises.
        """
        if wait_seconds == 0 or seen is None:
            return await read()
        if self._number >= self._max_waiting:
            raise Overloaded(f"{self._number} nodes wait for assignments already.")
        woken = asyncio.Event()
        self._waiting.setdefault(incarnation, set()).add(woken)
        self._number += 1
        try:
            end = asyncio.get_running_loop().time() + wait_seconds
            while True:
                woken.clear()  # before the read: what comes after it is not missed
                found = await read()
                left = end - asyncio.get_running_loop().time()
                if found.version != seen or left <= 0 or self.closing:
                    return found
                try:
                    async with asyncio.timeout(min(left, LOOK_SECONDS)):
                        await woken.wait()
                except TimeoutError:
                    pass  # somebody else may have assigned something
        finally:
            self._number -= 1
            others = self._waiting[incarnation]
            others.discard(woken)
            if not others:
                del self._waiting[incarnation]

    def on_commit(self, events: Sequence[Happened]) -> None:
        """Wake the nodes that this replica's own commits have something for."""
        if self._number == 0:
            return
        for event in events:
            if event.to_node is not None:
                for woken in self._waiting.get(event.to_node, ()):
                    woken.set()

    def close(self) -> None:
        """Answer everybody: the process is about to stop."""
        self.closing = True
        for waiting in self._waiting.values():
            for woken in waiting:
                woken.set()


def version_of(assignments: Sequence[Assignment]) -> str:
    """Stands for what is new in a list: what has not begun, and what is to be cancelled."""
    news = sorted(
        f"{each.attempt_id} {each.cancel_requested}"
        for each in assignments
        if each.state in _NEW or each.cancel_requested
    )
    return sha256("\n".join(news).encode()).hexdigest()[:32]
