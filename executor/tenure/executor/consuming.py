"""What becomes of one event: judged, handed to its handler, recorded, or kept for a person.

The inbox's transaction is around all of it. Where the stream's order is in doubt the transaction is
ended, the coordinator's history of the stream is read, and each event that was missed takes the
same way in, in order (EVENT-03).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import structlog

from tenure.contract.codec import decode_event
from tenure.contract.events import Event
from tenure.contract.subscriptions import SubscriptionView
from tenure.executor.consumer import EventConsumer, EventContext, Source
from tenure.executor.consumer_metrics import ConsumerMetrics
from tenure.executor.core.streams import Step, Why, judge
from tenure.executor.errors import Fail, HandlerFailed, InboxUnavailable
from tenure.executor.event_inbox import (
    KEPT,
    SETTLED,
    EntryState,
    Kept,
    Seen,
    Stream,
    position_of,
    stream_of,
)
from tenure.executor.http import Coordinator
from tenure.executor.stream_account import StreamAccount, move

log = structlog.get_logger("tenure.consumer")

_MAX_REASON: Final = 1000
_NOT_FINISHED: Final = "it was begun and not finished: the process ended in its middle"


class _Raised(Exception):
    """What a handler raised, apart from what its surroundings raise."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Outcome(StrEnum):
    """What became of a message: it may go."""

    HANDLED = "handled"
    DUPLICATE = "duplicate"
    DISCARDED = "discarded"
    PARKED = "parked"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True)
class _Way:
    """How an event takes its way in. ``trusted``: the authority's history has it, in its place."""

    source: Source
    trusted: bool = False
    redelivered: bool = False


class Consuming:
    """``receive`` for each message, ``work_off`` and ``compare`` for streams.

    Of one stream one call at a time.
    """

    def __init__(
        self,
        consumer: EventConsumer,
        *,
        subscription: SubscriptionView,
        coordinator: Coordinator,
        metrics: ConsumerMetrics,
        resources: Any,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._consumer = consumer
        self._inbox = consumer.inbox
        self._account = StreamAccount(
            consumer,
            subscription=subscription,
            coordinator=coordinator,
            metrics=metrics,
            resources=resources,
            now=now,
        )
        self._metrics = metrics
        self._resources = resources
        self._now = now

    def subscribed(self, subscription: SubscriptionView) -> None:
        """The subscription as it is now."""
        self._account.subscription = subscription

    async def receive(self, event: Event, *, redelivered: bool = False) -> Outcome:
        """Take in one message.

        Raises HandlerFailed, InboxUnavailable, CoordinatorError, AuthorityBehind: the message must
        stay, and is received again.
        """
        outcome = await self._one(event, _Way(Source.QUEUE, redelivered=redelivered))
        self._metrics.events.labels(outcome.value).inc()
        return outcome

    async def work_off(self, stream: Stream) -> None:
        """Handle what was kept of a stream, in order, as far as it goes. Raises as ``receive``."""
        for kept in await self._inbox.kept_of(self._consumer.name, stream):
            if kept.state is EntryState.PARKED:
                return
            outcome = await self._one(_event_of(kept), _Way(Source.INBOX))
            self._metrics.events.labels(outcome.value).inc()
            if outcome is Outcome.PARKED:
                return

    async def compare(self, seen: Seen) -> None:
        """Look whether the coordinator has more of a stream, or other things. Raises as
        ``receive``."""
        if not await self._inbox.kept_of(self._consumer.name, seen.stream):
            await self._account.compare(seen, self._missed)
        await self._inbox.checked(self._consumer.name, seen.stream, self._now())

    async def present(self, limit: int) -> None:
        """Tell the coordinator how far streams have come. Raises InboxUnavailable."""
        await self._account.present(await self._inbox.newest(self._consumer.name, limit=limit))

    # One event

    async def _one(self, event: Event, way: _Way) -> Outcome:
        """Take in one event, asking the authority as often as that is needed."""
        while True:
            outcome, why = await self._try(event, way)
            if outcome is not None:
                return outcome
            assert why is not None
            await self._account.ask(event, why, self._missed)
            way = _Way(way.source, trusted=True)

    async def _missed(self, event: Event) -> None:
        """An event that no message has brought; its place is the authority's word."""
        self._metrics.missed.inc()
        await self._one(event, _Way(Source.AUTHORITY, trusted=True))

    async def _try(self, event: Event, way: _Way) -> tuple[Outcome | None, Why | None]:
        """What became of the event; or why the authority must be asked first."""
        stream, position = stream_of(event), position_of(event)
        if way.redelivered:
            begun = await self._count_begun(event)
            if begun > self._consumer.max_attempts:
                return await self._park(event, _NOT_FINISHED), None
        try:
            async with self._inbox.transaction(self._consumer.name, stream) as transaction:
                state, failures = await transaction.entry(event.event_id)
                if state is EntryState.DISCARDED:
                    return Outcome.DISCARDED, None
                if state in SETTLED or (state in KEPT and way.source is not Source.INBOX):
                    return Outcome.DUPLICATE, None
                if await transaction.is_held(position):
                    await transaction.keep(
                        event, EntryState.BEHIND, "behind an event of its stream", self._now()
                    )
                    return Outcome.BEHIND, None
                known = await transaction.position()
                judgement = judge(known, position, seen=False, whole=self._is_whole(event))
                if judgement.step is Step.ASK and not way.trusted:
                    return None, judgement.why
                late = known is not None and position < known
                context = EventContext(
                    connection=transaction.connection,
                    source=way.source,
                    late=late,
                    attempt=max(1, failures + (not way.redelivered)),
                    resources=self._resources,
                )
                await self._call(event, context)
                await transaction.settle(event, EntryState.HANDLED, self._now())
                if not late:
                    await move(transaction, event, self._now())
        except _Raised as raised:
            return await self._failed(event, raised.error, counted=way.redelivered), None
        self._metrics.delay.set(max(0.0, self._now() - event.recorded_at.timestamp()))
        return Outcome.HANDLED, None

    async def _call(self, event: Event, context: EventContext) -> None:
        handler = self._consumer.handler_of(event)
        if handler is None:
            return
        started = time.perf_counter()
        try:
            await handler(event, context)
        except InboxUnavailable:
            raise
        except Exception as error:
            raise _Raised(error) from error
        finally:
            self._metrics.handler_seconds.observe(time.perf_counter() - started)

    def _is_whole(self, event: Event) -> bool:
        return event.entity_type in self._account.subscription.whole_streams

    # Failures

    async def _count_begun(self, event: Event) -> int:
        """Before a message that was delivered before is begun again: whoever had it may have died
        of it, which nothing else would count."""
        async with self._inbox.transaction(self._consumer.name, stream_of(event)) as transaction:
            state, _ = await transaction.entry(event.event_id)
        if state in SETTLED or state in KEPT:
            return 0
        return await self._inbox.begun(self._consumer.name, event, _NOT_FINISHED, self._now())

    async def _failed(self, event: Event, error: Exception, *, counted: bool) -> Outcome:
        """Count a failure, unless its beginning was counted; park the event when it is enough."""
        self._metrics.failures.inc()
        reason = f"{type(error).__name__}: {error}"[:_MAX_REASON].replace("\0", "\ufffd")
        attempts = await self._attempts(event, reason, counted=counted)
        log.warning(
            "handler failed",
            event_id=event.event_id,
            task_id=event.task_id,
            attempts=attempts,
            error=reason,
            exc_info=error,
        )
        if isinstance(error, Fail) or attempts >= self._consumer.max_attempts:
            return await self._park(event, reason)
        raise HandlerFailed(f"the handler of {event.type} failed: {reason}") from error

    async def _attempts(self, event: Event, reason: str, *, counted: bool) -> int:
        if not counted:
            return await self._inbox.begun(self._consumer.name, event, reason, self._now())
        return await self._inbox.attempts(self._consumer.name, event.event_id)

    async def _park(self, event: Event, reason: str) -> Outcome:
        async with self._inbox.transaction(self._consumer.name, stream_of(event)) as transaction:
            await transaction.keep(event, EntryState.PARKED, reason, self._now())
        log.error(
            "event is parked, and the rest of its stream waits",
            event_id=event.event_id,
            task_id=event.task_id,
            event_type=event.type,
            reason=reason,
        )
        return Outcome.PARKED


def _event_of(kept: Kept) -> Event:
    return decode_event(kept.body.encode())
