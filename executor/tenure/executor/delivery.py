"""One connection to the broker with one consumer on it. The only module that knows AMQP.

Deliveries are handed to a loop of ours, since the library cancels its callbacks when the channel
closes. Queues are the coordinator's: they are declared passively.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aiormq.exceptions import AMQPError, ChannelNotFoundEntity

from tenure.executor.errors import BrokerUnavailable, BrokerUntrusted
from tenure.settings.tls import tls_fault

OPERATION_SECONDS: Final = 5.0
BATCH: Final = 256

LOST: Final = (AMQPError, OSError, TimeoutError, RuntimeError)
"""A lost or refused operation; the library shows a closed channel as RuntimeError."""

Message: TypeAlias = AbstractIncomingMessage


@contextmanager
def as_lost() -> Iterator[None]:
    """Around an acknowledgement: where the connection goes meanwhile, the library may raise a bare
    Exception, which becomes a ConnectionError here. Whatever else is raised passes."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise ConnectionError("the connection was lost meanwhile") from error


class QueueMissing(BrokerUnavailable):
    """The queue is not there, or not yet."""


class Session:
    """One connection with one consumer."""

    def __init__(self, prefetch: int) -> None:
        self._prefetch = prefetch
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._queue: AbstractQueue | None = None
        self._tag: str | None = None
        self._messages: list[AbstractIncomingMessage] = []
        self._wake = asyncio.Event()
        self._lost: str | None = None
        self._delivered = 0
        self._delivered_at_check = 0
        self.consumed = False

    async def open(self, url: str, queue_name: str) -> None:
        """Connect and begin to consume. Raises QueueMissing, and what LOST names."""
        async with asyncio.timeout(2 * OPERATION_SECONDS):
            self._connection = await aio_pika.connect(url, timeout=OPERATION_SECONDS)
            self._connection.close_callbacks.add(self._on_close)
            self._channel = await self._connection.channel(publisher_confirms=False)
            self._channel.close_callbacks.add(self._on_close)
            underlay = await self._channel.get_underlay_channel()
            underlay.on_consumer_cancel_callbacks.add(self._on_cancel)
            await self._channel.set_qos(self._prefetch)
            try:
                self._queue = await self._channel.declare_queue(queue_name, passive=True)
            except ChannelNotFoundEntity as error:
                raise QueueMissing(f"the queue {queue_name} is not there (yet).") from error
            self._tag = await self._queue.consume(self._on_message)
        self.consumed = True

    async def next_batch(self, last: Callable[[], bool]) -> list[AbstractIncomingMessage]:
        """What has arrived, at least one; empty once consuming is over, as ``last`` tells.

        Raises BrokerUnavailable when the session was lost: what had arrived comes again.
        """
        while True:
            self._wake.clear()
            if self._lost is not None:
                raise BrokerUnavailable(f"the connection was lost: {self._lost}.")
            if self._messages:
                batch, self._messages = self._messages[:BATCH], self._messages[BATCH:]
                return batch
            if not last():
                await self._wake.wait()
            elif self._tag is None:
                return []
            else:
                await self._cancel()  # what was on its way may have arrived meanwhile

    @property
    def lost(self) -> bool:
        """Whether what was delivered here can be settled no more: it comes again."""
        return self._lost is not None

    def wake(self) -> None:
        """There is something to look at."""
        self._wake.set()

    async def is_attached(self, *, idle: bool = True) -> bool:
        """Whether the broker delivers to us; ``idle``: nothing here keeps it from doing so. Raises
        what LOST names."""
        assert self._channel is not None
        assert self._queue is not None
        async with asyncio.timeout(OPERATION_SECONDS):
            queue = await self._channel.declare_queue(self._queue.name, passive=True)
        declared = queue.declaration_result
        progress = self._delivered != self._delivered_at_check or bool(self._messages)
        self._delivered_at_check = self._delivered
        stuck = idle and bool(declared.message_count) and not progress
        return bool(declared.consumer_count) and not stuck

    def lose(self, why: str) -> None:
        """Nothing good can come of this session any more."""
        if self._lost is None:
            self._lost = why
        self._wake.set()

    async def close(self) -> None:
        """Close, within a limit: a blocked broker does not answer a close either."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.close_callbacks.discard(self._on_close)
        with suppress(*LOST):
            async with asyncio.timeout(OPERATION_SECONDS):
                await connection.close()

    async def _cancel(self) -> None:
        """Take nothing more from the queue."""
        assert self._queue is not None
        tag, self._tag = self._tag, None
        if tag is not None:
            async with asyncio.timeout(OPERATION_SECONDS):
                await self._queue.cancel(tag)

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        self._delivered += 1
        self._messages.append(message)
        self._wake.set()

    def _on_close(self, _: object, error: BaseException | None = None) -> None:
        self.lose(said(error) if error is not None else "closed")

    def _on_cancel(self, _: object) -> None:
        if self._tag is not None:
            self.lose("the broker cancelled the consumer")


def refusal(error: BaseException) -> BrokerUnavailable:
    """What is wrong with the broker, as an error of ours."""
    if fault := tls_fault(error, "broker"):
        return BrokerUntrusted(fault.message, next_step=fault.next_step)
    return BrokerUnavailable(
        f"no usable connection to the broker: {said(error)}.",
        next_step="Check TENURE_BROKER_URL, its login and virtual host, and that the broker runs.",
    )


def said(error: BaseException) -> str:
    """An error in words."""
    return str(error) or type(error).__name__
