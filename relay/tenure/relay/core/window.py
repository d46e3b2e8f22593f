"""What to publish next, and how far the cursors may move. No I/O, no clock: instants come in.

The window holds the rows between each claimed shard's stored cursor and what was read last. It is
bounded in rows and in bytes. Of each stream at most one publish is unconfirmed, while many streams
are in flight: a nack, return or timeout delays its own stream and never reorders it (RELAY-03). A
shard's cursor may move up to the last row before the first that is neither published nor parked.

A row that fails for too long is parked: the move of the cursor past it sets it aside, and the later
rows of its stream behind it (RELAY-04). When a parked row is due it is published from where it was
set aside, and the stream goes on from the log once nothing of it is parked any more.

When the broker closes the channel over one of many publishes, all of them are suspects. Each is
then published alone, until the one is found.

A shard that has read everything there was follows the end of the log together with all others like
it; one that has not, or has no room for what came, reads by itself until it has caught up.

Instants and durations are integer microseconds on any one monotonic clock.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace

from tenure.relay.core import reading
from tenure.relay.core.outcome import Outcome, Verdict, judge
from tenure.relay.core.parking import (
    BEHIND,
    Parking,
    ParkingPolicy,
    Unparked,
    Unparking,
    retry_after,
    short,
    should_park,
)
from tenure.relay.core.rows import Cursor, Due, Follow, Limits, Row, Want
from tenure.relay.core.streams import Publish, Shard, Stream, Turns


class Window:
    """See the module. Not thread-safe; every method is short."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._shards: dict[int, Shard] = {}
        self._streams: dict[Hashable, Stream] = {}
        self._turns = Turns(limits.in_flight, limits.backoff_base, limits.backoff_cap)
        self._due = 0
        self._movable: set[int] = set()

    # Claims

    def open(
        self,
        shard: int,
        claim_token: int,
        position: int,
        *,
        parked: int = 0,
        held: Iterable[Hashable] = (),
    ) -> None:
        """A claim begins: rows after ``position`` are not known to be published. Of the shard
        ``parked`` rows are parked, and the streams in ``held`` wait for some of them."""
        self.close(shard)
        opened = self._shards[shard] = Shard(
            number=shard,
            claim_token=claim_token,
            stored=position,
            passable_to=position,
            read_to=position,
            parked=parked,
        )
        for key in held:
            self._hold(opened, self._stream(key))

    def close(self, shard: int) -> None:
        """A claim ended: its rows are forgotten. What is in flight is settled without effect, and
        until then holds back its stream, should the shard be opened again."""
        closed = self._shards.pop(shard, None)
        if closed is None:
            return
        closed.open = False
        self._movable.discard(shard)
        for stream in [publish._stream for publish in closed.rows] + [*closed.aside.values()]:
            stream.first = stream.last = None
            stream.held = False
            self._due -= len(stream.due)
            stream.due.clear()
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
            and not shard.unparked
            and (shard.taken_to <= shard.stored or now >= shard.leave_by)
        }

    @property
    def claims(self) -> dict[int, int]:
        """Claim token by open shard."""
        return {number: shard.claim_token for number, shard in self._shards.items()}

    # Reading

    def share(self, shards: int) -> None:
        """So many shards are due to this relay: the bounds are shared by them. Of more relays each
        reads as much at once as one alone, and none needs more statements for a row. While shares
        change, what was read under the old ones stays: never more than twice the bounds."""
        self._limits = replace(self._limits, shards=max(1, shards))

    def wanted(self) -> list[Want]:
        """What shards that are behind should read now. Empty when none is, or none has room."""
        return reading.wanted(self._shards.values(), self._limits)

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
        return reading.follow(self._shards.values(), self._limits)

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
            if reading.has_room(shard, limits):
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

    def _append(self, shard: Shard, row: Row) -> None:
        stream = self._streams.get(row.stream)
        if stream is None:
            stream = self._streams[row.stream] = Stream(row.stream)
        publish = Publish(row.position, stream, shard, row)
        shard.rows.append(publish)
        shard.read_to = row.position
        shard.body_bytes += len(row.body)
        if stream.held:
            publish._parking = _behind(publish)
            self._pass(shard)
        else:
            self._link(publish)

    def _stream(self, key: Hashable) -> Stream:
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(key)
        return stream

    def _link(self, publish: Publish) -> None:
        stream = publish._stream
        if stream.last is None:
            stream.first = stream.last = publish
            if stream.in_flight is None and not stream.paused:
                self._turns.enqueue(stream)
        else:
            stream.last._next = publish
            stream.last = publish

    # Publishing

    def take(self, now: int, limit: int) -> list[Publish]:
        """Up to ``limit`` rows to publish now, one a stream; who waited longest comes first."""
        return self._turns.take(now, limit)

    def settle(
        self, publish: Publish, outcome: Outcome, now: int, jitter: float, detail: str = ""
    ) -> Verdict:
        """What became of a taken row, and why. ``jitter`` is a random number in [0, 1)."""
        stream = publish._stream
        if stream.in_flight is not publish:
            raise ValueError(f"position {publish.position} is not in flight")
        self._turns.settle(publish, outcome)
        verdict = judge(outcome, required=publish.row.required)
        shard = publish._shard
        if not shard.open or verdict in (Verdict.AGAIN, Verdict.AGAIN_ALONE):
            self._next(stream)
        elif publish._tries is not None:
            if verdict is not Verdict.DONE:
                self._unpark(publish, Unparking.FAILED, outcome, detail, jitter)
            elif outcome is Outcome.WITHDRAWN:
                self._unpark(publish, Unparking.WITHDRAWN)
            else:
                self._unpark(publish, Unparking.PUBLISHED)
            self._skip(stream)
            self._next(stream)
        elif verdict is Verdict.DONE:
            stream.failures, stream.failed = 0, None
            self._unlink(publish)
            shard.body_bytes -= len(publish.row.body)
            publish._row = None
            self._pass(shard)
            self._next(stream)
        else:
            if stream.failures == 0:
                stream.failing_since = now
            stream.failures += 1
            stream.failed = outcome
            if self._has_room(shard) and should_park(
                outcome,
                failures=stream.failures,
                failing=now - stream.failing_since,
                terms=self._limits.parking,
            ):
                self._park(publish, outcome, jitter, detail)
                return Verdict.PARKED
            self._turns.pause(stream, now, jitter)
        return verdict

    def _next(self, stream: Stream) -> None:
        if stream.first is not None or stream.due:
            self._turns.enqueue(stream)
        elif not stream.held:
            self._streams.pop(stream.key, None)

    def _unlink(self, publish: Publish) -> None:
        """Take the first row of a stream out of it."""
        stream = publish._stream
        stream.first = publish._next
        if stream.first is None:
            stream.last = None

    def _pass(self, shard: Shard) -> None:
        rows = shard.rows
        while rows:
            first = rows[0]
            if first._row is not None:
                if first._parking is None or not self._has_room(shard):
                    return
                shard.passed.append(first)
                shard.body_bytes -= len(first._row.body)
                first._row = None
            shard.passable_to = rows.popleft().position
            self._movable.add(shard.number)

    # Parking

    def sets_aside(self, shard: int) -> bool:
        """Whether something of the shard is parked, or will be by its next move."""
        return bool(self._shards[shard].parked or self._shards[shard].passed)

    def _has_room(self, shard: Shard) -> bool:
        return shard.parked + len(shard.passed) < self._limits.parking.rows_per_shard

    def _hold(self, shard: Shard, stream: Stream) -> None:
        stream.held = True
        shard.aside[stream.key] = stream

    def _park(self, publish: Publish, outcome: Outcome, jitter: float, detail: str) -> None:
        stream, shard = publish._stream, publish._shard
        holds = self._limits.parking.policy is ParkingPolicy.HOLD
        publish._parking = Parking(
            publish.position, outcome.value, short(detail), holds, retry_after(outcome, 0, jitter)
        )
        stream.failures, stream.failed, stream.suspect = 0, None, False
        self._unlink(publish)
        if holds:
            self._hold(shard, stream)
            behind, stream.first, stream.last = stream.first, None, None
            while behind is not None:
                behind._parking = _behind(behind)
                behind._next, behind = None, behind._next
        self._pass(shard)
        self._next(stream)

    def take_up(self, rows: Iterable[Due]) -> None:
        """Parked rows that are due, of each stream in order. What is of a shard that is not open,
        or is handed over, is left out."""
        for due in rows:
            shard = self._shards.get(due.row.shard)
            if shard is None or shard.leave_by is not None:
                continue
            stream = self._stream(due.row.stream)
            shard.aside[stream.key] = stream
            stream.due.append(
                Publish(due.row.position, stream, shard, due.row, _tries=due.tries, _skip=due.skip)
            )
            self._due += 1
            self._skip(stream)
            if len(stream.due) == 1 and stream.in_flight is None:
                self._turns.enqueue(stream)

    def _skip(self, stream: Stream) -> None:
        while stream.due and stream.due[0]._skip and stream.in_flight is not stream.due[0]:
            self._unpark(stream.due[0], Unparking.SKIPPED)

    def _unpark(
        self,
        publish: Publish,
        what: Unparking,
        outcome: Outcome | None = None,
        detail: str = "",
        jitter: float = 0.0,
    ) -> None:
        stream, shard = publish._stream, publish._shard
        again: int | None = None
        stream.due.popleft()
        self._due -= 1
        if outcome is not None:  # it failed
            assert publish._tries is not None  # it was parked
            again = retry_after(outcome, publish._tries + 1, jitter)
            stream.suspect = False
            self._due -= len(stream.due)
            stream.due.clear()  # they wait for it
        shard.unparked.append(
            Unparked(
                shard.number,
                shard.claim_token,
                publish.position,
                stream.key,
                what,
                "" if outcome is None else outcome.value,
                short(detail),
                again,
            )
        )
        publish._row = None

    def unparked(self) -> list[Unparked]:
        """What became of parked rows, to be noted."""
        return [each for shard in self._shards.values() for each in shard.unparked]

    def noted(self, unparked: Sequence[Unparked], released: Collection[Hashable]) -> None:
        """The store has noted it. Of the streams in ``released`` nothing is parked any more that
        holds them: they go on from the log."""
        for each in unparked:
            shard = self._shards.get(each.shard)
            if shard is None or shard.claim_token != each.claim_token:
                continue
            shard.unparked.remove(each)
            shard.parked -= each.what is not Unparking.FAILED
            stream = shard.aside.get(each.stream)
            if stream is None:
                continue
            if each.stream in released:
                self._release(shard, stream)
            if not stream.held and not stream.due:
                del shard.aside[each.stream]
            self._pass(shard)  # there may be room again
            if stream.in_flight is None and not stream.paused and not stream.due:
                self._next(stream)

    def _release(self, shard: Shard, stream: Stream) -> None:
        if not stream.held or any(publish._stream is stream for publish in shard.passed):
            return  # what is passed will be parked, and holds the stream again
        stream.held = False
        for publish in shard.rows:
            if publish._stream is stream and publish._parking is not None:
                publish._parking = None
                self._link(publish)

    # Cursors

    @property
    def movable(self) -> bool:
        """Whether some cursor may move."""
        return bool(self._movable)

    def cursors(self) -> list[Cursor]:
        """The cursors that may move, and where to."""
        return [
            Cursor(
                shard.number,
                shard.claim_token,
                shard.passable_to,
                tuple(each._parking for each in shard.passed if each._parking is not None),
            )
            for shard in (self._shards[number] for number in self._movable)
        ]

    def moved(self, cursor: Cursor) -> None:
        """The store took the cursor."""
        shard = self._shards.get(cursor.shard)
        if shard is None or shard.claim_token != cursor.claim_token:
            return
        shard.stored = max(shard.stored, cursor.position)
        before = len(shard.passed)
        shard.passed = [each for each in shard.passed if each.position > cursor.position]
        shard.parked += before - len(shard.passed)
        if shard.passable_to <= shard.stored:
            self._movable.discard(cursor.shard)

    # What an observer may ask

    @property
    def in_flight(self) -> int:
        """Unconfirmed publishes."""
        return self._turns.in_flight

    @property
    def rows(self) -> int:
        """Rows between the cursors and what was read."""
        return sum(shard.row_count for shard in self._shards.values())

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies held."""
        return sum(shard.body_bytes for shard in self._shards.values())

    @property
    def due(self) -> int:
        """Parked rows that were taken up and have no end yet."""
        return self._due

    @property
    def parked(self) -> int:
        """Rows of the open shards that are parked."""
        return sum(shard.parked for shard in self._shards.values())

    @property
    def full_shards(self) -> int:
        """Shards that park nothing more: what fails holds them up."""
        return sum(not self._has_room(shard) for shard in self._shards.values())

    @property
    def failing_streams(self) -> Counter[Outcome]:
        """Streams whose first row failed when it was tried last, by how it failed."""
        return Counter(s.failed for s in self._streams.values() if s.failed is not None)

    def next_retry(self) -> int | None:
        """When the first paused stream may go on."""
        return self._turns.next_retry()

    @property
    def has_ready(self) -> bool:
        """Whether some stream could publish now, were there room."""
        return self._turns.any_ready


def _behind(publish: Publish) -> Parking:
    return Parking(publish.position, BEHIND, "", holds=True)
