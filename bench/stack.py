"""Tenure and its peers on one pair of servers."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

import asyncpg

from bench.noop import Noop, Sent
from bench.records import FILE_VARIABLE
from bench.sides import Side, until
from tenure.cli.local.stack import ExecutorSpec, Stack
from tenure.client import AsyncClient

TENURE: Final = "Tenure"
PEERS: Final = ("faststream", "dramatiq", "celery", "procrastinate", "dbos")
BATCH: Final = 500
SENDERS: Final = 2
SLOTS: Final = 256
OPEN_TASKS: Final = "select exists (select from tenure.tasks where state = 'open')"
Peer = Callable[[Stack, Path], AbstractAsyncContextManager[Side]]


def say(name: str, words: str) -> None:
    """Tell people what happens; the tables go to standard output."""
    print(f"{name}: {words}", file=sys.stderr, flush=True)


@asynccontextmanager
async def tenure_stack(directory: Path) -> AsyncIterator[tuple[Stack, Side]]:
    """The servers, a coordinator, a relay and an executor, and how to use them."""
    file = directory / "tenure.records"
    spec = ExecutorSpec("executor", "bench.noop:app", SLOTS, lambda: {FILE_VARIABLE: str(file)})
    stack = Stack(directory / "stack", [spec], say=say)
    try:
        await stack.start()
        async with _tenure_side(stack, file) as side:
            yield stack, side
    finally:
        await stack.stop()


@asynccontextmanager
async def all_sides(
    directory: Path, peers: Sequence[str]
) -> AsyncIterator[tuple[Stack, list[Side]]]:
    """Tenure first, then the peers, all running on the servers of one stack."""
    async with tenure_stack(directory) as (stack, ours), AsyncExitStack() as others:
        sides = [ours]
        for name in peers:
            # Only what is asked for: each is a package that need not be there.
            peer: Peer = import_module(f"bench.peers.{name}").side
            sides.append(await others.enter_async_context(peer(stack, directory)))
        yield stack, sides


async def servers(database_url: str) -> str:
    """The database server by name and version, for the line about the machine."""
    database = await asyncpg.connect(database_url, ssl=False)
    try:
        return f"PostgreSQL {await database.fetchval('show server_version')}"
    finally:
        await database.close()


@asynccontextmanager
async def _tenure_side(stack: Stack, file: Path) -> AsyncIterator[Side]:
    """Tenure through its client, over HTTP."""
    connection = stack.connection()
    database = await asyncpg.connect(connection.database_url, ssl=False)

    async def settled() -> None:
        async def nothing_left() -> bool:
            if await database.fetchval(OPEN_TASKS):
                return False
            return (await operator.outbox()).lag_rows == 0

        await until(nothing_left)

    async def send_one() -> None:
        await client.submit(Noop, Sent(sent=time.monotonic_ns()))

    async def send_batch(count: int) -> None:
        await client.submit_many(Noop, [Sent(sent=time.monotonic_ns()) for _ in range(count)])

    async def send_many(count: int) -> None:
        batches = iter([min(BATCH, count - start) for start in range(0, count, BATCH)])

        async def some() -> None:
            for size in batches:
                await send_batch(size)

        await asyncio.gather(*(some() for _ in range(SENDERS)))

    try:
        async with (
            AsyncClient(connection.url, connection.tokens["application"]) as client,
            AsyncClient(connection.url, connection.tokens["operator"]) as operator,
        ):
            yield Side(
                TENURE,
                file,
                send_one,
                send_many,
                settled,
                {"postgres": stack.postgres.pid, "rabbitmq": stack.rabbitmq.pid},
                {name: pid for name, program in stack.processes.items() if (pid := program.pid)},
            )
    finally:
        await database.close()
