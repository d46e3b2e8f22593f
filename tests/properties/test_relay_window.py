"""Whatever the broker does and whenever claims change hands: order, cursors and bounds hold.

The store is a model of the table of parked rows and of the guards of its functions.
"""

from collections.abc import Hashable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tenure.relay.core.outcome import Outcome, Verdict
from tenure.relay.core.parking import BEHIND, ParkingTerms, Unparking
from tenure.relay.core.rows import Cursor, Due, Limits, Row
from tenure.relay.core.streams import Publish
from tenure.relay.core.window import Window

SHARDS = 2
STREAMS = 3
LIMITS = Limits(
    rows=12,
    body_bytes=400,
    shards=SHARDS,
    in_flight=4,
    rows_per_read=6,
    body_bytes_per_read=150,
    parking=ParkingTerms(after=1_000_000, rows_per_shard=4),
)


class AnyBroker(RuleBasedStateMachine):
    """A log, a window over it, and a broker that answers as it pleases."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.token = 0
        self.log: list[Row] = []
        self.stored = dict.fromkeys(range(SHARDS), 0)
        self.in_flight: list[Publish] = []
        self.published: set[int] = set()
        self.published_now: set[int] = set()  # under the claims that are held
        self.parked: dict[int, Row] = {}
        self.skipping: set[int] = set()
        self.of_before: set[Publish] = set()  # in flight under claims that ended
        self.leave_by: dict[int, int] = {}
        self.window = Window(LIMITS)
        for shard in range(SHARDS):
            self.window.open(shard, 0, 0)

    @initialize(streams=st.lists(st.integers(0, STREAMS - 1), min_size=6, max_size=12))
    def begin(self, streams: list[int]) -> None:
        for stream in streams:
            self.append(stream, 9, True)
        self.read()
        self.take(5)

    @rule(stream=st.integers(0, STREAMS - 1), size=st.integers(1, 60), required=st.booleans())
    def append(self, stream: int, size: int, required: bool) -> None:
        position = len(self.log) + 1
        self.log.append(
            Row(position, stream % SHARDS, stream, str(position), "", "", required, b"." * size)
        )

    @rule()
    def read(self) -> None:
        wanted = self.window.wanted()
        answer = []
        for want in wanted:
            size = 0
            rows = [r for r in self.log if r.shard == want.shard and r.position > want.after]
            for row in rows[: want.rows]:
                if size >= want.body_bytes:
                    break
                size += len(row.body)
                answer.append(row)
        self.window.add(wanted, answer, len(self.log))

    @rule()
    def follow(self) -> None:
        asked = self.window.follow()
        if asked is None:
            return
        size = 0
        answer = []
        rows = [r for r in self.log if r.shard in asked.shards and r.position > asked.after]
        for row in rows[: asked.rows]:
            if size >= asked.body_bytes:
                break
            size += len(row.body)
            answer.append(row)
        more = self.window.followed(asked, answer, len(self.log))
        assert more or len(answer) == len(rows)

    @rule(limit=st.integers(1, 5))
    def take(self, limit: int) -> None:
        for publish in self.window.take(self.now, limit):
            row = publish.row
            older = {
                other.position
                for other in self.log
                if other.stream == row.stream and other.position < row.position
            }
            assert older <= self.published | self.skipping  # whatever was parked meanwhile
            assert row.position not in self.skipping
            self.in_flight.append(publish)

    @precondition(lambda self: self.in_flight)
    @rule(
        number=st.integers(0, 3),
        outcome=st.sampled_from([*Outcome, Outcome.ACKED, Outcome.ACKED, Outcome.UNSENDABLE]),
        jitter=st.floats(0, 0.99),
    )
    def settle(self, number: int, outcome: Outcome, jitter: float) -> None:
        publish = self.in_flight.pop(number % len(self.in_flight))
        position = publish.position
        if self.window.settle(publish, outcome, self.now, jitter, "why") is Verdict.DONE:
            self.published.add(position)
            if publish not in self.of_before:
                self.published_now.add(position)

    @precondition(lambda self: self.in_flight)
    @rule(outcome=st.sampled_from([Outcome.ACKED, Outcome.ACKED, Outcome.LOST, Outcome.NACKED]))
    def settle_all_and_take(self, outcome: Outcome) -> None:
        while self.in_flight:
            self.settle(0, outcome, 0.0)
        self.take(5)

    @precondition(lambda self: self.window.movable)
    @rule(answered=st.sampled_from([True, True, True, False]))
    def move_cursors(self, answered: bool) -> None:
        for cursor in self.window.cursors():
            self.store(cursor)
            if answered:
                self.window.moved(cursor)
            elif cursor.parkings:
                self.claim_again(cursor.shard)  # what it did is not known

    def store(self, cursor: Cursor) -> None:
        """As the database does: the cursor and what is parked by its move, or a broken guard."""
        passed = {
            row.position: row
            for row in self.log
            if row.shard == cursor.shard
            and self.stored[cursor.shard] < row.position <= cursor.position
        }
        if cursor.position <= self.stored[cursor.shard]:
            return
        parked = {each.position: each for each in cursor.parkings if each.position in passed}
        assert all(each.position <= cursor.position for each in cursor.parkings)
        assert not parked.keys() & self.published_now
        for position, row in passed.items():
            if position in parked:
                # What it was to wait for may be gone by now; then it is the first.
                assert parked[position].reason == BEHIND or row.stream not in self.held()
                self.parked[position] = row
            else:
                assert position in self.published
                assert row.stream not in self.held()
        assert len(self.of_shard(cursor.shard)) <= LIMITS.parking.rows_per_shard
        self.stored[cursor.shard] = cursor.position

    def held(self) -> set[Hashable]:
        return {row.stream for row in self.parked.values()}

    def ends(self) -> dict[int, int]:
        rows = [(row.shard, row.position) for row in self.log]
        return {
            shard: max((position for of, position in rows if of == shard), default=0)
            for shard in range(SHARDS)
        }

    def of_shard(self, shard: int) -> list[Row]:
        return [row for row in self.parked.values() if row.shard == shard]

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def ask_to_skip(self, data: st.DataObject) -> None:
        flying = {publish.position for publish in self.in_flight}
        loaded = self.window.due or self.window.unparked()
        if not loaded and (left := sorted(self.parked.keys() - flying)):
            self.skipping.add(data.draw(st.sampled_from(left)))

    @precondition(lambda self: self.parked)
    @rule(
        streams=st.sets(st.integers(0, STREAMS - 1), min_size=1), count=st.sampled_from([1, 2, 9])
    )
    def fall_due(self, streams: set[int], count: int) -> None:
        if self.window.due or self.window.unparked():
            return
        for stream in streams:
            rows = sorted(row for row in self.parked.values() if row.stream == stream)
            self.window.take_up(Due(row, 0, row.position in self.skipping) for row in rows[:count])
        self.take(5)

    @precondition(lambda self: self.window.unparked())
    @rule(answered=st.sampled_from([True, True, True, False]))
    def note(self, answered: bool) -> None:
        unparked = self.window.unparked()
        for each in unparked:
            row = self.parked[each.position]
            assert row == min(other for other in self.parked.values() if other.stream == row.stream)
            if each.what is Unparking.FAILED:
                continue
            if each.what is Unparking.SKIPPED:
                assert each.position in self.skipping
                self.skipping.discard(each.position)
                self.published.add(each.position)  # as good as
            assert each.position in self.published
            del self.parked[each.position]
        if answered:
            held = self.held()
            self.window.noted(unparked, {each.stream for each in unparked} - held)
        else:
            for shard in {each.shard for each in unparked}:
                self.claim_again(shard)

    @rule(shard=st.integers(0, SHARDS - 1))
    def claim_again(self, shard: int) -> None:
        self.token += 1
        self.of_before |= {each for each in self.in_flight if each._shard.number == shard}
        self.published_now -= {row.position for row in self.log if row.shard == shard}
        parked = self.of_shard(shard)
        self.window.open(
            shard,
            self.token,
            self.stored[shard],
            parked=len(parked),
            held={row.stream for row in parked},
        )

    @rule(shard=st.integers(0, SHARDS - 1), microseconds=st.integers(0, 5_000_000))
    def hand_over(self, shard: int, microseconds: int) -> None:
        if shard not in self.window.leaving():
            self.leave_by[shard] = self.now + microseconds
            self.window.leave(shard, self.leave_by[shard])

    @precondition(lambda self: self.window.leaving())
    @rule()
    def give_back(self) -> None:
        for shard in self.window.left(self.now):
            flying = {publish for publish in self.in_flight if publish not in self.of_before}
            assert all(publish._shard.number != shard for publish in flying)
            if self.now < self.leave_by[shard]:  # then the next relay publishes nothing twice
                ours = {row.position for row in self.log if row.shard == shard}
                assert max(ours & self.published_now, default=0) <= self.stored[shard]
            assert all(each.shard != shard for each in self.window.unparked())
            self.claim_again(shard)

    @rule(microseconds=st.integers(0, 60_000_000))
    def wait(self, microseconds: int) -> None:
        self.now += microseconds

    @invariant()
    def one_publish_a_stream(self) -> None:
        streams = [publish.row.stream for publish in self.in_flight]
        assert len(set(streams)) == len(streams)

    @invariant()
    def bounded(self) -> None:
        largest = max((len(row.body) for row in self.log), default=0)
        assert self.window.rows <= LIMITS.rows
        assert self.window.body_bytes <= LIMITS.body_bytes + SHARDS * largest
        assert self.window.in_flight == len(self.in_flight) <= LIMITS.in_flight
        assert self.window.parked == len(self.parked)
        assert self.window.due >= 0

    def teardown(self) -> None:
        """Given a broker that works, everything gets published and every cursor to its end."""
        for _ in range(20 * (len(self.log) + 1)):
            self.now += 60_000_000
            self.read()
            self.follow()
            self.take(5)
            for publish in self.in_flight:
                self.published.add(publish.position)
                self.window.settle(publish, Outcome.ACKED, self.now, 0.0)
            self.in_flight.clear()
            self.move_cursors(True)
            self.note(True)
            self.fall_due(set(range(STREAMS)), 3)
            self.give_back()
            if self.stored == self.ends() and not self.parked:
                break
        assert self.stored == self.ends()
        assert self.window.rows == 0
        assert not self.parked
        assert self.window.due == 0
        assert not self.window.unparked()


TestAnyBroker = AnyBroker.TestCase
TestAnyBroker.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
