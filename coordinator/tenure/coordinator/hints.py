"""Tells the relays that the log has grown, so that they need not ask all the time.

Only a hint: a relay that missed it looks by itself a little later. It goes in a transaction of its
own, since a commit that notifies waits for every other that does, and at most one is under way:
what commits meanwhile is covered by the next.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from tenure.contract.topology import LOG_CHANNEL
from tenure.coordinator.core.decisions import Happened
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.postgres import ConnectionLost, Pool, PostgresError

log = structlog.get_logger()

SHORTEST_PAUSE_SECONDS: Final = 0.002
LONGEST_PAUSE_SECONDS: Final = 0.05
PAUSE_FACTOR: Final = 4.0
"""A hint is followed by a pause of so many times its own length: where time is scarce there are
fewer, and each relay then reads more at once."""

_QUERY: Final = named_queries.load("loops.sql")["hint"]


class Hints:
    """``on_commit`` whenever rows were appended; ``run`` sends the hints."""

    def __init__(
        self, send: Callable[[], Awaitable[object]], *, failure_pause_seconds: float = 1.0
    ) -> None:
        self._send = send
        self._failure_pause_seconds = failure_pause_seconds
        self._due = asyncio.Event()

    def on_commit(self, _: Sequence[Happened]) -> None:
        """There is something new in the log."""
        self._due.set()

    async def run(self) -> None:
        """Until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._due.wait()
            self._due.clear()
            began = clock()
            try:
                await self._send()
            except (PostgresError, *ConnectionLost) as error:
                log.warning("no hint sent", error=str(error) or type(error).__name__)
                await asyncio.sleep(self._failure_pause_seconds)
            pause = PAUSE_FACTOR * (clock() - began)
            await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, max(SHORTEST_PAUSE_SECONDS, pause)))


def hints_over(pool: Pool) -> Hints:
    """Hints sent through the database."""
    return Hints(lambda: pool.execute(_QUERY, LOG_CHANNEL))
