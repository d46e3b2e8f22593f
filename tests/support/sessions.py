"""Two sessions of one server, and waiting until one of them stands still."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg


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


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 120) -> None:
    """Wait until ``condition`` holds. Raises TimeoutError when it does not."""
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


async def blocked(observer: asyncpg.Connection, waiting: asyncpg.Connection) -> None:
    """Wait until the session ``waiting`` waits for a lock."""
    pid = waiting.get_server_pid()

    async def waits() -> bool:
        return bool(await observer.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid))

    await until(waits)
