"""What to publish next, and how far the cursors may move. No I/O, no clock: instants come in.

The window holds the rows between each claimed shard's stored cursor and what was read last. It is
bounded in rows and in bytes. Of each stream at most one publish is unconfirmed, while many streams
are in flight: a nack, return or timeout delays its own stream and never reorders it (RELAY-03). A
shard's cursor may move up to the last row before the first that is not published.

A shard that has read everything there was follows the end of the log together with all others like
it; one that has not, or has no room for what came, reads by itself until it has caught up.

Instants and durations are integer microseconds on any one monotonic clock.
"""

import heapq
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tenure.relay.core.outcome import Outcome, Verdict, judge


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the window. ``rows`` and ``body_bytes`` are shared equally by ``shards`` shards."""

    rows: int = 16_384
    body_bytes: int = 32 * 1024 * 1024
    shards: int = 64
    in_flight: int = 1_000
    rows_per_read: int = 2_000
    body_bytes_per_read: int = 4 * 1024 * 1024
    backoff_base: int = 100_000
    backoff_cap: int = 30_000_000

    @property
    def rows_per_shard(self) -> int:
        """How many rows between cursor and read position a shard may have; at least 1."""
        return max(1, self.rows // self.shards)

    @property
    def body_bytes_per_shard(self) -> int:
        """How many bytes of bodies a shard may hold before it stops reading; at least 1."""
        return max(1, self.body_bytes // self.shards)


class Row(NamedTuple):
    """One row of the log. ``stream`` identifies (entity_type, entity_id); ``attempt_id`` is the
    attempt it is about, if any."""

    position: int
    shard: int
    stream: Hashable
    event_id: str
    exchange: str
    routing_key: str
    required: bool
    body: bytes
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """Read rows of ``shard`` after position ``after``: at most ``rows``, and none after the one
    that brings the bodies to ``body_bytes``."""

    shard: int
    after: int
    rows: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Read rows of ``shards`` after position ``after``, by position: at most ``rows``, and none
    after the one that brings the bodies to ``body_bytes``."""

    shards: Sequence[int]
    after: int
    rows: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """A cursor that may move, under the claim it belongs to."""

    shard: int
    claim_token: int
    position: int


@dataclass(eq=False, slots=True)
class Publish:
    """A row in the window, handed out by ``take`` and handed back to ``settle``."""

    position: int
    _stream: "_Stream"
    _shard: "_Shard"
    _row: Row | None  # gone once published, while its position waits for the cursor
    _next: "Publish | None" = None  # of the same stream

    @property
    def row(self) -> Row:
        """What to publish. Raises ValueError once it is published."""
        if self._row is None:
            raise ValueError(f"position {self.position} is published")
        return self._row


@dataclass(eq=False, slots=True)
class _Stream:
    key: Hashable
    first: Publish | None = None  # of those that are not published; it may be in flight
    last: Publish | None = None
    in_flight: Publish | None = None
    failures: int = 0
    failed: Outcome | None = None  # why its first row is not published, once it was tried
    paused: bool = False


@dataclass(eq=False, slots=True)
class _Shard:
    number: int
    claim_token: int
    stored: int  # the cursor, as the database has it
    passable_to: int  # everything up to here is published
    read_to: int  # every row up to here was read
    rows: deque[Publish] = field(default_factory=deque)  # the positions in between
    body_bytes: int = 0
    behind: bool = True  # reads by itself
    open: bool = True
    in_flight: int = 0
    taken_to: int = 0  # the last position that was ever taken
    leave_by: int | None = None  # handed over: nothing new is begun


class Window:
    """See the module. Not thread-safe; every method is short."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._shards: dict[int, _Shard] = {}
        self._streams: dict[Hashable, _Stream] = {}
        self._ready: deque[_Stream] = deque()
        self._pauses: list[tuple[int, int, _Stream]] = []
        self._pause_count = 0
        self._in_flight = 0
        self._movable: set[int] = set()

    # Claims

    def open(self, shard: int, claim_token: int, position: int) -> None:
        """A claim begins: rows after ``position`` are not known to be published."""
        self.close(shard)
        self._shards[shard] = _Shard(
            number=shard,
            claim_token=claim_token,
            stored=position,
            passable_to=position,
            read_to=position,
        )

    def close(self, shard: int) -> None:
        """A claim ended: its rows are forgotten. What is in flight is settled without effect, and
        until then holds back its stream, should the shard be opened again."""
        closed = self._shards.pop(shard, None)
        if closed is None:
            return
        closed.open = False
        self._movable.discard(shard)
        for publish in closed.rows:
            stream = publish._stream
            stream.first = stream.last = None
            if stream.in_flight is None:
                self._streams.pop(stream.key, None)
        closed.rows.clear()

    def leave(self, shard: int, by: int) -> None:
        """Hand a shard over: begin nothing new in it, but publish what lies before the last row
        that was begun, so that the next relay need not publish that again; until ``by``."""
        self._shards[shard].leave_by = by

    def leaving(self) -> list[int]:
        """Shards that are being handed over."""
        return [number for number, shard in self._shards.items() if shard.leave_by is not None]

    def left(self, now: int) -> dict[int, int]:
        """Of these the ones that can be given back now: claim token by shard. Nothing of them is in
        flight, and their cursors moved as far as they could."""
        return {
            number: shard.claim_token
            for number, shard in self._shards.items()
            if shard.leave_by is not None
            and shard.in_flight == 0
            and shard.passable_to <= shard.stored
            and (shard.taken_to <= shard.stored or now >= shard.leave_by)
        }

    @property
    def claims(self) -> dict[int, int]:
        """Claim token by open shard."""
        return {number: shard.claim_token for number, shard in self._shards.items()}

    # Reading

    def wanted(self) -> list[Want]:
        """What shards that are behind should read now. Empty when none is, or none has room."""
        limits = self._limits
        hungry = [
            shard
            for shard in self._shards.values()
            if shard.behind
            and shard.leave_by is None
            and shard.body_bytes < limits.body_bytes_per_shard
            # Not for a handful of rows: half empty at least.
            and len(shard.rows) * 2 <= limits.rows_per_shard
        ]
        if not hungry:
            return []
        each = max(1, limits.rows_per_read // len(hungry))
        return [
            Want(
                shard=shard.number,
                after=shard.read_to,
                rows=min(each, limits.rows_per_shard - len(shard.rows)),
                body_bytes=limits.body_bytes_per_shard - shard.body_bytes,
            )
            for shard in hungry
        ]

    def add(self, wanted: Sequence[Want], rows: Sequence[Row], end: int) -> None:
        """The answer to ``wanted``: the rows of each shard by position, and the last position that
        the log had then. Who got less than it asked for has read everything up to there."""
        counts = dict.fromkeys((want.shard for want in wanted), 0)
        sizes = dict.fromkeys(counts, 0)
        for row in rows:
            counts[row.shard] += 1
            sizes[row.shard] += len(row.body)
            shard = self._shards.get(row.shard)
            if shard is not None and row.position > shard.read_to:
                self._append(shard, row)
        for want in wanted:
            shard = self._shards.get(want.shard)
            if shard is not None:
                full = counts[want.shard] >= want.rows or sizes[want.shard] >= want.body_bytes
                shard.behind = full
                if not full:
                    shard.read_to = max(shard.read_to, end)

    def follow(self) -> Follow | None:
        """What all shards together should read that are not behind; None when there is none."""
        following = [
            shard for shard in self._shards.values() if not shard.behind and shard.leave_by is None
        ]
        if not following:
            return None
        return Follow(
            shards=[shard.number for shard in following],
            after=min(shard.read_to for shard in following),
            rows=self._limits.rows_per_read,
            body_bytes=self._limits.body_bytes_per_read,
        )

    def followed(self, asked: Follow, rows: Sequence[Row], end: int) -> bool:
        """The answer to ``asked``, and the last position that the log had then; whether there is
        more to read already. A shard without room for its rows is behind from then on."""
        limits = self._limits
        size = 0
        for row in rows:
            size += len(row.body)
            shard = self._shards.get(row.shard)
            if shard is None or shard.behind or row.position <= shard.read_to:
                continue
            if (
                len(shard.rows) < limits.rows_per_shard
                and shard.body_bytes < limits.body_bytes_per_shard
            ):
                self._append(shard, row)
            else:
                shard.behind = True
        cut = len(rows) >= asked.rows or size >= asked.body_bytes
        reached = rows[-1].position if cut else end
        for number in asked.shards:
            shard = self._shards.get(number)
            if shard is not None and not shard.behind:
                shard.read_to = max(shard.read_to, reached)
        return cut

    def _append(self, shard: _Shard, row: Row) -> None:
        stream = self._streams.get(row.stream)
        if stream is None:
            stream = self._streams[row.stream] = _Stream(row.stream)
        publish = Publish(row.position, stream, shard, row)
        shard.rows.append(publish)
        shard.read_to = row.position
        shard.body_bytes += len(row.body)
        if stream.last is None:
            stream.first = stream.last = publish
            if stream.in_flight is None and not stream.paused:
                self._ready.append(stream)
        else:
            stream.last._next = publish
            stream.last = publish

    # Publishing

    def take(self, now: int, limit: int) -> list[Publish]:
        """Up to ``limit`` rows to publish now, one a stream; who waited longest comes first."""
        while self._pauses and self._pauses[0][0] <= now:
            _, _, stream = heapq.heappop(self._pauses)
            stream.paused = False
            self._ready.append(stream)
        taken: list[Publish] = []
        room = min(limit, self._limits.in_flight - self._in_flight)
        while self._ready and len(taken) < room:
            stream = self._ready.popleft()
            first = stream.first
            if first is None or stream.in_flight is not None:
                continue  # its shard was closed meanwhile
            shard = first._shard
            if first.position > shard.taken_to:
                if shard.leave_by is not None:
                    continue  # whoever is next publishes it
                shard.taken_to = first.position
            shard.in_flight += 1
            stream.in_flight = first
            taken.append(first)
        self._in_flight += len(taken)
        return taken

    def settle(self, publish: Publish, outcome: Outcome, now: int, jitter: float) -> Verdict:
        """What became of a taken row. ``jitter`` is a random number in [0, 1)."""
        stream = publish._stream
        if stream.in_flight is not publish:
            raise ValueError(f"position {publish.position} is not in flight")
        stream.in_flight = None
        self._in_flight -= 1
        publish._shard.in_flight -= 1
        verdict = judge(outcome, required=publish.row.required)
        if not publish._shard.open:
            self._next(stream)
        elif verdict is Verdict.DONE:
            stream.failures, stream.failed = 0, None
            stream.first = publish._next
            if stream.first is None:
                stream.last = None
            publish._shard.body_bytes -= len(publish.row.body)
            publish._row = None
            self._pass(publish._shard)
            self._next(stream)
        elif verdict is Verdict.AGAIN:
            self._next(stream)
        else:
            stream.failures += 1
            stream.failed = outcome
            stream.paused = True
            self._pause_count += 1
            end = now + self._pause_length(stream.failures, jitter)
            heapq.heappush(self._pauses, (end, self._pause_count, stream))
        return verdict

    def _next(self, stream: _Stream) -> None:
        if stream.first is not None:
            self._ready.append(stream)
        else:
            self._streams.pop(stream.key, None)

    def _pause_length(self, failures: int, jitter: float) -> int:
        """Full jitter: anything up to a bound that doubles with each failure in a row."""
        bound = min(self._limits.backoff_cap, self._limits.backoff_base << min(failures - 1, 32))
        return int(bound * jitter)

    def _pass(self, shard: _Shard) -> None:
        rows = shard.rows
        while rows and rows[0]._row is None:
            shard.passable_to = rows.popleft().position
            self._movable.add(shard.number)

    # Cursors

    @property
    def movable(self) -> bool:
        """Whether some cursor may move."""
        return bool(self._movable)

    def cursors(self) -> list[Cursor]:
        """The cursors that may move, and where to."""
        return [
            Cursor(number, self._shards[number].claim_token, self._shards[number].passable_to)
            for number in self._movable
        ]

    def moved(self, cursor: Cursor) -> None:
        """The store took the cursor."""
        shard = self._shards.get(cursor.shard)
        if shard is None or shard.claim_token != cursor.claim_token:
            return
        shard.stored = max(shard.stored, cursor.position)
        if shard.passable_to <= shard.stored:
            self._movable.discard(cursor.shard)

    # What an observer may ask

    @property
    def in_flight(self) -> int:
        """Unconfirmed publishes."""
        return self._in_flight

    @property
    def rows(self) -> int:
        """Rows between the cursors and what was read."""
        return sum(len(shard.rows) for shard in self._shards.values())

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies held."""
        return sum(shard.body_bytes for shard in self._shards.values())

    @property
    def failing_streams(self) -> Counter[Outcome]:
        """Streams whose first row failed when it was tried last, by how it failed."""
        return Counter(s.failed for s in self._streams.values() if s.failed is not None)

    def next_retry(self) -> int | None:
        """When the first paused stream may go on."""
        return self._pauses[0][0] if self._pauses else None

    @property
    def has_ready(self) -> bool:
        """Whether some stream could publish now, were there room."""
        return bool(self._ready)
