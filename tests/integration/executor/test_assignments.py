"""Messages are taken from a real broker, acknowledged when stored, and never lost by us."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import DeliveryError

from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.contract.topology import (
    dead_letter_queue,
    dead_letter_queue_arguments,
    node_queue_arguments,
)
from tenure.executor.assignments import WATCH_SECONDS, AssignmentConsumer
from tenure.executor.core.intake import Ack
from tenure.executor.errors import InboxUnavailable
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition
from tests.support.isolation import BrokerSpace
from tests.support.waiting import eventually


class Node:
    """A consumer, and what it took in."""

    def __init__(self, url: str, queue: str, watch_seconds: float) -> None:
        self.taken: list[bytes] = []
        self.batches: list[int] = []
        self.obstacle: Exception | None = None
        self.missing = 0
        self.sessions = 0
        self.condition = Condition("the broker")
        self.consumer = AssignmentConsumer(
            url,
            queue=queue,
            prefetch=20,
            receive=self.receive,
            queue_missing=self._count_missing,
            consuming=self._count_session,
            condition=self.condition,
            metrics=ExecutorMetrics(),
            watch_seconds=watch_seconds,
        )

    async def receive(self, bodies: Sequence[bytes]) -> list[Ack]:
        if self.obstacle is not None:
            raise self.obstacle
        self.batches.append(len(bodies))
        self.taken.extend(bodies)
        return [Ack.DEAD_LETTER if body == b"poison" else Ack.AFTER_STORING for body in bodies]

    def _count_missing(self) -> None:
        self.missing += 1

    def _count_session(self) -> None:
        self.sessions += 1

    async def took(self, *bodies: bytes) -> None:
        await eventually(lambda: set(bodies) <= set(self.taken))

    async def consuming(self, sessions: int = 1) -> None:
        await eventually(lambda: self.sessions >= sessions)


@asynccontextmanager
async def consuming(
    url: str, queue: str, *, watch_seconds: float = WATCH_SECONDS
) -> AsyncIterator[Node]:
    node = Node(url, queue, watch_seconds)
    running = asyncio.create_task(node.consumer.run())
    try:
        yield node
        node.consumer.stop()
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Bench:
    """The coordinator's side of the broker: it declares and sends."""

    def __init__(self, channel: AbstractChannel, prefix: str) -> None:
        self.channel = channel
        self.prefix = prefix
        self.queue = f"{prefix}.node.default.i-1"

    async def declare(self) -> None:
        await self.channel.declare_queue(
            dead_letter_queue(self.prefix), durable=True, arguments=dead_letter_queue_arguments()
        )
        await self.channel.declare_queue(
            self.queue, durable=True, arguments=node_queue_arguments(self.prefix)
        )

    async def send(self, *bodies: bytes) -> None:
        for body in bodies:
            await self.channel.default_exchange.publish(
                aio_pika.Message(body, delivery_mode=2, message_id=body.decode()), self.queue
            )

    async def waiting(self, queue: str | None = None) -> int:
        """Messages that wait in a queue, unacknowledged ones not counted."""
        declared = await self.channel.declare_queue(queue or self.queue, passive=True)
        return declared.declaration_result.message_count or 0


@asynccontextmanager
async def bench_on(url: str, prefix: str) -> AsyncIterator[Bench]:
    connection = await aio_pika.connect(url)
    async with connection:
        yield Bench(await connection.channel(), prefix)


@pytest.fixture
async def bench(broker: BrokerSpace) -> AsyncIterator[Bench]:
    async with bench_on(broker.url, broker.name_prefix) as made:
        await made.declare()
        yield made


async def test_messages_leave_the_queue_once_they_are_taken_in(
    bench: Bench, broker: BrokerSpace
) -> None:
    bodies = [str(number).encode() for number in range(100)]
    await bench.send(*bodies)
    async with consuming(broker.url, bench.queue) as node:
        await node.took(*bodies)
        assert node.condition.usable
    assert sum(node.batches) == 100
    assert await bench.waiting() == 0


@pytest.mark.requirement("OPS-01")
async def test_messages_stay_while_they_cannot_be_stored(bench: Bench, broker: BrokerSpace) -> None:
    await bench.send(b"1", b"2", b"3")
    async with consuming(broker.url, bench.queue) as node:
        node.obstacle = InboxUnavailable("the disk is full.")
        await node.consuming(sessions=2)
        await eventually(lambda: not node.condition.usable)
        assert node.taken == []
        node.obstacle = None
        await node.took(b"1", b"2", b"3")


async def test_a_message_that_cannot_be_read_goes_to_the_dead_letters(
    bench: Bench, broker: BrokerSpace
) -> None:
    await bench.send(b"1", b"poison", b"2")
    async with consuming(broker.url, bench.queue) as node:
        await node.took(b"1", b"2", b"poison")

    async def parked() -> bool:
        return await bench.waiting(dead_letter_queue(bench.prefix)) == 1

    await eventually(parked)
    assert await bench.waiting() == 0


async def test_a_missing_queue_is_asked_for_and_waited_for(broker: BrokerSpace) -> None:
    async with (
        bench_on(broker.url, broker.name_prefix) as bench,
        consuming(broker.url, bench.queue) as node,
    ):
        await eventually(lambda: node.missing >= 2)
        await bench.declare()
        await bench.send(b"1")
        await node.took(b"1")


async def test_a_queue_that_was_deleted_is_asked_for_again(
    bench: Bench, broker: BrokerSpace
) -> None:
    async with consuming(broker.url, bench.queue) as node:
        await node.consuming()
        await bench.channel.queue_delete(bench.queue)
        await eventually(lambda: node.missing >= 1)
        await bench.declare()
        await bench.send(b"1")
        await node.took(b"1")
        assert node.sessions >= 2


async def test_what_was_not_taken_in_when_consuming_stops_is_in_the_queue_again(
    bench: Bench, broker: BrokerSpace
) -> None:
    await bench.send(*(str(number).encode() for number in range(50)))
    async with consuming(broker.url, bench.queue) as node:
        await eventually(lambda: bool(node.taken))

    async def all_there() -> bool:
        return len(node.taken) + await bench.waiting() == 50

    await eventually(all_there)


async def test_a_consumer_that_the_broker_has_lost_is_noticed(
    bench: Bench, broker: BrokerSpace
) -> None:
    async with consuming(broker.url, bench.queue, watch_seconds=0.2) as node:
        await node.consuming()
        session = node.consumer._session
        assert session is not None
        assert session._queue is not None
        assert session._tag is not None
        await session._queue.cancel(session._tag)  # behind its back
        await node.consuming(sessions=2)
        await bench.send(b"1")
        await node.took(b"1")


async def test_consuming_goes_on_after_the_broker_was_killed(
    private_rabbitmq: PrivateRabbitmq,
) -> None:
    async with bench_on(private_rabbitmq.url(), "t") as bench:
        await bench.declare()
        await bench.send(b"before")
        queue = bench.queue
    # RabbitMQ 3.10 may never elect a leader for a quorum queue that was killed as soon as it had
    # been declared; one that has been shut down once is on disk for good.
    await private_rabbitmq.stop()
    await private_rabbitmq.start()
    async with consuming(private_rabbitmq.url(), queue) as node:
        await node.took(b"before")
        private_rabbitmq.kill()
        await eventually(lambda: not node.condition.usable)
        await private_rabbitmq.start()
        async with bench_on(private_rabbitmq.url(), "t") as bench:

            async def sent() -> bool:
                try:
                    await bench.send(b"after")
                except DeliveryError:
                    return False  # a quorum queue needs a moment to elect its leader
                return True

            await eventually(sent)
            await node.took(b"after")
        assert node.condition.usable


async def test_a_broker_that_is_away_does_not_keep_a_consumer_from_stopping() -> None:
    async with consuming("amqp://guest:guest@127.0.0.1:1/", "q") as node:
        await eventually(lambda: node.condition.error is not None)
    assert not node.condition.usable
