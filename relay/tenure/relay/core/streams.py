"""The state of streams and shards in the window, and whose turn it is to publish.

Underscored fields of a Publish are the window's own.
"""

import heapq
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from tenure.relay.core.outcome import Outcome
from tenure.relay.core.parking import Parking, Unparked
from tenure.relay.core.rows import Row


@dataclass(eq=False, slots=True)
class Publish:
    """A row in the window, handed out by ``take`` and handed back to ``settle``."""

    position: int
    _stream: "Stream"
    _shard: "Shard"
    _row: Row | None  # gone once published, while its position waits for the cursor
    _next: "Publish | None" = None  # of the same stream
    _parking: Parking | None = None  # how it will be parked once the cursor comes to it
    _tries: int | None = None  # since it was parked; None: it is read from the log
    _skip: bool = False  # it was parked, and is not to be published any more

    @property
    def row(self) -> Row:
        """What to publish. Raises ValueError once it is published."""
        if self._row is None:
            raise ValueError(f"position {self.position} is published")
        return self._row


@dataclass(eq=False, slots=True)
class Stream:
    """One stream of the window; gone from it once nothing of it is waiting."""

    key: Hashable
    first: Publish | None = None  # of those from the log that are not published; may be in flight
    last: Publish | None = None
    in_flight: Publish | None = None
    failures: int = 0
    failed: Outcome | None = None  # why its first row is not published, once it was tried
    failing_since: int = 0
    paused: bool = False
    suspect: bool = False
    # Something of it is parked, or will be, and holds it: nothing is read into ``first``.
    held: bool = False
    due: deque[Publish] = field(default_factory=deque)  # parked rows that may go, in order


@dataclass(eq=False, slots=True)
class Shard:
    """One shard under a claim."""

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
    parked: int = 0  # rows, as the database has it
    passed: list[Publish] = field(default_factory=list)  # and not parked yet
    aside: dict[Hashable, Stream] = field(default_factory=dict)  # something of them is parked
    unparked: list[Unparked] = field(default_factory=list)  # not noted in the database yet

    @property
    def row_count(self) -> int:
        """Rows between the cursor and what was read that are neither published nor parked."""
        return len(self.rows) + len(self.passed)


class Turns:
    """Which stream publishes next: in the order in which they became ready, after a failure not
    before its pause is over, and alone while the broker may refuse what it publishes."""

    def __init__(self, in_flight: int, backoff_base: int, backoff_cap: int) -> None:
        self._most_in_flight = in_flight
        self._backoff_base = backoff_base
        self._backoff_cap = backoff_cap
        self._ready: deque[Stream] = deque()
        self._suspects: deque[Stream] = deque()  # ready as well; they go alone
        self._pauses: list[tuple[int, int, Stream]] = []
        self._pause_count = 0
        self.in_flight = 0

    @property
    def any_ready(self) -> bool:
        """Whether some stream could publish now, were there room."""
        return bool(self._ready or self._suspects)

    def next_retry(self) -> int | None:
        """When the first paused stream may go on."""
        return self._pauses[0][0] if self._pauses else None

    def enqueue(self, stream: Stream) -> None:
        """It has something to publish. To say so twice does no harm."""
        (self._suspects if stream.suspect else self._ready).append(stream)

    def pause(self, stream: Stream, now: int, jitter: float) -> None:
        """It failed: let it wait. Full jitter: anything up to a bound that doubles with each
        failure in a row."""
        bound = min(self._backoff_cap, self._backoff_base << min(stream.failures - 1, 32))
        stream.paused = True
        self._pause_count += 1
        heapq.heappush(self._pauses, (now + int(bound * jitter), self._pause_count, stream))

    def take(self, now: int, limit: int) -> list[Publish]:
        """Up to ``limit`` rows to publish now, one a stream."""
        while self._pauses and self._pauses[0][0] <= now:
            _, _, stream = heapq.heappop(self._pauses)
            stream.paused = False
            self.enqueue(stream)
        room = min(limit, self._most_in_flight - self.in_flight)
        taken: list[Publish] = []
        if self._suspects and self.in_flight == 0:
            taken = _take_from(self._suspects, min(room, 1))
        if not self._suspects and not taken:  # what goes alone waits for the others, they for it
            taken = _take_from(self._ready, room)
        self.in_flight += len(taken)
        return taken

    def settle(self, publish: Publish, outcome: Outcome) -> None:
        """A taken row is in flight no more."""
        stream = publish._stream
        stream.in_flight = None
        publish._shard.in_flight -= 1
        self.in_flight -= 1
        if outcome is not Outcome.ACKED or stream.suspect:
            self._suspect(stream, outcome)

    def _suspect(self, stream: Stream, outcome: Outcome) -> None:
        if outcome is Outcome.SUSPECTED:
            stream.suspect = True
        elif outcome is Outcome.REFUSED:
            stream.suspect = True  # until it is parked
            for other in self._suspects:  # it was this one
                other.suspect = False
            self._ready.extend(self._suspects)
            self._suspects.clear()
        elif outcome is not Outcome.LOST:
            stream.suspect = False


def _take_from(ready: deque[Stream], room: int) -> list[Publish]:
    taken: list[Publish] = []
    while ready and len(taken) < room:
        stream = ready.popleft()
        first = stream.due[0] if stream.due else stream.first
        if first is None or stream.in_flight is not None:
            continue  # its shard was closed meanwhile, or it is held
        shard = first._shard
        if shard.leave_by is not None and (
            first._tries is not None or first.position > shard.taken_to
        ):
            continue  # whoever is next publishes it
        if first.position > shard.taken_to:
            shard.taken_to = first.position
        shard.in_flight += 1
        stream.in_flight = first
        taken.append(first)
    return taken
