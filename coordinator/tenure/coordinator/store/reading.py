"""Reads outside the lanes: a small pool, repeated while the database is away, up to a deadline.

Reads change nothing, so any of them may be repeated. Each purpose has a pool of its own: what
executors need must not queue behind what people look at.
"""

from typing import Any, Final, Protocol

from asyncpg import Record
from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from tenure.coordinator.errors import Unavailable
from tenure.coordinator.store.postgres import (
    NEVER_CANCELLED,
    ConnectionLost,
    Pool,
    PostgresError,
    answering,
)

_TRANSIENT_CLASSES: Final = (
    "08",  # connection
    "40",  # rolled back, repeat
    "53",  # out of connections, memory, disk
    "55",  # a lock or object is not available now
    "57",  # cancelled, shut down, starting up
    "0A000",  # a migration changed what a prepared statement returns
)


def is_transient(error: BaseException) -> bool:
    """Whether the same statement may succeed later."""
    if isinstance(error, ConnectionLost):
        return True
    return isinstance(error, PostgresError) and (error.sqlstate or "").startswith(
        _TRANSIENT_CLASSES
    )


class Reader(Protocol):
    """Runs one read. A seam: tests put their own connection here."""

    async def fetch(self, query: str, *arguments: Any) -> list[Record]:
        """All rows. Raises Unavailable."""


class PoolReader:
    """Reads over a pool, repeated with jitter for at most ``deadline_seconds``."""

    def __init__(self, pool: Pool, *, deadline_seconds: float) -> None:
        self._pool = pool
        self._deadline_seconds = deadline_seconds

    async def fetch(self, query: str, *arguments: Any) -> list[Record]:
        """All rows of ``query``.

        Raises Unavailable when the database stays away, and PostgresError for a fault in
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
        except (PostgresError, *ConnectionLost) as error:
            if not is_transient(error):
                raise
            raise Unavailable(
                f"The database did not answer within {self._deadline_seconds:g} s.",
            ) from error
        raise AssertionError("an attempt either returns or raises")

    async def _once(self, query: str, arguments: tuple[Any, ...]) -> list[Record]:
        timeout = self._deadline_seconds / 2
        async with answering(
            self._pool, timeout_seconds=timeout, answer_seconds=timeout
        ) as connection:
            return await connection.fetch(query, *arguments, timeout=NEVER_CANCELLED)
