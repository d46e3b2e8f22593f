"""Whatever the broker does and whenever claims change hands: order, cursors and bounds hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tenure.relay.core.outcome import Outcome, Verdict
from tenure.relay.core.window import Limits, Publish, Row, Window

SHARDS = 2
STREAMS = 3
LIMITS = Limits(
    rows=12,
    body_bytes=400,
    shards=SHARDS,
    in_flight=4,
    rows_per_read=6,
    body_bytes_per_read=150,
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
        self.leave_by: dict[int, int] = {}
        self.window = Window(LIMITS)
        for shard in range(SHARDS):
            self.window.open(shard, 0, 0)

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
            older = [
                other.position
                for other in self.log
                if other.stream == row.stream
                and self.stored[row.shard] < other.position < row.position
            ]
            assert set(older) <= self.published
            self.in_flight.append(publish)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)), jitter=st.floats(0, 0.99))
    def settle(self, data: st.DataObject, outcome: Outcome, jitter: float) -> None:
        publish = data.draw(st.sampled_from(self.in_flight))
        self.in_flight.remove(publish)
        position = publish.position
        if self.window.settle(publish, outcome, self.now, jitter) is Verdict.DONE:
            self.published.add(position)

    @rule()
    def move_cursors(self) -> None:
        for cursor in self.window.cursors():
            passed = [
                row.position
                for row in self.log
                if row.shard == cursor.shard
                and self.stored[cursor.shard] < row.position <= cursor.position
            ]
            assert set(passed) <= self.published
            assert cursor.position > self.stored[cursor.shard]
            self.stored[cursor.shard] = cursor.position
            self.window.moved(cursor)

    @rule(shard=st.integers(0, SHARDS - 1))
    def claim_again(self, shard: int) -> None:
        self.token += 1
        self.window.open(shard, self.token, self.stored[shard])

    @rule(shard=st.integers(0, SHARDS - 1), microseconds=st.integers(0, 5_000_000))
    def hand_over(self, shard: int, microseconds: int) -> None:
        if shard not in self.window.leaving():
            self.leave_by[shard] = self.now + microseconds
            self.window.leave(shard, self.leave_by[shard])

    @rule()
    def give_back(self) -> None:
        for shard in self.window.left(self.now):
            assert all(publish.row.shard != shard for publish in self.in_flight)
            if self.now < self.leave_by[shard]:  # then the next relay publishes nothing twice
                ours = {row.position for row in self.log if row.shard == shard}
                assert max(ours & self.published, default=0) <= self.stored[shard]
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
            self.move_cursors()
            self.give_back()
        for shard, stored in self.stored.items():
            ends = [row.position for row in self.log if row.shard == shard]
            assert stored == (ends[-1] if ends else 0)
            assert self.window.rows == 0


TestAnyBroker = AnyBroker.TestCase
TestAnyBroker.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
