"""Runs a consumer of events: messages into lanes, and what has to be done in between (EVENT-03)."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final

import structlog

from tenure.contract.codec import decode_event
from tenure.contract.errors import TenureError, UndecodableEvent
from tenure.contract.subscriptions import SubscriptionView
from tenure.executor.consumer import EventConsumer
from tenure.executor.consumer_metrics import ConsumerMetrics
from tenure.executor.consumer_settings import ConsumerSettings
from tenure.executor.consuming import Consuming
from tenure.executor.delivery import LOST, Message, Session, as_lost, refusal
from tenure.executor.errors import (
    AuthorityBehind,
    CoordinatorError,
    CoordinatorUnavailable,
    ExecutorError,
    HandlerFailed,
    InboxUnavailable,
    SubscriptionMissing,
)
from tenure.executor.event_inbox import Stream, stream_of
from tenure.executor.http import Coordinator
from tenure.executor.lanes import Lanes
from tenure.executor.lifespans import NotOpened, opened
from tenure.executor.logs import configure_logs
from tenure.executor.patience import Condition, jitter_seconds, retrying
from tenure.executor.status import StatusPages, serve
from tenure.executor.stopping import Stopping

log = structlog.get_logger("tenure.consumer")

TICK_SECONDS: Final = 1.0
WATCH_SECONDS: Final = 10.0
_REFRESH_SECONDS: Final = 60.0
_STREAMS_A_TICK: Final = 20
"""Compared with the coordinator: bounds what many open streams cost it."""
_PRESENTED: Final = 100
_SERVERS: Final = ("coordinator", "broker", "inbox")
_PASSING: Final = (HandlerFailed, InboxUnavailable, CoordinatorError, AuthorityBehind)


async def run(consumer: EventConsumer, settings: ConsumerSettings) -> None:
    """Run until SIGTERM or SIGINT, drain, and return; a second signal cuts the drain short.

    Raises DeclarationError for a consumer without handlers, ListenRefused and LifespanFailed.
    """
    configure_logs(settings.log_format, settings.log_level)
    stopping = Stopping(settings.drain_seconds)
    with _signals(stopping.ask):
        await run_until(consumer, settings, stopping)


async def run_until(
    consumer: EventConsumer, settings: ConsumerSettings, stopping: Stopping
) -> None:
    """As ``run``, without signals and logging of its own: until ``stopping`` is asked."""
    consumer.refuse_empty()
    process = _Process(consumer, settings, stopping)
    whose = f"consumer {consumer.name!r}"
    try:
        async with (
            process.listening(),
            opened(consumer.open_resources(), stopping, whose=whose) as resources,
        ):
            await process.run(resources)
    except NotOpened:
        log.info("asked to end before what handlers share was open")
    log.info("consumer ended", consumer=consumer.name)


class _Process:
    def __init__(
        self, consumer: EventConsumer, settings: ConsumerSettings, stopping: Stopping
    ) -> None:
        self._consumer = consumer
        self._settings = settings
        self._stopping = stopping
        self._metrics = ConsumerMetrics()
        self._conditions = {name: Condition(f"the {name}") for name in _SERVERS}
        self._coordinator = Coordinator(settings.url, settings.token.current)
        self._lanes = Lanes(consumer.concurrency)
        self._session: Session | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Health and metrics, where they are wanted."""
        address = self._settings.listen_address
        if address is None:
            yield
            return
        pages = StatusPages(
            not_ready=self._not_ready,
            metrics=lambda: self._metrics.render(
                [(name, one.usable) for name, one in self._conditions.items()]
            ),
        )
        server = await serve(address, pages, variable="TENURE_CONSUMER_LISTEN")
        host, port = server.sockets[0].getsockname()[:2]
        log.info("health and metrics", listen=f"{host}:{port}")
        try:
            yield
        finally:
            server.close()

    async def run(self, resources: Any) -> None:
        """Until asked to stop and drained."""
        try:
            found = await self._unless_stopped(self._prepared())
            if found is not None:
                await self._consume(found, resources)
        finally:
            await self._lanes.cancel()
            with suppress(InboxUnavailable):
                await self._consumer.inbox.close()
            await self._coordinator.close()

    async def _prepared(self) -> SubscriptionView:
        """The inbox is open, and the subscription is there."""
        async for attempt in retrying(self._conditions["inbox"], InboxUnavailable):
            with attempt:
                await self._consumer.inbox.open(self._consumer.concurrency)
        self._conditions["inbox"].well()
        async for attempt in retrying(
            self._conditions["coordinator"], CoordinatorError, SubscriptionMissing
        ):
            with attempt:
                return await self._subscription()
        raise AssertionError("tried for ever")

    async def _subscription(self) -> SubscriptionView:
        consumer = self._consumer
        found = [
            one
            for one in (await self._coordinator.subscriptions()).subscriptions
            if one.name == consumer.subscription
            and (consumer.tenant is None or one.tenant == consumer.tenant)
            and (not consumer.all_tenants or one.tenant is None)
        ]
        self._conditions["coordinator"].well()
        if len(found) == 1:
            return found[0]
        raise SubscriptionMissing(
            f"there are {len(found)} subscriptions {consumer.subscription!r}."
            if found
            else f"there is no subscription {consumer.subscription!r}.",
            next_step="Name its tenant, or all_tenants."
            if found
            else f"Run `tenure subscription add {consumer.subscription} …`.",
        )

    async def _consume(self, subscription: SubscriptionView, resources: Any) -> None:
        consuming = Consuming(
            self._consumer,
            subscription=subscription,
            coordinator=self._coordinator,
            metrics=self._metrics,
            resources=resources,
        )
        upkeep = asyncio.create_task(self._upkeep(consuming, subscription))
        messages = asyncio.create_task(self._sessions(consuming, subscription.queue))
        try:
            done, _ = await asyncio.wait({upkeep, messages}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (upkeep, messages):
                task.cancel()
            await asyncio.gather(upkeep, messages, return_exceptions=True)

    # Messages

    async def _sessions(self, consuming: Consuming, queue: str) -> None:
        """Sessions with the broker, one after the other, until drained."""
        condition, failures = self._conditions["broker"], 0
        while not self._stopping.asked:
            session = self._session = Session(self._consumer.prefetch)
            try:
                await session.open(self._settings.broker_url_now(), queue)
                condition.well()
                log.info("consuming", queue=queue)
                await self._pump(session, consuming)
            except ExecutorError as error:
                condition.trouble(error)
            except LOST as error:
                condition.trouble(refusal(error))
            except asyncio.CancelledError as error:
                # The library also cancels what waits on a connection that it gives up.
                task = asyncio.current_task()
                if task is None or task.cancelling() > 0:
                    raise
                condition.trouble(refusal(error))
            finally:
                session.lose("it has ended")
                await session.close()
            failures = 1 if session.consumed else failures + 1
            await self._unless_stopped(asyncio.sleep(jitter_seconds(failures)))

    async def _pump(self, session: Session, consuming: Consuming) -> None:
        """Hand what arrives to the lanes; at a stop wait for what was begun."""
        waking = asyncio.create_task(self._wake_at_stop(session))
        watch = asyncio.create_task(self._watch(session))
        try:
            while batch := await session.next_batch(last=lambda: self._stopping.asked):
                for message in batch:
                    await self._dispatch(session, consuming, message)
            await self._drained()
        finally:
            for task in (waking, watch):
                task.cancel()
            await asyncio.gather(waking, watch, return_exceptions=True)

    async def _dispatch(self, session: Session, consuming: Consuming, message: Message) -> None:
        try:
            event = decode_event(message.body)
        except UndecodableEvent as error:
            log.error("message cannot be read, it goes to the dead letters", error=str(error))
            self._metrics.events.labels("undecodable").inc()
            with as_lost():
                await message.reject(requeue=False)
            return

        # Whoever had it before may have died of it: it is begun alone, so that no other has begun
        # when that happens again.
        suspect = bool(message.redelivered)

        async def work() -> None:
            async def receive() -> None:
                async with self._lanes.room.place(alone=suspect):
                    await consuming.receive(event, redelivered=suspect)

            if await self._patiently(receive, lambda: session.lost):
                with suppress(*LOST), as_lost():
                    await message.ack()

        self._lanes.put(stream_of(event), work)

    async def _patiently(
        self, attempt: Callable[[], Awaitable[None]], useless: Callable[[], bool]
    ) -> bool:
        """Try until it succeeds; False when it is of no use any more, or at a stop failed."""
        failures = 0
        while not useless():
            try:
                await attempt()
            except _PASSING as error:
                self._note(error)
                if self._stopping.asked:
                    return False
                failures += 1
                asked = (
                    error.retry_after_seconds if isinstance(error, CoordinatorUnavailable) else 0
                )
                await self._unless_stopped(asyncio.sleep((asked or 0) + jitter_seconds(failures)))
            except Exception:
                log.exception("a stream cannot be worked on")
                failures += 1
                await self._unless_stopped(asyncio.sleep(jitter_seconds(max(5, failures))))
                if self._stopping.asked:
                    return False
            else:
                return True
        return False

    def _note(self, error: TenureError) -> None:
        match error:
            case InboxUnavailable():
                self._conditions["inbox"].trouble(error)
            case CoordinatorError() | AuthorityBehind():
                self._conditions["coordinator"].trouble(error)
            case _:
                pass  # a handler's failure was said where it was counted

    async def _wake_at_stop(self, session: Session) -> None:
        await self._stopping.wait()
        session.wake()

    async def _watch(self, session: Session) -> None:
        """Consumers were lost unnoticed in many ways: ask the broker whether we are one."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                attached = await session.is_attached(idle=False)
            except LOST:
                attached = False
            if not attached and not self._stopping.asked:
                session.lose("the broker has no consumer of ours on the queue")
                return

    async def _drained(self) -> None:
        """Until what was begun has ended, or the drain limit is reached."""
        empty = asyncio.create_task(self._lanes.empty())
        limit = asyncio.create_task(self._stopping.limit())
        await asyncio.wait({empty, limit}, return_when=asyncio.FIRST_COMPLETED)
        for task in (empty, limit):
            task.cancel()
        await asyncio.gather(empty, limit, return_exceptions=True)

    # In between

    async def _upkeep(self, consuming: Consuming, subscription: SubscriptionView) -> None:
        """Kept events, the timer, evidence, retention; each as far as its server can be used."""
        retention = subscription.dedupe_retention_seconds
        presented_at = refreshed_at = retired_at = float("-inf")
        while True:
            now = time.monotonic()
            try:
                await self._put_kept(consuming)
                await self._put_due(consuming)
                if now - presented_at >= self._settings.consumer_evidence_seconds:
                    presented_at = now
                    await consuming.present(_PRESENTED)
                if now - refreshed_at >= _REFRESH_SECONDS:
                    refreshed_at = now
                    view = await self._subscription()
                    consuming.subscribed(view)
                    retention = view.dedupe_retention_seconds
                if now - retired_at >= _REFRESH_SECONDS:
                    retired_at = now
                    before = time.time() - retention
                    await self._consumer.inbox.retire(self._consumer.name, before)
                self._metrics.set_kept(await self._consumer.inbox.counts(self._consumer.name))
                self._conditions["inbox"].well()
            except SubscriptionMissing as error:
                self._conditions["coordinator"].trouble(error)
            except _PASSING as error:
                self._note(error)
            await asyncio.sleep(TICK_SECONDS)

    async def _put_kept(self, consuming: Consuming) -> None:
        for stream in await self._consumer.inbox.workable(self._consumer.name):
            self._put(stream, partial(consuming.work_off, stream))

    async def _put_due(self, consuming: Consuming) -> None:
        before = time.time() - self._settings.consumer_reconcile_seconds
        due = await self._consumer.inbox.due(self._consumer.name, before, limit=_STREAMS_A_TICK)
        for seen in due:
            self._put(seen.stream, partial(consuming.compare, seen))

    def _put(self, stream: Stream, attempt: Callable[[], Awaitable[None]]) -> None:
        """Once: what fails is found again at a later tick."""
        if stream in self._lanes:
            return

        async def work() -> None:
            try:
                async with self._lanes.room.place():
                    await attempt()
            except _PASSING as error:
                self._note(error)
            except Exception:
                log.exception("a stream cannot be worked on")

        self._lanes.put(stream, work)

    async def _unless_stopped(self, work: Awaitable[Any]) -> Any:
        """What ``work`` comes to; None when a stop is asked first."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for one in (task, stopped):
                one.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)

    def _not_ready(self) -> str:
        if self._stopping.asked:
            return "draining"
        return "; ".join(
            f"{one.name}: {one.error.code} {one.error}"
            for one in self._conditions.values()
            if one.error
        )


@contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
