"""What a consumer remembers: which events it has seen, how far it came in each stream, and what it
could not handle (EVENT-03).

Two tables, in SQLite or in PostgreSQL, by the same statements. A row of ``tenure_events`` is one
event; a row of ``tenure_streams`` is how far one stream was handled. An event and what its handler
writes through the connection it is given are one transaction where the inbox is in PostgreSQL.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from tenure.contract.events import Event
from tenure.executor.core.streams import Position

CREATE: Final = (
    """
create table if not exists {events} (
    consumer text not null,
    event_id text not null,
    entity_type text not null,
    entity_id text not null,
    epoch bigint not null,
    sequence bigint not null,
    state text not null check (state in
        ('failing', 'handled', 'discarded', 'parked', 'behind', 'retry', 'skipped')),
    attempts integer not null default 0,
    reason text,
    body text,
    received_at double precision not null,
    settled_at double precision,
    primary key (consumer, event_id)
)
""",
    """
create table if not exists {streams} (
    consumer text not null,
    entity_type text not null,
    entity_id text not null,
    tenant text not null,
    epoch bigint not null,
    sequence bigint not null,
    ended boolean not null,
    moved_at double precision not null,
    checked_at double precision not null,
    primary key (consumer, entity_type, entity_id)
)
""",
    """
create index if not exists tenure_events_of_stream on {events} (consumer, entity_type, entity_id)
""",
    """
create index if not exists tenure_events_kept on {events} (consumer, state)
    where state in ('parked', 'behind', 'retry')
""",
    "create index if not exists tenure_events_settled on {events} (consumer, settled_at)",
    """
create index if not exists tenure_streams_due on {streams} (consumer, checked_at) where not ended
""",
    "create index if not exists tenure_streams_moved on {streams} (consumer, moved_at)",
)
"""Statements that make the tables where they are missing."""


class EntryState(StrEnum):
    """What became of an event here."""

    FAILING = "failing"  # its handler was begun and has not succeeded yet
    HANDLED = "handled"
    DISCARDED = "discarded"  # the authority does not know it: history that was lost
    PARKED = "parked"  # its handler failed too often: a person decides
    BEHIND = "behind"  # it waits behind a parked one of its stream
    RETRY = "retry"  # a person let it be tried again
    SKIPPED = "skipped"  # a person decided that it is not needed


SETTLED: Final = frozenset({EntryState.HANDLED, EntryState.DISCARDED, EntryState.SKIPPED})
KEPT: Final = frozenset({EntryState.PARKED, EntryState.BEHIND, EntryState.RETRY})
"""Events whose bodies are here: their messages were let go."""


class Stream(NamedTuple):
    """Which stream of events."""

    entity_type: str
    entity_id: str


def stream_of(event: Event) -> Stream:
    """The stream that an event is of."""
    return Stream(event.entity_type.value, event.entity_id)


def position_of(event: Event) -> Position:
    """Where in it the event is."""
    return Position(event.epoch, event.sequence)


@dataclass(frozen=True, slots=True)
class Kept:
    """An event that was not handled, for people and to be worked off."""

    event_id: str
    stream: Stream
    position: Position
    state: EntryState
    attempts: int
    reason: str | None
    body: str
    received_at: float


class Seen(NamedTuple):
    """How far a stream was handled."""

    stream: Stream
    tenant: str
    position: Position


class Fetcher(ABC):
    """Runs statements; ``$1`` … are their arguments, ``{events}`` and ``{streams}`` the tables."""

    @abstractmethod
    async def fetch(self, statement: str, *arguments: Any) -> list[Mapping[str, Any]]:
        """All rows. Raises InboxUnavailable."""

    @abstractmethod
    async def write(self, statement: str, *arguments: Any) -> None:
        """As ``fetch``, for a statement whose rows nobody needs."""


class InboxTransaction:
    """One event in its stream, which nobody else works on meanwhile."""

    def __init__(self, fetcher: Fetcher, consumer: str, stream: Stream, connection: Any) -> None:
        """``connection``: what a handler may write through, in this very transaction; None where
        there is none."""
        self._fetcher = fetcher
        self._key = (consumer, *stream)
        self.connection = connection

    async def entry(self, event_id: str) -> tuple[EntryState | None, int]:
        """What became of an event (None: it was never seen), and how often it was begun in vain."""
        rows = await self._fetcher.fetch(
            "select state, attempts from {events} where consumer = $1 and event_id = $2",
            self._key[0],
            event_id,
        )
        return (EntryState(rows[0]["state"]), rows[0]["attempts"]) if rows else (None, 0)

    async def position(self) -> Position | None:
        """How far the stream was handled."""
        rows = await self._fetcher.fetch(
            "select epoch, sequence from {streams}"
            " where consumer = $1 and entity_type = $2 and entity_id = $3",
            *self._key,
        )
        return Position(rows[0]["epoch"], rows[0]["sequence"]) if rows else None

    async def is_held(self, before: Position) -> bool:
        """Whether an earlier event of the stream waits for a person or to be tried again."""
        rows = await self._fetcher.fetch(
            "select 1 as one from {events}"
            " where consumer = $1 and entity_type = $2 and entity_id = $3"
            " and state in ('parked', 'behind', 'retry')"
            " and (epoch < $4 or (epoch = $4 and sequence < $5)) limit 1",
            *self._key,
            *before,
        )
        return bool(rows)

    async def seen(self) -> dict[str, Position]:
        """Every event of the stream that was handled or is kept, with its place."""
        rows = await self._fetcher.fetch(
            "select event_id, epoch, sequence from {events}"
            " where consumer = $1 and entity_type = $2 and entity_id = $3"
            " and state not in ('failing', 'discarded')",
            *self._key,
        )
        return {row["event_id"]: Position(row["epoch"], row["sequence"]) for row in rows}

    async def settle(self, event: Event, state: EntryState, now: float) -> None:
        """The event needs nothing more."""
        await self._fetcher.write(
            "insert into {events} (consumer, entity_type, entity_id, event_id, epoch, sequence,"
            " state, received_at, settled_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $8)"
            " on conflict (consumer, event_id) do update set state = excluded.state,"
            " settled_at = excluded.settled_at, body = null",
            *self._key, event.event_id, *position_of(event), state.value, now,
        )  # fmt: skip

    async def discard(self, event_ids: Sequence[str], now: float) -> None:
        """The authority does not know these events."""
        for event_id in event_ids:
            await self._fetcher.write(
                "update {events} set state = 'discarded', settled_at = $3, body = null"
                " where consumer = $1 and event_id = $2",
                self._key[0], event_id, now,
            )  # fmt: skip

    async def keep(self, event: Event, state: EntryState, reason: str, now: float) -> None:
        """Keep an event that cannot be handled now, with its body."""
        await self._fetcher.write(
            "insert into {events} (consumer, entity_type, entity_id, event_id, epoch, sequence,"
            " state, reason, body, received_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
            " on conflict (consumer, event_id) do update set state = excluded.state,"
            " reason = excluded.reason, body = excluded.body",
            *self._key, event.event_id, *position_of(event), state.value, reason,
            event.model_dump_json(), now,
        )  # fmt: skip

    async def move(self, tenant: str, position: Position, *, ended: bool, now: float) -> None:
        """The stream was handled up to here."""
        await self._fetcher.write(
            "insert into {streams} (consumer, entity_type, entity_id, tenant, epoch, sequence,"
            " ended, moved_at, checked_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $8)"
            " on conflict (consumer, entity_type, entity_id) do update set"
            " epoch = excluded.epoch, sequence = excluded.sequence, ended = excluded.ended,"
            " moved_at = excluded.moved_at, checked_at = excluded.checked_at",
            *self._key, tenant, *position, ended, now,
        )  # fmt: skip


class EventInbox(ABC):
    """Where a consumer remembers. One consumer is known by its name; several may share tables."""

    concurrency: int = 1
    """How many streams may be worked on at once."""

    @abstractmethod
    async def open(self, concurrency: int) -> None:
        """Connect, and make the tables where they are missing. Raises InboxUnavailable."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of it."""

    @abstractmethod
    def transaction(
        self, consumer: str, stream: Stream
    ) -> AbstractAsyncContextManager[InboxTransaction]:
        """Everything about one event, whole or not at all, and alone in its stream.

        Raises InboxUnavailable; an exception from within undoes it and is raised.
        """

    @abstractmethod
    async def fetch(self, statement: str, *arguments: Any) -> list[Mapping[str, Any]]:
        """A statement of its own. Raises InboxUnavailable."""

    # What is said about events outside of their transaction

    async def attempts(self, consumer: str, event_id: str) -> int:
        """How often an event was begun in vain."""
        rows = await self.fetch(
            "select attempts from {events} where consumer = $1 and event_id = $2",
            consumer,
            event_id,
        )
        return int(rows[0]["attempts"]) if rows else 0

    async def begun(self, consumer: str, event: Event, reason: str, now: float) -> int:
        """Count a beginning, before anything of it happens; how many there were."""
        (row,) = await self.fetch(
            "insert into {events} (consumer, event_id, entity_type, entity_id, epoch, sequence,"
            " state, attempts, reason, received_at)"
            " values ($1, $2, $3, $4, $5, $6, 'failing', 1, $7, $8)"
            " on conflict (consumer, event_id) do update set"
            " attempts = {events}.attempts + 1, reason = excluded.reason"
            " returning attempts",
            consumer, event.event_id, *stream_of(event), *position_of(event), reason, now,
        )  # fmt: skip
        return int(row["attempts"])

    async def kept(self, consumer: str, *, limit: int = 1000) -> list[Kept]:
        """What waits for a person, or behind it, the oldest first."""
        rows = await self.fetch(
            "select * from {events} where consumer = $1 and state in ('parked', 'behind', 'retry')"
            " order by received_at, epoch, sequence limit $2",
            consumer,
            limit,
        )
        return [_kept(row) for row in rows]

    async def workable(self, consumer: str, *, limit: int = 100) -> list[Stream]:
        """Streams that have kept events and none that waits for a person."""
        rows = await self.fetch(
            "select distinct e.entity_type, e.entity_id from {events} e"
            " where e.consumer = $1 and e.state in ('behind', 'retry') and not exists ("
            "select 1 from {events} p where p.consumer = $1 and p.entity_type = e.entity_type"
            " and p.entity_id = e.entity_id and p.state = 'parked') limit $2",
            consumer,
            limit,
        )
        return [Stream(row["entity_type"], row["entity_id"]) for row in rows]

    async def kept_of(self, consumer: str, stream: Stream) -> list[Kept]:
        """Kept events of a stream, in order."""
        rows = await self.fetch(
            "select * from {events} where consumer = $1 and entity_type = $2 and entity_id = $3"
            " and state in ('parked', 'behind', 'retry') order by epoch, sequence",
            consumer,
            *stream,
        )
        return [_kept(row) for row in rows]

    async def release(self, consumer: str, event_id: str) -> bool:
        """Let a parked event be tried again; whether there was one."""
        return await self._decide(consumer, event_id, "state = 'retry', attempts = 0", ())

    async def skip(self, consumer: str, event_id: str, reason: str, now: float) -> bool:
        """Decide that a parked event is not needed; whether there was one."""
        change = "state = 'skipped', body = null, reason = $3, settled_at = $4"
        return await self._decide(consumer, event_id, change, (reason, now))

    async def _decide(
        self, consumer: str, event_id: str, change: str, arguments: tuple[Any, ...]
    ) -> bool:
        rows = await self.fetch(
            f"update {{events}} set {change}"
            " where consumer = $1 and event_id = $2 and state = 'parked' returning event_id",
            consumer, event_id, *arguments,
        )  # fmt: skip
        return bool(rows)

    async def due(self, consumer: str, before: float, *, limit: int) -> list[Seen]:
        """Streams that go on and were not compared with the authority since, the oldest first."""
        rows = await self.fetch(
            "select * from {streams} where consumer = $1 and not ended and checked_at < $2"
            " order by checked_at limit $3",
            consumer, before, limit,
        )  # fmt: skip
        return [_seen(row) for row in rows]

    async def checked(self, consumer: str, stream: Stream, now: float) -> None:
        """A stream was compared."""
        await self.fetch(
            "update {streams} set checked_at = $4 where consumer = $1 and entity_type = $2"
            " and entity_id = $3 returning consumer",
            consumer, *stream, now,
        )  # fmt: skip

    async def newest(self, consumer: str, *, limit: int) -> list[Seen]:
        """The streams that moved last."""
        rows = await self.fetch(
            "select * from {streams} where consumer = $1 order by moved_at desc limit $2",
            consumer,
            limit,
        )
        return [_seen(row) for row in rows]

    async def retire(self, consumer: str, before: float, *, limit: int = 10_000) -> int:
        """Forget events that were settled before, and ended streams; how many events."""
        rows = await self.fetch(
            "delete from {events} where consumer = $1 and event_id in ("
            "select event_id from {events} where consumer = $1 and settled_at < $2"
            " and state in ('handled', 'discarded', 'skipped') limit $3) returning event_id",
            consumer, before, limit,
        )  # fmt: skip
        await self.fetch(
            "delete from {streams} where consumer = $1 and ended and moved_at < $2"
            " returning consumer",
            consumer,
            before,
        )
        return len(rows)

    async def counts(self, consumer: str) -> dict[str, int]:
        """How many events are kept, by state."""
        rows = await self.fetch(
            "select state, count(*) as number from {events}"
            " where consumer = $1 and state in ('parked', 'behind', 'retry') group by state",
            consumer,
        )
        return {row["state"]: row["number"] for row in rows}


def _kept(row: Mapping[str, Any]) -> Kept:
    return Kept(
        event_id=row["event_id"],
        stream=Stream(row["entity_type"], row["entity_id"]),
        position=Position(row["epoch"], row["sequence"]),
        state=EntryState(row["state"]),
        attempts=row["attempts"],
        reason=row["reason"],
        body=row["body"] or "",
        received_at=row["received_at"],
    )


def _seen(row: Mapping[str, Any]) -> Seen:
    return Seen(
        Stream(row["entity_type"], row["entity_id"]),
        row["tenant"],
        Position(row["epoch"], row["sequence"]),
    )
