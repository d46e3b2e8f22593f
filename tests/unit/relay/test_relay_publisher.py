"""Which publishes are given up, and when the session is. Only the broker's silence counts."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.relay.core.outcome import Outcome
from tenure.relay.core.rows import Limits, Row
from tenure.relay.core.streams import Publish
from tenure.relay.core.window import Window
from tenure.relay.publisher import _UNBLOCKED, Publisher, _coded, _Pending, _Session

TIMEOUT = 10.0


def publishes(count: int) -> list[Publish]:
    window = Window(Limits(shards=1))
    window.open(0, 1, 0)
    rows = [Row(n, 0, n, str(n), "", "q", True, b"{}") for n in range(1, count + 1)]
    window.add(window.wanted(), rows, count)
    return window.take(0, count)


class Silence:
    """A session whose broker says nothing; ages are in seconds."""

    def __init__(self, *ages: float, blocked: bool = False) -> None:
        unblocked = asyncio.Event()
        if not blocked:
            unblocked.set()
        connection: Any = SimpleNamespace(**{_UNBLOCKED: unblocked})
        self.cut = False
        transport: Any = SimpleNamespace(cut=self._cut)
        self.unblocked = unblocked
        channel: Any = None  # nothing is written
        self.session = _Session[Publish](connection, channel, transport, "name")
        now = time.monotonic()
        for tag, (publish, age) in enumerate(zip(publishes(len(ages)), ages, strict=True), start=1):
            self.session.pending[tag] = _Pending(publish, now - age)
        self.publisher = Publisher[Publish](
            "amqp://a:b@localhost/v",
            wake=asyncio.Event(),
            events_exchange="events",
            confirm_timeout_seconds=TIMEOUT,
        )
        self.publisher._session = self.session

    def _cut(self) -> None:
        self.cut = True

    def answered(self, age: float) -> None:
        """The broker confirmed something else then."""
        self.session.last_answer = time.monotonic() - age

    def expire(self) -> list[tuple[int, Outcome]]:
        self.publisher.expire()
        return [(one.publish.position, one.outcome) for one in self.publisher.collect()]


def test_before_its_deadline_nothing_is_given_up() -> None:
    silence = Silence(TIMEOUT / 2, 1.0)
    assert silence.expire() == []
    assert not silence.session.given_up.is_set()


def test_past_its_deadline_a_publish_alone_is_given_up_while_the_broker_answers_others() -> None:
    silence = Silence(60.0, 11.0, 2.0)
    silence.answered(1.0)
    assert silence.expire() == [(1, Outcome.TIMED_OUT), (2, Outcome.TIMED_OUT)]
    assert list(silence.session.pending) == [3]
    assert not silence.session.given_up.is_set()
    assert silence.publisher._wake.is_set()


def test_past_the_deadline_with_a_silent_broker_the_session_is_given_up_and_cut() -> None:
    silence = Silence(11.0, 2.0)
    silence.answered(12.0)
    assert silence.expire() == []
    assert silence.session.given_up.is_set()
    assert silence.cut


def test_while_the_broker_blocks_no_deadline_runs_and_afterwards_it_starts_anew() -> None:
    silence = Silence(3600.0, blocked=True)
    assert silence.expire() == []
    usable = [silence.publisher.usable]
    silence.unblocked.set()
    usable.append(silence.publisher.usable)
    assert usable == [False, True]
    assert silence.expire() == []
    silence.session.last_blocked -= TIMEOUT
    assert silence.expire() == []
    assert silence.session.given_up.is_set()


async def test_without_a_session_a_publish_is_settled_as_lost() -> None:
    publisher = Publisher[Publish](
        "amqp://a:b@localhost/v", wake=asyncio.Event(), events_exchange="e"
    )
    await publisher.publish(publishes(2))
    assert [one.outcome for one in publisher.collect()] == [Outcome.LOST] * 2
    assert publisher.collect() == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError("no route"), "broker_unreachable"),
        (TimeoutError(), "broker_unreachable"),
        (AttributeError("a private name is gone"), "broker_unreachable"),
    ],
)
def test_what_goes_wrong_while_connecting_has_a_code(error: Exception, code: str) -> None:
    assert _coded(error).code == code
