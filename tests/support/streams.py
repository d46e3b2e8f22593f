"""Streams of events for tests of consumers, and a coordinator that tells of them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from tenure.contract.events import Event, EventData, event_type
from tenure.contract.states import EntityType
from tenure.contract.subscriptions import SubscriptionView, binding_keys, whole_streams
from tenure.executor.errors import CoordinatorRefused
from tenure.executor.http import History

STATES = ("open", "held", "open", "held", "open", "held", "open", "delivered")


def an_event(stream: UUID, sequence: int, *, epoch: int = 1, state: str | None = None) -> Event:
    """The event of a task with this place in its stream."""
    state = STATES[sequence - 1] if state is None else state
    return Event(
        time=datetime.now(UTC),
        id=str(uuid4()),
        type=event_type(EntityType.TASK, state),
        subject=str(stream),
        tenant="default",
        entitytype=EntityType.TASK,
        taskid=str(stream),
        epoch=epoch,
        sequence=sequence,
        actor="tests",
        data=EventData(previous_state=None, next_state=state),
    )


def a_subscription(*events: str) -> SubscriptionView:
    """A subscription to these words, as the coordinator shows it."""
    now = datetime.now(UTC)
    return SubscriptionView(
        name="billing",
        tenant="default",
        queue="tenure.subscription.default.billing",
        events=events,
        patterns=binding_keys("default", events),
        whole_streams=whole_streams(events),
        dedupe_retention_seconds=60.0,
        created_at=now,
        created_by="tests",
        changed_at=now,
        changed_by="tests",
    )


class Authority:
    """Tells of one stream as a coordinator does. A seam, for what a real one does only after a
    restore or a year."""

    def __init__(self, events: Sequence[Event] = (), *, epoch: int = 1) -> None:
        self.events = list(events)
        self.epoch = epoch
        self.refusal: str | None = None
        self.asked: list[int] = []
        self.presented: list[Any] = []

    async def history(self, entity_type: str, entity_id: str, *, after: int) -> History:
        self.asked.append(after)
        if self.refusal is not None:
            raise CoordinatorRefused("no", status=410, code=self.refusal)
        found = tuple(event for event in self.events if event.sequence > after)
        last = max((event.sequence for event in self.events), default=0)
        return History(self.epoch, last, found)

    async def present_positions(self, positions: Sequence[Any]) -> None:
        self.presented += positions
