"""Celery: its durable queue and persistent messages, publisher confirms, acknowledged after the
handler, no results, one worker process with 8 threads and prefetch 64 for each, without gossip,
mingle, heartbeats and events; tasks are sent from 8 threads.

Threads and not processes: the faster of the two for a task that does nothing.
``python -m celery -A bench.peers.celery worker`` is the worker; it finds ``app`` here.
"""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from celery import Celery

from bench.peers.workers import THREADS, URL_VARIABLE, BlockingSender, worker
from bench.records import Writer
from bench.sides import Side, nothing_kept
from tenure.cli.local.stack import Stack

QUEUE: Final = "bench.celery"
TASK: Final = "bench.handle"
writer: Final = cache(Writer)  # the sender has none


def handle(sent: int) -> None:
    """The task."""
    writer().write(sent)


def connected(url: str) -> tuple[Any, Any]:
    """An application and the task in it."""
    there: Any = Celery("bench", broker=url)
    there.conf.update(
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=64,
        broker_transport_options={"confirm_publish": True},
        broker_pool_limit=THREADS,
        broker_heartbeat=0,
    )
    return there, there.task(handle, name=TASK)


if URL_VARIABLE in os.environ:  # in the worker
    app, _ = connected(os.environ[URL_VARIABLE])


@asynccontextmanager
async def side(stack: Stack, directory: Path) -> AsyncIterator[Side]:
    """One worker process, on the broker of the stack."""
    url, file = stack.connection().broker_url, directory / "celery.records"
    there, task = connected(url)
    sender = BlockingSender(lambda: task.delay(time.monotonic_ns()))
    arguments = ["celery", "-A", "bench.peers.celery", "worker", "--pool", "threads"]
    arguments += ["--concurrency", str(THREADS), "--loglevel", "WARNING"]
    arguments += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    log = directory / "celery.log"
    try:
        async with worker(arguments, url=url, records=file, log=log) as pid:
            yield Side(
                "Celery",
                file,
                sender.send,
                sender.send_many,
                nothing_kept,
                {"rabbitmq": stack.rabbitmq.pid},
                {"worker": pid},
            )
    finally:
        sender.close()
        there.close()
