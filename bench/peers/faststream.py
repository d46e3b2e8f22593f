"""FastStream: durable queue, persistent messages, publisher confirms, prefetch 500, acknowledged
after the handler, uvloop.

The sender is here as well; ``python -m bench.peers.faststream`` is the worker.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import uvloop
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from bench.peers.workers import URL_VARIABLE, worker
from bench.records import Writer
from bench.sides import Side, nothing_kept
from tenure.cli.local.stack import Stack

QUEUE: Final = RabbitQueue("bench.faststream", durable=True)
AT_ONCE: Final = 500


class Sender:
    """Sends over one connection and waits for the broker's confirms."""

    def __init__(self, url: str) -> None:
        self._broker: Any = RabbitBroker(url, logger=None)

    async def start(self) -> None:
        """Connect and declare the queue."""
        await self._broker.connect()
        await self._broker.declare_queue(QUEUE)

    async def send(self) -> None:
        """One task; returns once the broker has it."""
        await self._broker.publish({"sent": time.monotonic_ns()}, queue=QUEUE, persist=True)

    async def send_many(self, count: int) -> None:
        """``AT_ONCE`` at a time."""
        for start in range(0, count, AT_ONCE):
            await asyncio.gather(*(self.send() for _ in range(min(AT_ONCE, count - start))))

    async def stop(self) -> None:
        """Disconnect."""
        await self._broker.stop()


@asynccontextmanager
async def side(stack: Stack, directory: Path) -> AsyncIterator[Side]:
    """One worker process, on the broker of the stack."""
    url, file = stack.connection().broker_url, directory / "faststream.records"
    sender = Sender(url)
    await sender.start()
    arguments, log = ["bench.peers.faststream"], directory / "faststream.log"
    try:
        async with worker(arguments, url=url, records=file, log=log) as pid:
            yield Side(
                "FastStream",
                file,
                sender.send,
                sender.send_many,
                nothing_kept,
                {"rabbitmq": stack.rabbitmq.pid},
                {"worker": pid},
            )
    finally:
        await sender.stop()


async def work() -> None:
    """The worker, until a signal ends it."""
    writer = Writer()
    channel = Channel(prefetch_count=AT_ONCE)
    broker: Any = RabbitBroker(os.environ[URL_VARIABLE], logger=None, default_channel=channel)

    async def handle(message: dict[str, int]) -> None:
        writer.write(message["sent"])

    broker.subscriber(QUEUE, ack_policy=AckPolicy.NACK_ON_ERROR)(handle)
    await FastStream(broker, logger=None).run()


if __name__ == "__main__":
    uvloop.run(work())
