"""Messages of this incarnation's queue.

Messages are notifications: they are acknowledged as soon as they are durably accepted, and the work
goes on whatever becomes of the connection. While the queue is missing the coordinator is asked for
it by registering again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.executor.core.intake import Ack
from tenure.executor.delivery import (
    LOST,
    Message,
    QueueMissing,
    Session,
    as_lost,
    refusal,
    said,
)
from tenure.executor.errors import ExecutorError
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition, jitter_seconds
from tenure.settings.addresses import Address, asked

WATCH_SECONDS: Final = 10.0
"""How often it is checked that the broker still counts us as a consumer."""

log = structlog.get_logger("tenure.executor")


class AssignmentConsumer:
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
        self._session: Session | None = None

    def stop(self) -> None:
        """Take nothing new."""
        self._stopping.set()
        if self._session is not None:
            self._session.wake()

    async def run(self) -> None:
        """Sessions, one after the other, with jitter between them."""
        failures = 0
        while not self._stopping.is_set():
            session = self._session = Session(self._prefetch)
            try:
                await self._serve(session)
            except ExecutorError as error:
                self._condition.trouble(error)
            except LOST as error:
                self._condition.trouble(refusal(error))
            except asyncio.CancelledError as error:
                # The library also cancels what waits on a connection that it gives up.
                task = asyncio.current_task()
                if task is None or task.cancelling() > 0:
                    raise
                self._condition.trouble(refusal(error))
            finally:
                await session.close()
            failures = 1 if session.consumed else failures + 1
            await self._pause(jitter_seconds(failures))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _serve(self, session: Session) -> None:
        """One connection, until it is lost or consuming is over."""
        try:
            await session.open(asked(self._url), self._queue_name)
        except QueueMissing:
            self._queue_missing()
            raise
        self._metrics.consumer_sessions.inc()
        self._condition.well()
        self._consuming()
        watch = asyncio.create_task(self._watch(session))
        try:
            await self._pump(session)
        finally:
            watch.cancel()
            await asyncio.wait({watch})

    async def _pump(self, session: Session) -> None:
        """Take in what arrives, in batches of whatever has arrived meanwhile."""
        while True:
            batch = await session.next_batch(last=self._stopping.is_set)
            if not batch:
                return
            acks = await self._receive([message.body for message in batch])
            with as_lost():
                await _settle(batch, acks)
            await self._faults.reach(FaultPoint.AFTER_ACK)

    async def _watch(self, session: Session) -> None:
        """Consumers were lost unnoticed in many ways: ask the broker whether we are one."""
        while True:
            await asyncio.sleep(self._watch_seconds)
            if self._stopping.is_set():
                return
            try:
                attached = await session.is_attached()
            except LOST as error:
                log.warning("the consumer cannot be checked", error=said(error))
                attached = False
            if not attached:
                session.lose("the broker has no consumer of ours on the queue")
                return


async def _settle(batch: Sequence[Message], acks: Sequence[Ack]) -> None:
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
