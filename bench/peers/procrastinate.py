"""Procrastinate: jobs in PostgreSQL, without a broker. One worker process with 20 jobs at a time,
woken by LISTEN, finished jobs deleted; deferred 500 at a time.

``python -m bench.peers.procrastinate`` is the worker.
"""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import procrastinate
import uvloop

from bench.peers.databases import nothing_left, own_database
from bench.peers.workers import URL_VARIABLE, worker
from bench.records import Writer
from bench.sides import Side
from tenure.cli.local.stack import Stack

TASK: Final = "bench.handle"
AT_ONCE: Final = 500
CONCURRENCY: Final = 20
LEFT: Final = "select exists (select from procrastinate_jobs where status in ('todo', 'doing'))"


def connected(url: str) -> Any:
    """An application on that database, not yet open."""
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))


@asynccontextmanager
async def side(stack: Stack, directory: Path) -> AsyncIterator[Side]:
    """One worker process, on a database of its own on the server of the stack."""
    file, log = directory / "procrastinate.records", directory / "procrastinate.log"
    async with (
        own_database(stack, "procrastinate") as (url, database),
        connected(url).open_async() as app,
    ):
        await app.schema_manager.apply_schema_async()
        job = app.configure_task(TASK)

        async def send_one() -> None:
            await job.defer_async(sent=time.monotonic_ns())

        async def send_many(count: int) -> None:
            for start in range(0, count, AT_ONCE):
                size = min(AT_ONCE, count - start)
                await job.batch_defer_async(*({"sent": time.monotonic_ns()} for _ in range(size)))

        arguments = ["bench.peers.procrastinate"]
        async with worker(arguments, url=url, records=file, log=log) as pid:
            yield Side(
                "Procrastinate",
                file,
                send_one,
                send_many,
                nothing_left(database, LEFT),
                {"postgres": stack.postgres.pid},
                {"worker": pid},
            )


async def work() -> None:
    """The worker, until a signal ends it."""
    writer = Writer()
    app = connected(os.environ[URL_VARIABLE])

    async def handle(sent: int) -> None:
        writer.write(sent)

    app.task(handle, name=TASK)
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="successful")


if __name__ == "__main__":
    uvloop.run(work())
