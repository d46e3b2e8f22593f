"""Reads outside the lanes: a small pool, repeated while the database is away, up to a deadline.

Reads change nothing, so any of them may be repeated. Each purpose has a pool of its own: what
executors need must not queue behind what people look at.
"""

from typing import Any, Final, Protocol

import asyncpg
from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from tenure.coordinator.errors import Unavailable

_TRANSIENT_CLASSES: Final = frozenset(
    {
        "08",  # connection
        "40",  # rolled back, repeat
        "53",  # out of connections, memory, disk
        "55",  # a lock or object is not available now
        "57",  # cancelled, shut down, starting up
    }
)
_STALE_PLAN: Final = "0A000"  # a migration changed what a prepared statement returns


def is_transient(error: BaseException) -> bool:
    """Whether the same statement may succeed later.

    asyncpg shows some lost connections as InterfaceError, and refusals to connect as OSError.
    """
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state[:2] in _TRANSIENT_CLASSES or state == _STALE_PLAN
    return isinstance(error, asyncpg.InterfaceError | OSError | TimeoutError)


class Reader(Protocol):
    """Runs one read. A seam: tests put their own connection here."""

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """All rows. Raises Unavailable."""


class PoolReader:
    """Reads over a pool, repeated with jitter for at most ``deadline_seconds``."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", *, deadline_seconds: float) -> None:
        self._pool = pool
        self._deadline_seconds = deadline_seconds

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """All rows of ``query``.

        Raises Unavailable when the database stays away, and asyncpg.PostgresError for a fault in
        the query or the schema.
        """
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_delay(self._deadline_seconds),
                wait=wait_random_exponential(multiplier=0.05, max=1.0),
                retry=retry_if_exception(is_transient),
                reraise=True,
            ):
                with attempt:
                    return await self._once(query, arguments)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            if not is_transient(error):
                raise
            raise Unavailable(
                f"The database did not answer within {self._deadline_seconds:g} s.",
            ) from error
        raise AssertionError("an attempt either returns or raises")

    async def _once(self, query: str, arguments: tuple[Any, ...]) -> list[asyncpg.Record]:
        timeout = self._deadline_seconds / 2
        async with self._pool.acquire(timeout=timeout) as connection:
            return await connection.fetch(query, *arguments, timeout=timeout)
