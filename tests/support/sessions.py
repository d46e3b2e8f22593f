"""Two sessions of one server, and waiting until one of them stands still."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg

from tests.support.waiting import eventually


@asynccontextmanager
async def session(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection for the length of a block, in which its server may be killed."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await part(connection)


async def part(connection: asyncpg.Connection) -> None:
    """Close it; a server that was just killed may answer even that with a reset."""
    with contextlib.suppress(OSError, asyncpg.PostgresConnectionError):
        await connection.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until ``condition`` holds. The test's own timeout ends a wait in vain: how busy the
    machine is says nothing about it."""
    await eventually(condition)


async def blocked(observer: asyncpg.Connection, waiting: asyncpg.Connection) -> None:
    """Wait until the session ``waiting`` waits for a lock."""
    pid = waiting.get_server_pid()

    async def waits() -> bool:
        return bool(await observer.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid))

    await until(waits)
