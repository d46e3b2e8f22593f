"""A synchronous standby that stops answering.

A commit that waits for its standby is ended by no timeout, not even by the end of its connection,
and holds its locks meanwhile. So nothing more is begun once one was seen: callers are told to
repeat, before their deadline, and the sessions that stay behind on the server are as many as there
are lanes. A commit whose wait somebody ended is on this server and perhaps nowhere else; it counts
as unknown, and nothing it did is told to anybody before a later commit has reached the standby.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import structlog

from tenure.coordinator.errors import StandbyNotAnswering
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.postgres import ConnectionLost, Pool, PostgresError, warnings_of

log = structlog.get_logger()

WAITING_SINCE: Final = timedelta(seconds=3)
"""A commit that waits for so long waits for a standby that does not answer."""
PROBE_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.5

_QUERIES: Final = named_queries.load("system.sql")


class StandbyWatch:
    """Whether commits reach the synchronous standby, if there is one."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._silent = asyncio.Event()

    @property
    def silent(self) -> bool:
        """A commit waits, or waited in vain, and none has reached the standby since."""
        return self._silent.is_set()

    def refusal(self) -> StandbyNotAnswering | None:
        """What is said instead of committing, while it is silent."""
        if not self.silent:
            return None
        return StandbyNotAnswering("A synchronous standby of the database does not answer.")

    async def look(self) -> None:
        """Whether a commit waits for a standby. A database that does not say is another matter."""
        try:
            waiting = await self._pool.fetchval(_QUERIES["waiting_for_standby"], WAITING_SINCE)
        except (PostgresError, *ConnectionLost):
            return
        if waiting:
            self._fell_silent(commits=waiting)

    @contextmanager
    def attended(self, connection: Any) -> Iterator[None]:
        """For one commit. Raises TimeoutError, its outcome is unknown, when its wait for the
        standby was ended."""
        with warnings_of(connection) as warnings:
            yield
        if warnings:
            self._fell_silent(warning=warnings[0])
            raise TimeoutError("the wait for a standby was ended")

    async def run(self) -> None:
        """Until cancelled: find out when the standby is back."""
        while True:
            await self._silent.wait()
            if await self._reached():
                self._silent.clear()
                log.info("commits reach the standby again")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _reached(self) -> bool:
        """Commit something that is about nothing. Whatever was committed before it has then reached
        the standby too."""
        try:
            async with self._pool.acquire() as connection:
                with warnings_of(connection) as warnings:
                    await connection.execute(_QUERIES["probe_standby"], timeout=PROBE_SECONDS)
        except (PostgresError, *ConnectionLost):
            return False
        return not warnings

    def _fell_silent(self, **known: object) -> None:
        if not self.silent:
            log.error(
                "a synchronous standby does not answer: nothing is committed until it does",
                next_step="Bring it back, or take it out of synchronous_standby_names.",
                **known,
            )
        self._silent.set()
