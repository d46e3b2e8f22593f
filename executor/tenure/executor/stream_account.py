"""What a consumer has seen of a stream against what the authority has of it (EVENT-03).

The authority's history decides: what it has and the consumer has not seen was missed; what the
consumer has seen and it does not know never happened. Where it cannot tell, because retention has
removed the events or because they are another tenant's, the gap is left, counted and said.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import structlog

from tenure.contract.codes import Code
from tenure.contract.events import Event
from tenure.contract.ids import TenantId
from tenure.contract.states import (
    TERMINAL_ATTEMPT_STATES,
    TERMINAL_TASK_STATES,
    EntityType,
    NodeState,
)
from tenure.contract.subscriptions import SubscriptionView
from tenure.contract.topology import event_routing_key, matches
from tenure.executor.consumer import EventConsumer, EventContext, Source
from tenure.executor.consumer_metrics import ConsumerMetrics
from tenure.executor.core.streams import Told, Why, authority_is_behind, settle_account
from tenure.executor.errors import AuthorityBehind, CoordinatorRefused
from tenure.executor.event_inbox import (
    EntryState,
    InboxTransaction,
    Seen,
    Stream,
    position_of,
    stream_of,
)
from tenure.executor.http import Coordinator, History

log = structlog.get_logger("tenure.consumer")

_ENDED: Final = {
    EntityType.TASK: frozenset(state.value for state in TERMINAL_TASK_STATES),
    EntityType.ATTEMPT: frozenset(state.value for state in TERMINAL_ATTEMPT_STATES),
    EntityType.NODE: frozenset({NodeState.GONE.value}),
}
_TIMER: Final = "timer"
_CANNOT_TELL: Final = frozenset({Code.NOT_FOUND, Code.EVENTS_REMOVED})

Take = Callable[[Event], Awaitable[None]]


class StreamAccount:
    """Asks the authority about streams, and settles what follows."""

    def __init__(
        self,
        consumer: EventConsumer,
        *,
        subscription: SubscriptionView,
        coordinator: Coordinator,
        metrics: ConsumerMetrics,
        resources: Any,
        now: Callable[[], float],
    ) -> None:
        self._consumer = consumer
        self._inbox = consumer.inbox
        self.subscription = subscription
        self._coordinator = coordinator
        self._metrics = metrics
        self._resources = resources
        self._now = now

    async def ask(self, event: Event, why: Why, take: Take) -> None:
        """Before an event whose place is in doubt: ``take`` what was missed, discard what never
        happened, the event itself among it.

        Raises AuthorityBehind, CoordinatorError, InboxUnavailable, and what ``take`` raises.
        """
        stream, position = stream_of(event), position_of(event)
        after = 0
        if why is Why.GAP:
            async with self._inbox.transaction(self._consumer.name, stream) as transaction:
                known = await transaction.position()
            after = 0 if known is None else known.sequence
        history = await self._read(stream, after=after, why=why.value)
        if history is None:
            self._metrics.gaps_left.labels(why.value).inc()
            log.warning(
                "the coordinator cannot tell of a stream: it is taken as it comes",
                why=why.value,
                task_id=event.task_id,
                event_id=event.event_id,
            )
            return
        if authority_is_behind(position, epoch=history.epoch, last_sequence=history.last_sequence):
            await self.present([Seen(stream, event.tenant, position)])
            raise AuthorityBehind(
                f"the coordinator does not know {event.type} {event.event_id} of its own epoch.",
                next_step="See `tenure authority show`.",
            )
        await self._settle(stream, history, after, event, take)

    async def compare(self, seen: Seen, take: Take) -> None:
        """Look whether the authority has more of a stream that nothing was heard of for a while.
        Raises as ``ask``."""
        history = await self._read(seen.stream, after=seen.position.sequence, why=_TIMER)
        if history is None:
            return
        epoch, last = history.epoch, history.last_sequence
        if authority_is_behind(seen.position, epoch=epoch, last_sequence=last):
            await self.present([seen])
            return
        after = seen.position.sequence
        if epoch > seen.position.epoch:  # what was seen may never have happened
            after = 0
            history = await self._read(seen.stream, after=0, why=_TIMER)
        if history is not None:
            await self._settle(seen.stream, history, after, None, take)

    async def present(self, seen: Sequence[Seen]) -> None:
        """Tell the authority how far streams were seen. Never raises."""
        if seen:
            await self._coordinator.present_positions(
                [(*one.stream, *one.position) for one in seen]
            )

    async def _settle(
        self, stream: Stream, history: History, after: int, event: Event | None, take: Take
    ) -> None:
        wanted = {one.event_id: one for one in history.events if self._is_wanted(one)}
        async with self._inbox.transaction(self._consumer.name, stream) as transaction:
            account = settle_account(
                await transaction.seen(),
                [Told(one.event_id, position_of(one)) for one in history.events],
                wanted=wanted,
                begins_at=after + 1,
            )
            if account.discarded:
                await self._discard(transaction, stream, account.discarded, history)
            if event is not None and event.event_id not in {one.event_id for one in history.events}:
                await transaction.settle(event, EntryState.DISCARDED, self._now())
        for event_id in account.missed:
            if event is not None and event_id == event.event_id:
                return  # in its turn, by its own message; what follows it has messages too
            await take(wanted[event_id])

    async def _discard(
        self,
        transaction: InboxTransaction,
        stream: Stream,
        event_ids: Sequence[str],
        history: History,
    ) -> None:
        """Let the consumer undo what never happened, and go back to what has."""
        log.error(
            "events never happened: the authority does not know them after a restore",
            entity_type=stream.entity_type,
            entity_id=stream.entity_id,
            event_ids=list(event_ids),
        )
        if self._consumer.discard_handler is not None:
            context = EventContext(
                connection=transaction.connection,
                source=Source.AUTHORITY,
                late=False,
                attempt=1,
                resources=self._resources,
            )
            await self._consumer.discard_handler(stream, event_ids, context)
        await transaction.discard(event_ids, self._now())
        remaining = await transaction.seen()
        common = [one for one in history.events if one.event_id in remaining]
        if common:
            await move(transaction, max(common, key=position_of), self._now())

    async def _read(self, stream: Stream, *, after: int, why: str) -> History | None:
        """The authority's history of a stream after a sequence; None where it cannot give it."""
        self._metrics.asked.labels(why).inc()
        try:
            return await self._coordinator.history(*stream, after=after)
        except CoordinatorRefused as error:
            if error.code in _CANNOT_TELL:
                return None
            raise

    def _is_wanted(self, event: Event) -> bool:
        key = event_routing_key(TenantId(event.tenant), event.entity_type, event.next_state)
        return any(matches(pattern, key) for pattern in self.subscription.patterns)


async def move(transaction: InboxTransaction, event: Event, now: float) -> None:
    """The stream was handled up to this event."""
    ended = event.next_state in _ENDED[event.entity_type]
    await transaction.move(event.tenant, position_of(event), ended=ended, now=now)
