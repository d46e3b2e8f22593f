"""What the peers have in common that keep their tasks in PostgreSQL."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg

from bench.sides import until
from tenure.cli.local.stack import Stack


@asynccontextmanager
async def own_database(stack: Stack, name: str) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    """The URL of a fresh database on the stack's server, and a connection to look into it."""
    await stack.postgres.ensure_database(name)
    url = stack.postgres.url(name)
    connection = await asyncpg.connect(url, ssl=False)
    try:
        yield url, connection
    finally:
        await connection.close()


def nothing_left(connection: asyncpg.Connection, question: str) -> Callable[[], Awaitable[None]]:
    """A ``settled`` that asks until the answer is that no task is unfinished."""

    async def settled() -> None:
        async def none() -> bool:
            return not await connection.fetchval(question)

        await until(none)

    return settled
