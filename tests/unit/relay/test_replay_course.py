"""What of a replay is published next, and how far it has come (REPLAY-01)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.contract.states import ReplayPause
from tenure.relay.core.outcome import Outcome, Verdict
from tenure.relay.core.replay import SECOND, Allowance, Bounds, Course, Progress, Repeat
from tenure.relay.core.rows import Row


def row(position: int, stream: str = "a", size: int = 10) -> Row:
    return Row(position, 0, stream, f"event-{position}", "", "q", True, b"x" * size)


def course(*, to: int = 100, rate: int = 100_000, bounds: Bounds = Bounds()) -> Course:  # noqa: B008
    return Course(
        replay_id="r", claim_token=1, queue="q", rate=rate, start=Progress(0, 0, 0),
        to_position=to, now=0, bounds=bounds,
    )  # fmt: skip


def positions(repeats: list[Repeat]) -> list[int]:
    return [repeat.row.position for repeat in repeats]


@pytest.mark.requirement("REPLAY-01")
@pytest.mark.parametrize("rate", [1, 3, 7, 250, 99_991])
def test_never_more_rows_than_the_rate_allows_and_a_tenth_of_a_second_at_once(rate: int) -> None:
    now, published = 0, 0
    allowance = Allowance(rate, now)
    assert allowance.at(now) == 0  # whoever takes a replay over begins with nothing
    for _ in range(2_000):
        now += random.Random(now).randrange(1, 40_000)
        there = allowance.at(now)
        assert there <= max(1, rate // 10)
        allowance.spend(there)
        published += there
        assert published <= now * rate // SECOND
    assert published >= now * rate * 0.9 // SECOND - 1
    # After a long pause, too.
    assert allowance.at(now + 3600 * SECOND) == max(1, rate // 10)


def test_the_next_token_is_neither_asked_for_in_a_tight_loop_nor_late() -> None:
    allowance = Allowance(3, 0)
    assert allowance.at(0) == 0
    at = allowance.next()
    assert at == 333_334
    assert allowance.at(at - 1) == 0
    assert allowance.at(at) == 1


@pytest.mark.requirement("REPLAY-01")
def test_of_each_stream_one_row_is_under_way_and_they_keep_their_order() -> None:
    one = course()
    one.add([row(1, "a"), row(2, "a"), row(3, "b"), row(4, "a")], frozenset(), 10)
    first = one.take(SECOND, 10)
    assert positions(first) == [1, 3]
    assert one.take(SECOND, 10) == []
    assert one.settle(first[0], Outcome.TIMED_OUT, "", SECOND, 0.0) is Verdict.AGAIN_LATER
    assert one.settle(first[1], Outcome.ACKED, "", SECOND, 0.0) is Verdict.DONE
    assert one.progress == Progress(0, 0, 0)  # 3 is confirmed, 1 is not
    again = one.take(SECOND, 10)
    assert positions(again) == [1]
    one.settle(again[0], Outcome.ACKED, "", SECOND, 0.0)
    assert one.progress == Progress(1, 1, 0)
    (second,) = one.take(SECOND, 10)
    one.settle(second, Outcome.ACKED, "", SECOND, 0.0)
    assert one.progress == Progress(3, 3, 0)
    (last,) = one.take(SECOND, 10)
    assert last.row.position == 4
    one.settle(last, Outcome.ACKED, "", SECOND, 0.0)
    assert one.progress == Progress(10, 4, 0)  # and what does not match up to there
    assert not one.done


def test_a_failing_stream_waits_longer_each_time_and_no_other_stream_does() -> None:
    one = course(bounds=Bounds(backoff_base=SECOND, backoff_cap=4 * SECOND))
    one.add([row(1, "a"), row(2, "b"), row(3, "b")], frozenset(), 3)
    now = SECOND
    stuck, free = one.take(now, 10)
    one.settle(free, Outcome.ACKED, "", now, 0.5)
    one.settle(stuck, Outcome.NACKED, "full", now, 0.999)
    assert positions(one.take(now, 10)) == [3]
    for wait in (SECOND, 2 * SECOND, 4 * SECOND, 4 * SECOND):
        assert one.next_at() == pytest.approx(now + wait, rel=0.01)
        assert one.take(now + wait // 2, 10) == []
        now += wait
        (stuck,) = one.take(now, 10)
        one.settle(stuck, Outcome.NACKED, "full", now, 0.999)


@pytest.mark.requirement("REPLAY-01")
@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.RETURNED, ReplayPause.QUEUE_MISSING),
        (Outcome.UNSENDABLE, ReplayPause.NOT_SENDABLE),
        (Outcome.REFUSED, ReplayPause.NOT_SENDABLE),
    ],
)
def test_what_a_person_has_to_mend_stops_it_and_drops_nothing(
    outcome: Outcome, code: ReplayPause
) -> None:
    one = course()
    one.add([row(1, "a"), row(2, "b"), row(3, "c")], frozenset(), 3)
    first, second = one.take(SECOND, 2)
    one.settle(first, outcome, "said", SECOND, 0.0)
    assert one.stopped is not None
    assert one.stopped.code is code
    assert "said" in one.stopped.detail
    assert one.take(2 * SECOND, 10) == []
    assert one.wants == (0, 0)
    assert one.next_at() is None
    one.settle(second, Outcome.ACKED, "", SECOND, 0.0)
    assert one.progress == Progress(0, 0, 0)
    assert one.in_flight == 0


def test_what_one_of_several_was_refused_for_is_found_by_publishing_each_alone() -> None:
    one = course()
    one.add([row(1, "a"), row(2, "b"), row(3, "a")], frozenset(), 3)
    for repeat in one.take(SECOND, 10):
        assert one.settle(repeat, Outcome.SUSPECTED, "", SECOND, 0.0) is Verdict.AGAIN_ALONE
    assert one.suspects
    assert one.take(SECOND, 10) == []
    first = one.take_suspect()
    one.settle(first, Outcome.ACKED, "", SECOND, 0.0)
    assert positions([first, *one.take(SECOND, 10)]) == [1, 3]
    second = one.take_suspect()
    assert second.row.position == 2
    one.settle(second, Outcome.REFUSED, "too large", SECOND, 0.0)
    assert one.stopped is not None
    assert not one.suspects


def test_rows_of_held_streams_are_passed_and_counted() -> None:
    one = course(to=3)
    one.add([row(1, "a"), row(2, "b"), row(3, "a")], frozenset({1, 3}), 3)
    (only,) = one.take(SECOND, 10)
    assert only.row.position == 2
    one.settle(only, Outcome.ACKED, "", SECOND, 0.0)
    assert one.progress == Progress(3, 1, 2)
    assert one.done


def test_it_reads_no_more_than_fits_and_not_for_a_handful() -> None:
    one = course(bounds=Bounds(rows=4, body_bytes=100))
    assert one.wants == (4, 100)
    one.add([row(1, "a"), row(2, "b"), row(3, "c")], frozenset(), 3)
    assert one.wants == (0, 0)  # one more would fit
    first, second = one.take(SECOND, 2)
    one.settle(first, Outcome.ACKED, "", SECOND, 0.0)
    assert one.wants == (2, 80)
    one.settle(second, Outcome.ACKED, "", SECOND, 0.0)
    one.add([row(4, "d", size=60)], frozenset(), 4)
    assert one.wants == (0, 0)  # by bytes


def test_nothing_is_read_beyond_its_end() -> None:
    one = course(to=7)
    one.add([], frozenset(), 7)
    assert one.done
    assert one.wants == (0, 0)


def test_a_row_is_settled_once() -> None:
    one = course()
    one.add([row(1)], frozenset(), 1)
    (repeat,) = one.take(SECOND, 1)
    one.settle(repeat, Outcome.LOST, "", SECOND, 0.0)
    with pytest.raises(ValueError, match="not in flight"):
        one.settle(repeat, Outcome.ACKED, "", SECOND, 0.0)


OUTCOMES = (Outcome.ACKED, Outcome.NACKED, Outcome.TIMED_OUT, Outcome.LOST)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 3), st.booleans()), max_size=40),
    st.integers(0, 2**32).map(random.Random),
)
def test_whatever_happens_nothing_is_passed_unconfirmed_lost_or_reordered(
    asked: list[tuple[str, int, bool]], chance: random.Random
) -> None:
    """Rows with gaps between their positions; confirms, refusals and losses in any order."""
    rows: list[Row] = []
    held: set[int] = set()
    for stream, gap, is_held in asked:
        position = (rows[-1].position if rows else 0) + gap
        rows.append(row(position, stream))
        if is_held:
            held.add(position)
    end = (rows[-1].position if rows else 0) + 5
    one = course(to=end, bounds=Bounds(rows=8, body_bytes=1_000, backoff_base=10, backoff_cap=20))
    confirmed: list[int] = []
    under_way: list[Repeat] = []
    unread = list(rows)
    now = SECOND
    for _ in range(5_000):
        now += 1_000
        limit, room = one.wants
        if limit and chance.random() < 0.5:
            part = unread[: min(limit, chance.randrange(1, 9))]
            del unread[: len(part)]
            one.add(part, frozenset(held), part[-1].position if unread and part else end)
            assert room > 0
        under_way += one.take(now, chance.randrange(4))
        assert one.in_flight == len(under_way)
        streams = [repeat.row.stream for repeat in under_way]
        assert len(streams) == len(set(streams))
        if under_way:
            repeat = under_way.pop(chance.randrange(len(under_way)))
            outcome = chance.choice(OUTCOMES)
            one.settle(repeat, outcome, "", now, chance.random())
            if outcome is Outcome.ACKED:
                confirmed.append(repeat.row.position)
        passed = one.progress
        asked_for = [each.position for each in rows if each.position <= passed.position]
        assert set(asked_for) - held <= set(confirmed)
        assert passed.replayed == len(set(asked_for) - held)
        assert passed.held_back == len(set(asked_for) & held)
        if one.done:
            break
    assert one.done
    assert one.progress.position == end
    assert sorted(confirmed) == [each.position for each in rows if each.position not in held]
    for stream in "abcd":
        own = {each.position for each in rows if each.stream == stream}
        published = [position for position in confirmed if position in own]
        assert published == sorted(published)
