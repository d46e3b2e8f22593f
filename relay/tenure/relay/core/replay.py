"""What of a replay to publish next, and how far it has come. No I/O, no clock: instants come in.

A course is one replay under one claim (REPLAY-01). Its rows are read in order; of each stream at
most one publish is unconfirmed; its position is the last up to which everything is confirmed, or
does not match. It ends its own work for a reason that the store is told, or because the store says
that it is paused, cancelled or done.

Instants and durations are integer microseconds on any one monotonic clock.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tenure.contract.states import ReplayPause
from tenure.relay.core.outcome import Outcome, Verdict, judge
from tenure.relay.core.rows import Row

SECOND: Final = 1_000_000
_BURSTS_A_SECOND: Final = 10


class Allowance:
    """Tokens that come at a rate: one a row. None has come at the start, so that a replay that
    changes hands does not exceed its rate; at most a tenth of a second's are kept."""

    def __init__(self, rate: int, now: int) -> None:
        self._rate = rate
        self._cap = max(SECOND, rate * SECOND // _BURSTS_A_SECOND)
        self._credit = 0  # millionths of a token
        self._at = now

    def at(self, now: int) -> int:
        """How many rows may be published now."""
        self._credit = min(self._cap, self._credit + (now - self._at) * self._rate)
        self._at = now
        return self._credit // SECOND

    def spend(self, rows: int) -> None:
        """So many were published."""
        self._credit -= rows * SECOND

    def next(self) -> int:
        """When there is a token, given the last look."""
        missing = SECOND - self._credit
        return self._at if missing <= 0 else self._at - (-missing // self._rate)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one course: rows and bytes of bodies held, and how long a stream waits after a failure."""

    rows: int = 512
    body_bytes: int = 1024 * 1024
    backoff_base: int = 100_000
    backoff_cap: int = 30 * SECOND


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a course has come: ``replayed`` and ``held_back`` count rows up to ``position``."""

    position: int
    replayed: int
    held_back: int


@dataclass(eq=False, slots=True)
class Repeat:
    """A row to be published once more, handed out by ``take`` and handed back to ``settle``."""

    course: "Course"
    row: Row
    _stream: "_Stream"


@dataclass(eq=False, slots=True)
class _Entry:
    """A position between the progress and what was read."""

    position: int
    held: bool
    size: int = 0
    done: bool = False


@dataclass(eq=False, slots=True)
class _Stream:
    waiting: deque[tuple[Row, _Entry]] = field(default_factory=deque)
    in_flight: bool = False
    failures: int = 0
    paused_until: int = 0


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a course ends its work. ``code`` None: the store said so, and knows why."""

    code: ReplayPause | None
    detail: str = ""


class Course:
    """See the module. Every method is short."""

    def __init__(
        self,
        *,
        replay_id: str,
        claim_token: int,
        queue: str,
        rate: int,
        start: Progress,
        to_position: int,
        now: int,
        bounds: Bounds,
    ) -> None:
        self.replay_id = replay_id
        self.claim_token = claim_token
        self.queue = queue
        self.allowance = Allowance(rate, now)
        self.read_to = start.position
        self.stopped: Stopped | None = None
        self.in_flight = 0
        self._to_position = to_position
        self._bounds = bounds
        self._replayed = start.replayed
        self._held_back = start.held_back
        self._passed = start.position
        self._entries: deque[_Entry] = deque()
        self._streams: dict[Hashable, _Stream] = {}
        self._ready: deque[_Stream] = deque()
        self._paused: list[_Stream] = []
        self._suspects: deque[_Stream] = deque()
        self._bytes = 0

    # Reading

    @property
    def wants(self) -> tuple[int, int]:
        """How many rows, and bytes of bodies, it has room for; (0, 0) when it should not read."""
        rows = self._bounds.rows - len(self._entries)
        room = self._bounds.body_bytes - self._bytes
        # Not for a handful of rows: half empty at least.
        hungry = rows * 2 >= self._bounds.rows and room * 2 >= self._bounds.body_bytes
        if not hungry or self.stopped is not None or self.read_to >= self._to_position:
            return 0, 0
        return rows, room

    def add(self, rows: Sequence[Row], held: frozenset[int], scanned_to: int) -> None:
        """What was read: rows by position, which of their positions are held back, and up to where
        nothing else matches."""
        for row in rows:
            entry = _Entry(row.position, row.position in held)
            self._entries.append(entry)
            if entry.held:
                entry.done = True
                continue
            entry.size = len(row.body)
            self._bytes += entry.size
            stream = self._streams.setdefault(row.stream, _Stream())
            stream.waiting.append((row, entry))
            if len(stream.waiting) == 1:
                self._ready.append(stream)
        self.read_to = max(self.read_to, scanned_to)
        self._pass()

    # Publishing

    def take(self, now: int, limit: int) -> list[Repeat]:
        """Up to ``limit`` rows to publish now, one a stream, as far as the rate allows."""
        if self.stopped is not None:
            return []
        due = [stream for stream in self._paused if stream.paused_until <= now]
        if due:
            self._paused = [stream for stream in self._paused if stream.paused_until > now]
            self._ready.extend(due)
        room = min(limit, self.allowance.at(now))
        taken: list[Repeat] = []
        while self._ready and len(taken) < room:
            stream = self._ready.popleft()
            stream.in_flight = True
            taken.append(Repeat(self, stream.waiting[0][0], stream))
        self.allowance.spend(len(taken))
        self.in_flight += len(taken)
        return taken

    @property
    def suspects(self) -> bool:
        """Whether it has rows that are to be published alone: the broker refused one of several."""
        return bool(self._suspects) and self.stopped is None

    def take_suspect(self) -> Repeat:
        """One of these, while nothing else is in flight. Raises IndexError when there is none."""
        stream = self._suspects.popleft()
        stream.in_flight = True
        self.in_flight += 1
        return Repeat(self, stream.waiting[0][0], stream)

    def settle(
        self, repeat: Repeat, outcome: Outcome, detail: str, now: int, jitter: float
    ) -> Verdict:
        """What became of a taken row. ``jitter`` is a random number in [0, 1).

        A queue that is not there, and a row that cannot be sent, stop the course: neither is
        dropped, and somebody has to see to it.
        """
        stream = repeat._stream
        if not stream.in_flight:
            raise ValueError(f"position {repeat.row.position} is not in flight")
        stream.in_flight = False
        self.in_flight -= 1
        verdict = judge(outcome, required=True)
        if verdict is Verdict.DONE:
            _, entry = stream.waiting.popleft()
            entry.done = True
            self._bytes -= entry.size
            stream.failures = 0
            if stream.waiting:
                self._ready.append(stream)
            else:
                del self._streams[repeat.row.stream]
            self._pass()
            return verdict
        if outcome is Outcome.RETURNED:
            self.stop(ReplayPause.QUEUE_MISSING, f"{self.queue}: {detail}")
        elif outcome in (Outcome.UNSENDABLE, Outcome.REFUSED):
            self.stop(ReplayPause.NOT_SENDABLE, f"position {repeat.row.position}: {detail}")
        if verdict is Verdict.AGAIN:
            self._ready.append(stream)
        elif verdict is Verdict.AGAIN_ALONE:
            self._suspects.append(stream)
        else:
            stream.failures += 1
            bound = self._bounds.backoff_base << min(stream.failures - 1, 32)
            stream.paused_until = now + int(min(self._bounds.backoff_cap, bound) * jitter)
            self._paused.append(stream)
        return verdict

    def stop(self, code: ReplayPause | None, detail: str = "") -> None:
        """Publish nothing more. The first reason counts."""
        if self.stopped is None:
            self.stopped = Stopped(code, detail)

    def _pass(self) -> None:
        entries = self._entries
        while entries and entries[0].done:
            entry = entries.popleft()
            self._passed = entry.position
            if entry.held:
                self._held_back += 1
            else:
                self._replayed += 1
        if not entries:
            self._passed = self.read_to

    # What an observer may ask

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        return Progress(self._passed, self._replayed, self._held_back)

    @property
    def done(self) -> bool:
        """Whether everything up to its end is confirmed, or does not match."""
        return self._passed >= self._to_position

    @property
    def idle(self) -> bool:
        """Whether it has nothing to publish and waits for what has not been published so far."""
        return not self._entries

    def next_at(self) -> int | None:
        """When there will be something to publish; None: when something else happens first."""
        if self.stopped is not None:
            return None
        if self._ready:
            return self.allowance.next()
        return min((stream.paused_until for stream in self._paused), default=None)
