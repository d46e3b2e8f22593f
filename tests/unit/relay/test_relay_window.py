"""The relay's window: order within a stream, cursors, pauses and bounds."""

from collections.abc import Sequence

import pytest

from tenure.relay.core.outcome import Outcome, Verdict, judge, may_arrive_twice
from tenure.relay.core.parking import ParkingTerms
from tenure.relay.core.rows import Cursor, Limits, Row
from tenure.relay.core.streams import Publish
from tenure.relay.core.window import Window

CALM = 0.5
SECOND = 1_000_000


def row(
    position: int, stream: str, *, shard: int = 0, required: bool = False, size: int = 10
) -> Row:
    return Row(position, shard, stream, f"event-{position}", "x", "k", required, b"." * size)


def window_with(*rows: Row, limits: Limits | None = None, shards: tuple[int, ...] = (0,)) -> Window:
    window = Window(limits or Limits(shards=len(shards)))
    for shard in shards:
        window.open(shard, claim_token=7, position=0)
    window.add(window.wanted(), rows, end_of(rows))
    return window


def end_of(rows: Sequence[Row]) -> int:
    return max((each.position for each in rows), default=0)


def positions(publishes: list[Publish]) -> list[int]:
    return [publish.position for publish in publishes]


@pytest.mark.requirement("RELAY-03")
def test_one_publish_of_a_stream_is_in_flight_while_others_go_on() -> None:
    window = window_with(row(1, "a"), row(2, "a"), row(3, "b"), row(4, "a"))
    first = window.take(0, 10)
    assert positions(first) == [1, 3]
    assert window.take(0, 10) == []
    window.settle(first[0], Outcome.ACKED, 0, CALM)
    assert positions(window.take(0, 10)) == [2]


def test_the_cursor_stops_before_the_first_row_that_is_not_published() -> None:
    window = window_with(row(1, "a"), row(2, "b"), row(5, "c"))
    a, b, c = window.take(0, 10)
    window.settle(c, Outcome.ACKED, 0, CALM)
    window.settle(b, Outcome.ACKED, 0, CALM)
    assert window.cursors() == []
    window.settle(a, Outcome.ACKED, 0, CALM)
    (cursor,) = window.cursors()
    assert cursor == Cursor(shard=0, claim_token=7, position=5)
    window.moved(cursor)
    assert window.cursors() == []


@pytest.mark.requirement("RELAY-02")
@pytest.mark.parametrize(
    ("outcome", "required", "verdict"),
    [
        (Outcome.ACKED, True, Verdict.DONE),
        (Outcome.ACKED, False, Verdict.DONE),
        (Outcome.RETURNED, True, Verdict.AGAIN_LATER),
        (Outcome.RETURNED, False, Verdict.DONE),
        (Outcome.WITHDRAWN, True, Verdict.DONE),
        (Outcome.NACKED, True, Verdict.AGAIN_LATER),
        (Outcome.NACKED, False, Verdict.AGAIN_LATER),
        (Outcome.TIMED_OUT, False, Verdict.AGAIN_LATER),
        (Outcome.LOST, False, Verdict.AGAIN),
        (Outcome.NOT_SENT, False, Verdict.AGAIN_LATER),
        (Outcome.UNSENDABLE, True, Verdict.AGAIN_LATER),
        (Outcome.REFUSED, True, Verdict.AGAIN_LATER),
        (Outcome.SUSPECTED, True, Verdict.AGAIN_ALONE),
    ],
)
def test_an_outcome_and_whether_a_route_is_required_decide_the_verdict(
    outcome: Outcome, required: bool, verdict: Verdict
) -> None:
    assert judge(outcome, required=required) is verdict


def test_only_unknown_outcomes_may_arrive_twice() -> None:
    assert {outcome for outcome in Outcome if may_arrive_twice(outcome)} == {
        Outcome.TIMED_OUT,
        Outcome.LOST,
        Outcome.SUSPECTED,
    }


@pytest.mark.parametrize("outcome", [Outcome.RETURNED, Outcome.NACKED, Outcome.TIMED_OUT])
def test_a_failed_stream_pauses_and_delays_only_itself(outcome: Outcome) -> None:
    window = window_with(row(1, "a", required=True), row(2, "a"), row(3, "b"), row(4, "b"))
    a, b = window.take(0, 10)
    assert window.settle(a, outcome, 0, CALM) is Verdict.AGAIN_LATER
    window.settle(b, Outcome.ACKED, 0, CALM)
    assert positions(window.take(0, 10)) == [4]
    retry = window.next_retry()
    assert retry is not None
    assert window.take(retry - 1, 10) == []
    assert positions(window.take(retry, 10)) == [1]  # the same row, not the one behind it
    assert window.cursors() == []


def test_pauses_double_up_to_a_bound_and_end_with_success() -> None:
    patient = Limits(shards=1, parking=ParkingTerms(after=3600 * SECOND))
    window = window_with(row(1, "a"), row(2, "a"), limits=patient)
    pauses = []
    now = 0
    for _ in range(12):
        (publish,) = window.take(now, 1)
        window.settle(publish, Outcome.NACKED, now, 0.999999)
        retry = window.next_retry()
        assert retry is not None
        pauses.append(retry - now)
        now = retry
    assert pauses[:3] == [99_999, 199_999, 399_999]
    assert pauses[-1] == pytest.approx(30 * SECOND, rel=1e-3)
    (publish,) = window.take(now, 1)
    window.settle(publish, Outcome.ACKED, now, CALM)
    (publish,) = window.take(now, 1)
    window.settle(publish, Outcome.NACKED, now, 0.999999)
    assert window.next_retry() == now + 99_999


def test_after_a_lost_connection_rows_are_published_again_at_once_and_in_order() -> None:
    window = window_with(row(1, "a"), row(2, "a"), row(3, "b"))
    for publish in window.take(0, 10):
        window.settle(publish, Outcome.LOST, 0, CALM)
    assert sorted(positions(window.take(0, 10))) == [1, 3]


def test_a_row_is_settled_once() -> None:
    window = window_with(row(1, "a"))
    (publish,) = window.take(0, 1)
    window.settle(publish, Outcome.ACKED, 0, CALM)
    with pytest.raises(ValueError, match="position 1 is not in flight"):
        window.settle(publish, Outcome.ACKED, 0, CALM)


def test_rows_in_flight_of_all_streams_are_bounded() -> None:
    limits = Limits(shards=1, in_flight=3)
    window = window_with(*(row(n, f"s{n}") for n in range(1, 10)), limits=limits)
    first = window.take(0, 100)
    assert len(first) == window.in_flight == 3
    window.settle(first[0], Outcome.ACKED, 0, CALM)
    assert len(window.take(0, 100)) == 1


def test_a_stuck_stream_bounds_what_its_shard_holds_and_not_the_other_shards() -> None:
    limits = Limits(rows=20, shards=2, rows_per_read=1000)
    window = Window(limits)
    for shard in (0, 1):
        window.open(shard, claim_token=7, position=0)
    stuck: Publish | None = None
    published = {0: 0, 1: 0}
    last = {0: 0, 1: 0}
    for turn in range(200):
        wanted = window.wanted()
        rows = [
            row(last[want.shard] + n + 1, f"{want.shard}/{n % 3}", shard=want.shard)
            for want in wanted
            for n in range(want.rows)
        ]
        for read in rows:
            last[read.shard] = read.position
        window.add(wanted, rows, end_of(rows))
        for publish in window.take(turn, 100):
            if stuck is None and publish.row.shard == 0:
                stuck = publish  # its confirm never comes
                continue
            published[publish.row.shard] += 1
            window.settle(publish, Outcome.ACKED, turn, CALM)
        for cursor in window.cursors():
            window.moved(cursor)
        assert window.rows <= 20
        assert window.body_bytes <= 200
    assert published[0] < 10
    assert published[1] > 500
    assert all(want.shard == 1 for want in window.wanted())


def test_the_bounds_are_shared_by_the_shards_that_are_due() -> None:
    window = Window(Limits(rows=64, body_bytes=6400, shards=64))
    window.open(0, claim_token=7, position=0)
    assert [(want.rows, want.body_bytes) for want in window.wanted()] == [(1, 100)]
    window.share(4)
    wanted = window.wanted()
    assert [(want.rows, want.body_bytes) for want in wanted] == [(16, 1600)]
    window.add(wanted, [row(n, str(n)) for n in range(1, 17)], 99)
    window.share(64)  # others are gone: what was read stays, and nothing is read beyond it
    assert window.wanted() == []
    assert positions(window.take(0, 99)) == [*range(1, 17)]


def test_bodies_are_let_go_when_published_although_the_cursor_waits() -> None:
    window = window_with(row(1, "a", size=100), row(2, "b", size=1000))
    _, b = window.take(0, 10)
    assert window.body_bytes == 1100
    window.settle(b, Outcome.ACKED, 0, CALM)
    assert window.body_bytes == 100
    assert window.rows == 2
    with pytest.raises(ValueError, match="position 2 is published"):
        assert b.row is not None


def test_a_shard_with_too_many_bytes_is_not_read() -> None:
    limits = Limits(shards=1, body_bytes=1000)
    window = window_with(row(1, "a", size=600), row(2, "b", size=600), limits=limits)
    assert window.wanted() == []
    assert window.follow() is None
    a, _ = window.take(0, 10)
    window.settle(a, Outcome.ACKED, 0, CALM)
    (want,) = window.wanted()
    assert (want.after, want.body_bytes) == (2, 400)


def test_a_shard_reads_by_itself_until_it_got_less_than_it_asked_for() -> None:
    limits = Limits(rows=100, shards=1, rows_per_read=2)
    window = window_with(row(1, "a"), row(2, "b"), limits=limits)
    assert window.follow() is None
    (want,) = window.wanted()
    assert (want.after, want.rows) == (2, 2)
    window.add([want], [], end=9)
    assert window.wanted() == []
    asked = window.follow()
    assert asked is not None
    assert (asked.shards, asked.after) == ([0], 9)


def test_whoever_is_not_behind_follows_the_log_from_where_all_of_them_have_read() -> None:
    window = window_with(row(3, "a"), row(5, "b", shard=1), shards=(0, 1, 2))
    window.open(2, claim_token=8, position=0)
    asked = window.follow()
    assert asked is not None
    assert (asked.shards, asked.after) == ([0, 1], 5)
    window.add(window.wanted(), [], end=7)
    asked = window.follow()
    assert asked is not None
    assert (asked.shards, asked.after) == ([0, 1, 2], 5)
    # What shard 2 has read already comes again, and is not taken twice.
    more = window.followed(asked, [row(6, "c", shard=2), row(8, "d", shard=2)], 11)
    assert not more
    assert positions(window.take(0, 10)) == [3, 5, 8]
    again = window.follow()
    assert again is not None
    assert again.after == 11


@pytest.mark.parametrize("limits", [Limits(rows_per_read=2), Limits(body_bytes_per_read=20)])
def test_a_cut_answer_is_followed_from_its_last_row(limits: Limits) -> None:
    window = Window(limits)
    window.open(0, claim_token=7, position=0)
    window.add(window.wanted(), [], end=0)
    asked = window.follow()
    assert asked is not None
    assert window.followed(asked, [row(1, "a"), row(2, "b")], 100)
    again = window.follow()
    assert again is not None
    assert again.after == 2


def test_a_shard_without_room_for_what_came_is_behind_and_loses_nothing() -> None:
    limits = Limits(rows=8, shards=2, rows_per_read=100)
    window = window_with(limits=limits, shards=(0, 1))
    asked = window.follow()
    assert asked is not None
    came = [row(n, f"{n}") for n in range(1, 8)] + [row(8, "other", shard=1)]
    window.followed(asked, came, 8)
    assert window.rows == 5
    following = window.follow()
    assert following is not None
    assert (following.shards, following.after) == ([1], 8)
    for publish in window.take(0, 10):
        window.settle(publish, Outcome.ACKED, 0, CALM)
    (want,) = window.wanted()
    assert (want.shard, want.after) == (0, 4)


@pytest.mark.requirement("RELAY-03")
def test_a_closed_shard_publishes_nothing_more_and_moves_no_cursor() -> None:
    window = window_with(row(1, "a"), row(2, "a"), row(3, "b"))
    (a,) = window.take(0, 1)
    window.close(0)
    assert window.take(0, 10) == []
    window.settle(a, Outcome.ACKED, 0, CALM)
    assert window.cursors() == []
    assert (window.rows, window.in_flight, window.claims) == (0, 0, {})


@pytest.mark.requirement("RELAY-03")
def test_a_shard_claimed_again_waits_for_what_its_streams_still_have_in_flight() -> None:
    window = window_with(row(1, "a"), row(2, "a"))
    (old,) = window.take(0, 10)
    window.open(0, claim_token=9, position=0)
    window.add(window.wanted(), [row(1, "a"), row(2, "a"), row(3, "b")], 3)
    assert positions(window.take(0, 10)) == [3]
    window.settle(old, Outcome.ACKED, 0, CALM)
    assert positions(window.take(0, 10)) == [1]  # again: the new claim knows of no confirm


def test_a_cursor_answer_of_an_older_claim_changes_nothing() -> None:
    window = window_with(row(1, "a"))
    (a,) = window.take(0, 1)
    window.settle(a, Outcome.ACKED, 0, CALM)
    window.moved(Cursor(shard=0, claim_token=6, position=1))
    assert len(window.cursors()) == 1


def test_a_paused_stream_of_a_closed_shard_is_forgotten() -> None:
    window = window_with(row(1, "a"))
    (a,) = window.take(0, 1)
    window.settle(a, Outcome.NACKED, 0, CALM)
    window.close(0)
    assert window.take(60 * SECOND, 10) == []
    assert window.next_retry() is None


def test_a_stream_counts_as_failing_from_its_first_failure_until_its_row_is_published() -> None:
    window = window_with(row(1, "a", required=True), row(2, "b", required=True))
    a, b = window.take(0, 10)
    window.settle(a, Outcome.RETURNED, 0, CALM)
    window.settle(b, Outcome.NACKED, 0, CALM)
    assert window.failing_streams == {Outcome.RETURNED: 1, Outcome.NACKED: 1}
    a, b = window.take(60 * SECOND, 10)
    assert window.failing_streams == {Outcome.RETURNED: 1, Outcome.NACKED: 1}  # being tried
    window.settle(a, Outcome.TIMED_OUT, 60 * SECOND, CALM)
    window.settle(b, Outcome.ACKED, 60 * SECOND, CALM)
    assert window.failing_streams == {Outcome.TIMED_OUT: 1}
    window.close(0)
    assert window.failing_streams == {}
