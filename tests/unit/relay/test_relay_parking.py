"""When a row is parked, what is taken from the window by it, and how a suspect is found."""

import pytest

from tenure.relay.core.outcome import Outcome, Verdict
from tenure.relay.core.parking import (
    BEHIND,
    ParkingPolicy,
    ParkingTerms,
    Unparked,
    Unparking,
    retry_after,
    short,
    should_park,
)
from tenure.relay.core.rows import Due, Limits, Row
from tenure.relay.core.streams import Publish
from tenure.relay.core.window import Window

SECOND = 1_000_000
TERMS = ParkingTerms(after=30 * SECOND, rows_per_shard=3)
LIMITS = Limits(shards=1, parking=TERMS)


def row(position: int, stream: str) -> Row:
    return Row(position, 0, stream, f"event-{position}", "x", "k", True, b"." * 10)


def window_with(*rows: Row, limits: Limits = LIMITS) -> Window:
    window = Window(limits)
    window.open(0, claim_token=7, position=0)
    window.add(window.wanted(), rows, max(each.position for each in rows))
    return window


def taken(window: Window, now: int = 0) -> dict[int, Publish]:
    return {publish.position: publish for publish in window.take(now, 10)}


def park(window: Window, publish: Publish) -> None:
    verdict = window.settle(publish, Outcome.UNSENDABLE, 0, 0.5, "too large")
    assert verdict is Verdict.PARKED


def move(window: Window) -> list[tuple[int, str]]:
    """Move the cursor; what is parked by it."""
    (cursor,) = window.cursors()
    window.moved(cursor)
    return [(parking.position, parking.reason) for parking in cursor.parkings]


@pytest.mark.requirement("RELAY-04")
@pytest.mark.parametrize(
    ("outcome", "failures", "seconds", "parked"),
    [
        (Outcome.UNSENDABLE, 1, 0, True),
        (Outcome.REFUSED, 1, 0, False),
        (Outcome.REFUSED, 2, 0, True),
        (Outcome.RETURNED, 100, 29, False),
        (Outcome.RETURNED, 2, 31, False),
        (Outcome.RETURNED, 3, 30, True),
        (Outcome.NACKED, 3, 30, True),
        (Outcome.TIMED_OUT, 3, 30, True),
        (Outcome.NOT_SENT, 3, 30, True),
    ],
)
def test_what_may_pass_has_its_time_and_what_cannot_goes_at_once(
    outcome: Outcome, failures: int, seconds: int, parked: bool
) -> None:
    failing = seconds * SECOND
    assert should_park(outcome, failures=failures, failing=failing, terms=TERMS) is parked


def test_retries_of_parked_rows_grow_are_spread_and_have_a_bound() -> None:
    longest = [retry_after(Outcome.NACKED, tries, 0.0) for tries in range(12)]
    assert longest[:3] == [5 * SECOND, 10 * SECOND, 20 * SECOND]
    assert longest[-1] == 120 * SECOND
    assert retry_after(Outcome.NACKED, 0, 0.999999) == pytest.approx(2.5 * SECOND, rel=1e-3)
    assert retry_after(Outcome.UNSENDABLE, 0, 0.0) is None
    assert retry_after(Outcome.REFUSED, 3, 0.0) is None


def test_a_detail_is_stored_short_and_as_text() -> None:
    assert short("a\x00b") == "ab"
    assert len(short("x" * 10_000)) == 500


@pytest.mark.requirement("RELAY-04")
def test_the_rest_of_the_stream_is_parked_behind_and_others_go_on() -> None:
    window = window_with(row(1, "a"), row(2, "b"), row(3, "a"))
    publishes = taken(window)
    park(window, publishes[1])
    window.settle(publishes[2], Outcome.ACKED, 0, 0.5)
    assert move(window) == [(1, "unsendable"), (3, BEHIND)]
    assert window.parked == 2
    assert window.rows == 0
    assert taken(window) == {}


def test_under_the_policy_flow_the_rest_of_the_stream_goes_on() -> None:
    flow = Limits(shards=1, parking=ParkingTerms(policy=ParkingPolicy.FLOW))
    window = window_with(row(1, "a"), row(2, "a"), limits=flow)
    park(window, taken(window)[1])
    publishes = taken(window)
    assert [*publishes] == [2]
    window.settle(publishes[2], Outcome.ACKED, 0, 0.5)
    assert move(window) == [(1, "unsendable")]


@pytest.mark.requirement("RELAY-03")
def test_a_stream_is_not_released_while_the_next_move_parks_more_of_it() -> None:
    window = window_with(row(1, "a"))
    park(window, taken(window)[1])
    move(window)
    window.take_up([Due(row(1, "a"), 0)])
    (publish,) = window.take(0, 10)
    asked = window.follow()
    assert asked is not None
    window.followed(asked, [row(2, "a")], 2)  # passed, and not parked yet
    window.settle(publish, Outcome.ACKED, 0, 0.5)
    window.noted(window.unparked(), {"a"})
    window.followed(asked, [row(3, "a")], 3)
    assert taken(window) == {}  # the third must not overtake the second
    assert move(window) == [(2, BEHIND), (3, BEHIND)]


def test_a_released_stream_goes_on_from_the_log() -> None:
    window = window_with(row(1, "a"), row(2, "b"), row(3, "a"))
    publishes = taken(window)
    park(window, publishes[1])
    assert move(window) == [(1, "unsendable")]  # the second holds the third up
    window.take_up([Due(row(1, "a"), 0)])
    (publish,) = window.take(0, 10)
    window.settle(publish, Outcome.ACKED, 0, 0.5)
    assert taken(window) == {}  # not before it is noted
    window.noted(window.unparked(), {"a"})
    assert [*taken(window)] == [3]


def test_a_shard_is_not_given_back_before_it_is_noted_what_became_of_its_parked_rows() -> None:
    window = window_with(row(1, "a"))
    park(window, taken(window)[1])
    move(window)
    window.take_up([Due(row(1, "a"), 0)])
    (publish,) = window.take(0, 10)
    window.leave(0, by=SECOND)
    window.settle(publish, Outcome.ACKED, 0, 0.5)
    assert window.left(2 * SECOND) == {}
    window.noted(window.unparked(), {"a"})
    assert window.left(2 * SECOND) == {0: 7}


def test_a_full_shard_parks_nothing_more_until_there_is_room() -> None:
    window = window_with(*(row(position, "a") for position in range(1, 6)))
    park(window, taken(window)[1])
    assert move(window) == [(1, "unsendable"), (2, BEHIND), (3, BEHIND)]
    assert (window.full_shards, window.rows, window.cursors()) == (1, 2, [])


def test_with_room_again_a_full_shard_goes_on() -> None:
    window = window_with(*(row(position, "a") for position in range(1, 6)))
    park(window, taken(window)[1])
    move(window)
    window.take_up([Due(row(1, "a"), 0, skip=True)])
    window.noted(window.unparked(), ())
    assert move(window) == [(4, BEHIND)]
    assert window.full_shards == 1


def test_a_parked_row_that_fails_again_says_when_it_is_due_and_nothing_passes_it() -> None:
    window = window_with(row(1, "a"), row(2, "a"))
    park(window, taken(window)[1])
    move(window)
    window.take_up([Due(row(1, "a"), 2), Due(row(2, "a"), 0)])
    (publish,) = window.take(0, 10)
    assert window.settle(publish, Outcome.NACKED, 0, 0.0, "full") is Verdict.AGAIN_LATER
    assert window.unparked() == [
        Unparked(0, 7, 1, "a", Unparking.FAILED, "nacked", "full", 40 * SECOND)
    ]
    assert window.due == 0
    window.noted(window.unparked(), ())
    assert taken(window) == {}


@pytest.mark.requirement("RELAY-04")
def test_of_many_suspects_the_one_is_found_alone_and_the_others_are_cleared() -> None:
    window = window_with(*(row(position, f"s{position}") for position in range(1, 6)))
    for publish in taken(window).values():
        window.settle(publish, Outcome.SUSPECTED, 0, 0.5)
    first = taken(window)
    assert len(first) == 1
    assert taken(window) == {}  # nothing goes beside it
    window.settle(first[1], Outcome.ACKED, 0, 0.5)
    second = taken(window)
    assert len(second) == 1
    verdict = window.settle(second[2], Outcome.REFUSED, 0, 0.5, "too large for it")
    assert verdict is Verdict.AGAIN_LATER  # once may be chance
    others = taken(window)
    assert [*others] == [3, 4, 5]  # together, as usual
    retry = window.next_retry()
    assert retry is not None
    assert taken(window, retry) == {}  # it goes alone
    for publish in others.values():
        window.settle(publish, Outcome.ACKED, 0, 0.5)
    again = taken(window, retry)
    assert [*again] == [2]
    assert window.settle(again[2], Outcome.REFUSED, retry, 0.5, "too large") is Verdict.PARKED
    assert move(window) == [(2, "refused")]
