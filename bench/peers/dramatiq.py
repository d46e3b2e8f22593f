"""Dramatiq: its durable queue and persistent messages, publisher confirms, one worker process with
8 threads, its default middleware and prefetch; tasks are sent from 8 threads.

``python -m dramatiq bench.peers.dramatiq`` is the worker; it finds ``broker`` and the actor here.
"""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from bench.peers.workers import THREADS, URL_VARIABLE, BlockingSender, worker
from bench.records import Writer
from bench.sides import Side, nothing_kept
from tenure.cli.local.stack import Stack

QUEUE: Final = "bench.dramatiq"
writer: Final = cache(Writer)  # the sender has none


def handle(sent: int) -> None:
    """The task."""
    writer().write(sent)


def connected(url: str) -> tuple[Any, Any]:
    """A broker and the actor on it. Heartbeats off: a sender's threads are idle between turns."""
    there: Any = RabbitmqBroker(url=f"{url}?heartbeat=0", confirm_delivery=True)
    actor: Any = dramatiq.actor(handle, queue_name=QUEUE, broker=there)
    return there, actor


if URL_VARIABLE in os.environ:  # in the worker
    broker, _ = connected(os.environ[URL_VARIABLE])
    dramatiq.set_broker(broker)


@asynccontextmanager
async def side(stack: Stack, directory: Path) -> AsyncIterator[Side]:
    """One worker process, on the broker of the stack."""
    url, file = stack.connection().broker_url, directory / "dramatiq.records"
    there, actor = connected(url)
    sender = BlockingSender(lambda: actor.send(time.monotonic_ns()))
    arguments = ["dramatiq", "bench.peers.dramatiq", "--processes", "1", "--threads", str(THREADS)]
    log = directory / "dramatiq.log"
    try:
        async with worker(arguments, url=url, records=file, log=log) as pid:
            yield Side(
                "Dramatiq",
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
