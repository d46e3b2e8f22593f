"""Messages of this incarnation's queue. The only module that knows AMQP.

Messages are notifications: they are acknowledged as soon as they are durably accepted, and the work
goes on whatever becomes of the connection. Deliveries are handed to a loop of ours, since the
library cancels its callbacks when the channel closes. The queue is the coordinator's: it is
declared passively, and while it is missing the coordinator is asked for it by registering again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import aio_pika
import structlog
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aiormq.exceptions import AMQPError, ChannelNotFoundEntity

from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.executor.core.intake import Ack
from tenure.executor.errors import BrokerUnavailable, BrokerUntrusted, ExecutorError
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition, jitter_seconds
from tenure.settings.addresses import Address, asked
from tenure.settings.tls import tls_fault

OPERATION_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 10.0
"""How often it is checked that the broker still counts us as a consumer."""
BATCH: Final = 256

_LOST: Final = (AMQPError, OSError, TimeoutError, RuntimeError)
"""A lost or refused operation; the library shows a closed channel as RuntimeError."""

log = structlog.get_logger("tenure.executor")


class Consumer:
    """``run`` consumes until ``stop`` was called and what had arrived is settled."""

    def __init__(
        self,
        url: Address,
        *,
        queue: str,
        prefetch: int,
        receive: Callable[[Sequence[bytes]], Awaitable[list[Ack]]],
        queue_missing: Callable[[], None],
        consuming: Callable[[], None],
        condition: Condition,
        metrics: ExecutorMetrics,
        watch_seconds: float = WATCH_SECONDS,
        faults: FaultPoints = NO_FAULTS,
    ) -> None:
        """``receive`` takes in a batch and says how each message leaves the queue; it raises
        ExecutorError when none may. ``consuming`` is called at the begin of each session."""
        self._url = url
        self._queue_name = queue
        self._prefetch = prefetch
        self._receive = receive
        self._queue_missing = queue_missing
        self._consuming = consuming
        self._condition = condition
        self._metrics = metrics
        self._watch_seconds = watch_seconds
        self._faults = faults
        self._stopping = asyncio.Event()
        self._session: _Session | None = None

    def stop(self) -> None:
        """Take nothing new."""
        self._stopping.set()
        if self._session is not None:
            self._session.wake()

    async def run(self) -> None:
        """Sessions, one after the other, with jitter between them."""
        failures = 0
        while not self._stopping.is_set():
            session = self._session = _Session(self._prefetch)
            try:
                await self._serve(session)
            except ExecutorError as error:
                self._condition.trouble(error)
            except _LOST as error:
                self._condition.trouble(_refusal(error))
            except asyncio.CancelledError as error:
                # The library also cancels what waits on a connection that it gives up.
                task = asyncio.current_task()
                if task is None or task.cancelling() > 0:
                    raise
                self._condition.trouble(_refusal(error))
            finally:
                await session.close()
            failures = 1 if session.consumed else failures + 1
            await self._pause(jitter_seconds(failures))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _serve(self, session: "_Session") -> None:
        """One connection, until it is lost or consuming is over."""
        try:
            await session.open(asked(self._url), self._queue_name)
        except ChannelNotFoundEntity as error:
            self._queue_missing()
            raise BrokerUnavailable(f"the queue {self._queue_name} is not there (yet).") from error
        self._metrics.consumer_sessions.inc()
        self._condition.well()
        self._consuming()
        watch = asyncio.create_task(self._watch(session))
        try:
            await self._pump(session)
        finally:
            watch.cancel()
            await asyncio.wait({watch})

    async def _pump(self, session: "_Session") -> None:
        """Take in what arrives, in batches of whatever has arrived meanwhile."""
        while True:
            batch = await session.next_batch(last=self._stopping.is_set)
            if not batch:
                return
            acks = await self._receive([message.body for message in batch])
            await _settle(batch, acks)
            await self._faults.reach(FaultPoint.AFTER_ACK)

    async def _watch(self, session: "_Session") -> None:
        """Consumers were lost unnoticed in many ways: ask the broker whether we are one."""
        while True:
            await asyncio.sleep(self._watch_seconds)
            if self._stopping.is_set():
                return
            try:
                attached = await session.is_attached()
            except _LOST as error:
                log.warning("the consumer cannot be checked", error=_said(error))
                attached = False
            if not attached:
                session.lose("the broker has no consumer of ours on the queue")
                return


class _Session:
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
        async with asyncio.timeout(2 * OPERATION_SECONDS):
            self._connection = await aio_pika.connect(url, timeout=OPERATION_SECONDS)
            self._connection.close_callbacks.add(self._on_close)
            self._channel = await self._connection.channel(publisher_confirms=False)
            self._channel.close_callbacks.add(self._on_close)
            underlay = await self._channel.get_underlay_channel()
            underlay.on_consumer_cancel_callbacks.add(self._on_cancel)
            await self._channel.set_qos(self._prefetch)
            self._queue = await self._channel.declare_queue(queue_name, passive=True)
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

    def wake(self) -> None:
        """There is something to look at."""
        self._wake.set()

    async def is_attached(self) -> bool:
        """Whether the broker delivers to us. Raises what a lost operation raises."""
        assert self._channel is not None
        assert self._queue is not None
        async with asyncio.timeout(OPERATION_SECONDS):
            queue = await self._channel.declare_queue(self._queue.name, passive=True)
        declared = queue.declaration_result
        progress = self._delivered != self._delivered_at_check or bool(self._messages)
        self._delivered_at_check = self._delivered
        return bool(declared.consumer_count) and (not declared.message_count or progress)

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
        with suppress(*_LOST):
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
        self.lose(_said(error) if error is not None else "closed")

    def _on_cancel(self, _: object) -> None:
        if self._tag is not None:
            self.lose("the broker cancelled the consumer")


async def _settle(batch: Sequence[AbstractIncomingMessage], acks: Sequence[Ack]) -> None:
    """Let messages leave the queue. Every earlier message of the channel is settled, so one ack
    may speak for the whole batch."""
    if Ack.DEAD_LETTER not in acks:
        await batch[-1].ack(multiple=True)
        return
    for message, ack in zip(batch, acks, strict=True):
        if ack is Ack.DEAD_LETTER:
            await message.reject(requeue=False)
        else:
            await message.ack()


def _refusal(error: BaseException) -> BrokerUnavailable:
    if fault := tls_fault(error, "broker"):
        return BrokerUntrusted(fault.message, next_step=fault.next_step)
    return BrokerUnavailable(
        f"no usable connection to the broker: {_said(error)}.",
        next_step="Check TENURE_BROKER_URL, its login and virtual host, and that the broker runs.",
    )


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
