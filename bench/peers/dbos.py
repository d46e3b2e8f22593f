"""DBOS: durable workflows in PostgreSQL, without a broker. One worker process, its queue polled
every 50 ms, a pool of 20 connections; a workflow without steps; enqueued from 8 threads.

``python -m bench.peers.dbos`` is the worker.
"""

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from dbos import DBOS, DBOSClient

from bench.peers.databases import nothing_left, own_database
from bench.peers.workers import THREADS, URL_VARIABLE, BlockingSender, worker
from bench.records import Writer
from bench.sides import Side, until
from tenure.cli.local.stack import Stack

NAME: Final = "bench"
WORKFLOW: Final = "handle"
POLLING_SECONDS: Final = 0.05
POOL: Final = 20
READY: Final = "select to_regclass('dbos.queues') is not null"
REGISTERED: Final = "select exists (select from dbos.queues where name = 'bench')"
LEFT: Final = (
    "select exists (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING'))"
)


@asynccontextmanager
async def side(stack: Stack, directory: Path) -> AsyncIterator[Side]:
    """One worker process, on a database of its own on the server of the stack."""
    file, log = directory / "dbos.records", directory / "dbos.log"
    arguments = ["bench.peers.dbos"]
    async with (
        own_database(stack, "dbos") as (url, database),
        worker(arguments, url=url, records=file, log=log) as pid,
    ):

        async def ready() -> bool:
            # The worker makes the tables.
            return bool(await database.fetchval(READY) and await database.fetchval(REGISTERED))

        await until(ready)
        client: Any = DBOSClient(system_database_url=url, system_database_pool_size=THREADS)
        options = {"queue_name": NAME, "workflow_name": WORKFLOW}
        sender = BlockingSender(lambda: client.enqueue(options, time.monotonic_ns()))
        try:
            yield Side(
                "DBOS",
                file,
                sender.send,
                sender.send_many,
                nothing_left(database, LEFT),
                {"postgres": stack.postgres.pid},
                {"worker": pid},
            )
        finally:
            sender.close()
            client.destroy()


def work() -> None:
    """The worker, until a signal ends it."""
    writer = Writer()
    ending = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # in all threads, which inherit it
    DBOS(
        config={
            "name": NAME,
            "system_database_url": os.environ[URL_VARIABLE],
            "sys_db_pool_size": POOL,
            "log_level": "WARNING",
        }
    )

    def handle(sent: int) -> None:
        writer.write(sent)

    DBOS.workflow(name=WORKFLOW)(handle)
    DBOS.launch()
    DBOS.register_queue(NAME, polling_interval_sec=POLLING_SECONDS)
    signal.sigwait(ending)
    DBOS.destroy()


if __name__ == "__main__":
    work()
