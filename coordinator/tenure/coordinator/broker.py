"""What exists on the broker: the events exchange, the dead-letter queue, a queue for each node and
each subscription.

The coordinator is the one owner of these; executors declare passively. Nothing is decided here and
no state depends on it (OPS-01): which queues must exist is read from the database, again and again,
so that a broker that was wiped, or away when a node registered, gets everything within seconds.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import aio_pika
import structlog
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractQueue
from aiormq.exceptions import AMQPError, ChannelAccessRefused, ChannelClosed, PublishError
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from tenure.contract.broker_report import TopologyFinding
from tenure.contract.events import CONTENT_TYPE, EVENT_ID_HEADER
from tenure.contract.states import EntityType
from tenure.contract.topology import (
    dead_letter_queue,
    dead_letter_queue_arguments,
    events_exchange,
    node_queue_arguments,
    subscription_queue_arguments,
)
from tenure.coordinator.broker_refusals import refusal
from tenure.coordinator.core.decisions import Happened
from tenure.coordinator.dead_letters import PREFETCH, DeadLetterBox
from tenure.coordinator.errors import Unavailable
from tenure.coordinator.health import Condition
from tenure.coordinator.queue_watch import LOOK_SECONDS, Lonely, SilenceWatch
from tenure.coordinator.store.dead_letters import CameBack
from tenure.coordinator.store.subscriptions import SubscriptionQueue
from tenure.coordinator.topology import examine, examine_queues, line, replace, wanted_queues
from tenure.settings.addresses import Address, asked

log = structlog.get_logger()

OPERATION_SECONDS: Final = 5.0
DELETE_SECONDS: Final = 15.0
"""A queue without a leader takes some seconds to go."""
COMPARE_SECONDS: Final = 5.0
"""How often the queues are compared with the database."""
COMPARISONS_PER_CHECK: Final = 3
"""Every so many comparisons all queues are declared again, whatever was declared before."""
DECLARE_WAIT_SECONDS: Final = 1.0
LONELY_SECONDS: Final = 30.0
"""A node that is heard and for so long no consumer of its queue cannot consume it: see _tend."""
_BACK_OFF_CAP_SECONDS: Final = 5.0

_Lost = (AMQPError, OSError, TimeoutError, RuntimeError)
"""What a lost or refused operation looks like; aio-pika shows a closed channel as RuntimeError."""


class Broker:
    """Keeps the broker's topology as the database says it must be."""

    def __init__(
        self,
        url: Address,
        *,
        name_prefix: str,
        queues: Callable[[], Awaitable[dict[str, bool]]],
        subscriptions: Callable[[], Awaitable[Sequence[SubscriptionQueue]]],
        condition: Condition,
        dead_letters: DeadLetterBox,
        compare_seconds: float = COMPARE_SECONDS,
        heard: Callable[[], Awaitable[frozenset[str]]],
        lonely_seconds: float = LONELY_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """``queues``: names of node queues, True for one that must exist, False for one that may
        go; ``subscriptions``: theirs, and how they are bound. ``dead_letters`` gets
        what came back. ``heard``: queues of nodes that were heard a moment ago."""
        self._url = url
        self._name_prefix = name_prefix
        self._queues = queues
        self._subscriptions = subscriptions
        self._condition = condition
        self._dead_letters = dead_letters
        self._compare_seconds = compare_seconds
        self._heard = heard
        self._lonely = Lonely(lonely_seconds)
        self._silence = SilenceWatch(
            self._look_for_silence, passing=(Unavailable, *_Lost), look_seconds=look_seconds
        )
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._letters: AbstractChannel | None = None
        self._one_at_a_time = asyncio.Lock()
        self._declared: set[str] = set()
        self._deleted: set[str] = set()
        self._kept: set[SubscriptionQueue] = set()
        self._due = asyncio.Event()
        self._lost = asyncio.Event()

    @property
    def silent_queues(self) -> int:
        """Queues of subscriptions, and the dead-letter queue, that do not answer."""
        return len(self._silence.silent)

    async def run(self) -> None:
        """Connect, keep the topology, connect again; until cancelled."""
        while True:
            try:
                self._connection = await self._connect()
                await self._serve(self._connection)
            except _Lost as error:
                self._condition.not_usable(refusal(error))
                await asyncio.sleep(random.uniform(0.05, 0.5))
            except asyncio.CancelledError as error:
                # The AMQP library also cancels what waits on a connection that it gives up.
                if _cancelled_by_us():
                    raise
                self._condition.not_usable(refusal(error))
            except Exception as error:
                # No state depends on the broker: a fault here must not stop the authority.
                log.exception("the broker's topology cannot be kept")
                self._condition.not_usable(refusal(error))
                await asyncio.sleep(random.uniform(0.5, 1.5))
            finally:
                await self._disconnect()

    async def declare_queue(self, queue: str) -> None:
        """Declare a node's queue now, if that takes no longer than a moment; ``run`` does it later
        otherwise. Never raises."""
        self._due.set()
        if self._condition.error is not None:
            return
        try:
            async with asyncio.timeout(DECLARE_WAIT_SECONDS):
                await self._declare(queue)
        except _Lost:
            log.warning("queue is declared later", queue=queue)

    async def keep_subscription(self, queue: str) -> bool:
        """Bring a subscription's queue about now as the database says, if that takes no longer than
        a moment; ``run`` does it later otherwise. Whether it is as it must be. Never raises."""
        self._due.set()
        if self._condition.error is not None:
            return False
        try:
            async with asyncio.timeout(DECLARE_WAIT_SECONDS):
                await self._compare_subscriptions()
        except (Unavailable, *_Lost):
            log.warning("subscription is brought about later", queue=queue)
        return any(kept.queue == queue for kept in self._kept)

    async def publish_again(self, letter: CameBack) -> bool:
        """Send a dead letter to its queue; whether it reached one. The broker has confirmed it.

        Raises Unavailable where nobody can tell: the same may be sent again.
        """
        try:
            connection = self._connection
            if connection is None:
                raise ConnectionError("not connected")
            async with asyncio.timeout(OPERATION_SECONDS):
                channel = await connection.channel(on_return_raises=True)
                try:
                    await channel.default_exchange.publish(_copy(letter), letter.queue)
                except PublishError:
                    return False
                finally:
                    await channel.close()
        except _Lost as error:
            raise _unusable(error) from error
        return True

    async def examine(self) -> tuple[TopologyFinding, ...]:
        """Everything that must be on the broker, compared with what is. Raises Unavailable."""
        return await self._over_line(())

    async def mend(self, replaced: Sequence[str]) -> tuple[TopologyFinding, ...]:
        """Declare what is missing, replace what is named, state every binding; then as ``examine``.

        Raises Unavailable.
        """
        return await self._over_line(replaced, mended=True)

    async def _over_line(
        self, replaced: Sequence[str], *, mended: bool = False
    ) -> tuple[TopologyFinding, ...]:
        """Examine, and mend in between where that is wanted."""
        queues = wanted_queues(self._name_prefix, await self._queues(), await self._subscriptions())
        try:
            if self._connection is None:
                raise ConnectionError("not connected")
            async with line(self._opened) as over:
                findings = await examine(over, self._name_prefix, queues)
                if not mended:
                    return findings
                await replace(over, findings, replaced)
                self._declared.clear()
                self._kept.clear()
                await self._declare_shared(self._connection)
                await self._compare()
                return await examine(over, self._name_prefix, queues)
        except _Lost as error:
            raise _unusable(error) from error

    async def _look_for_silence(self) -> tuple[TopologyFinding, ...]:
        queues = wanted_queues(self._name_prefix, {}, await self._subscriptions())
        async with line(self._opened) as over:
            return await examine_queues(over, queues)

    async def _opened(self) -> AbstractConnection:
        return await aio_pika.connect(asked(self._url), timeout=OPERATION_SECONDS)

    def on_commit(self, events: Sequence[Happened]) -> None:
        """Nodes came or went: compare soon."""
        if any(event.entity_type is EntityType.NODE for event in events):
            self._due.set()

    async def _connect(self) -> AbstractConnection:
        async for attempt in AsyncRetrying(
            wait=wait_random_exponential(multiplier=0.2, max=_BACK_OFF_CAP_SECONDS),
            retry=retry_if_exception_type(_Lost),
        ):
            with attempt:
                try:
                    return await self._opened()
                except _Lost as error:
                    self._condition.not_usable(refusal(error))
                    raise
        raise AssertionError("retried until it connects")

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._channel = self._letters = None
        if connection is not None:
            # A blocked broker does not answer a close either.
            with suppress(*_Lost):
                async with asyncio.timeout(OPERATION_SECONDS):
                    await connection.close()

    async def _serve(self, connection: AbstractConnection) -> None:
        self._lost.clear()
        self._declared.clear()
        self._deleted.clear()
        self._kept.clear()
        connection.close_callbacks.add(self._on_close)
        await self._declare_shared(connection)
        watch = asyncio.create_task(self._silence.run())
        try:
            await self._keep(connection)
        finally:
            watch.cancel()
        raise ConnectionError("the connection was closed")

    async def _keep(self, connection: AbstractConnection) -> None:
        comparisons = 0
        while not self._lost.is_set():
            self._due.clear()
            if comparisons % COMPARISONS_PER_CHECK == 0:
                self._declared.clear()
                self._kept.clear()
                await self._declare_shared(connection)
            comparisons += 1
            await self._compare()
            self._condition.usable()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._compare_seconds * random.uniform(0.8, 1.2)):
                    await self._due.wait()

    def _on_close(self, *_: object) -> None:
        self._lost.set()
        self._due.set()

    async def _declare_shared(self, connection: AbstractConnection) -> None:
        """The events exchange and the dead-letter queue, with somebody who reads it."""
        channel = await self._usable_channel(connection)
        await channel.declare_exchange(
            events_exchange(self._name_prefix),
            aio_pika.ExchangeType.TOPIC,
            durable=True,
            timeout=OPERATION_SECONDS,
        )
        queue = await channel.declare_queue(
            dead_letter_queue(self._name_prefix),
            durable=True,
            arguments=dead_letter_queue_arguments(),
            timeout=OPERATION_SECONDS,
        )
        if queue.declaration_result.consumer_count == 0:
            await self._read_dead_letters(connection, queue.name)

    async def _read_dead_letters(self, connection: AbstractConnection, queue: str) -> None:
        """On a channel of its own: a queue without a leader never answers, and is no reason to keep
        nothing else."""
        previous, self._letters = self._letters, None
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                if previous is not None:
                    await previous.close()
                self._letters = channel = await connection.channel(publisher_confirms=False)
                await channel.set_qos(PREFETCH)
                found = await channel.get_queue(queue, ensure=False)
                await found.consume(self._dead_letters.take)
        except TimeoutError:
            log.warning("the dead-letter queue does not answer, trying again", queue=queue)

    async def _compare(self) -> None:
        """Declare what must exist and delete what may go."""
        try:
            queues = await self._queues()
            await self._compare_subscriptions()
        except Unavailable:
            return  # the database says so itself; what was declared stays
        for queue, needed in queues.items():
            if needed and queue not in self._declared:
                await self._declare(queue)
            elif not needed and queue not in self._deleted:
                await self._delete(queue)
        await self._tend(queues)

    async def _tend(self, queues: Mapping[str, bool]) -> None:
        """Make queues anew that their nodes cannot consume, though they are heard. What was in one
        is sent again by the reconciler."""
        due = self._lonely.due(queues)
        if not due:
            return
        heard = await self._heard()
        for queue in due:
            if queue in heard:
                await self._declare(queue)  # its consumer may have come since it was looked at
                if queue in self._lonely:
                    log.warning("queue is made anew: its node cannot consume it", queue=queue)
                    await self._delete(queue)
                    self._lonely.forget(queue)
                    await self._declare(queue)
            else:
                self._lonely.forget(queue)

    async def _compare_subscriptions(self) -> None:
        """The same for subscriptions, each of which is looked at once in a while."""
        for wanted in await self._subscriptions():
            if wanted in self._kept:
                continue
            if wanted.needed:
                await self._declare_bound(wanted)
            else:
                await self._delete(wanted.queue)
            # A queue that was changed or removed since is as it was said last.
            self._kept = {kept for kept in self._kept if kept.queue != wanted.queue} | {wanted}

    async def _declare_bound(self, wanted: SubscriptionQueue) -> None:
        async with self._one_at_a_time:
            channel = await self._usable_channel(self._connection)
            arguments = subscription_queue_arguments(self._name_prefix)
            queue = await self._declared_with(channel, wanted.queue, arguments)
            if queue is None:
                return
            exchange = events_exchange(self._name_prefix)
            for pattern in wanted.patterns:
                await queue.bind(exchange, pattern, timeout=OPERATION_SECONDS)
            for pattern in wanted.former:
                await queue.unbind(exchange, pattern, timeout=OPERATION_SECONDS)

    async def _declare(self, queue: str) -> None:
        async with self._one_at_a_time:
            channel = await self._usable_channel(self._connection)
            found = await self._declared_with(
                channel, queue, node_queue_arguments(self._name_prefix)
            )
            if found is None:
                self._lonely.forget(queue)
            else:
                self._lonely.seen(queue, found.declaration_result.consumer_count or 0)
            self._declared.add(queue)
            self._deleted.discard(queue)

    async def _declared_with(
        self, channel: AbstractChannel, queue: str, arguments: dict[str, Any]
    ) -> AbstractQueue | None:
        """The queue; None where one of that name exists with other arguments, which must not keep
        the others from existing."""
        try:
            return await channel.declare_queue(
                queue, durable=True, arguments=arguments, timeout=OPERATION_SECONDS
            )
        except ChannelAccessRefused:
            raise
        except ChannelClosed as error:
            log.error("queue cannot be declared", queue=queue, error=str(error))
            return None

    async def _delete(self, queue: str) -> None:
        async with self._one_at_a_time:
            channel = await self._usable_channel(self._connection)
            await channel.queue_delete(queue, timeout=DELETE_SECONDS)
            self._deleted.add(queue)
            self._declared.discard(queue)
            # Said to few: it is done again after each connection, also where there was no queue.
            log.debug("a queue that may go is not there", queue=queue)

    async def _usable_channel(self, connection: AbstractConnection | None) -> AbstractChannel:
        if connection is None:
            raise ConnectionError("not connected")
        if self._channel is None or self._channel.is_closed:
            async with asyncio.timeout(OPERATION_SECONDS):
                self._channel = await connection.channel(publisher_confirms=False)
        return self._channel


def _unusable(error: BaseException) -> Unavailable:
    return Unavailable(f"The broker cannot be used now: {str(error) or type(error).__name__}.")


def _cancelled_by_us() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _copy(letter: CameBack) -> aio_pika.Message:
    """A new copy of the same event, as the relay makes them."""
    return aio_pika.Message(
        letter.body or b"",
        headers={EVENT_ID_HEADER: letter.event_id},
        content_type=CONTENT_TYPE,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=uuid4().hex,
    )
