"""Authority is judged by the executor's own clock, from before the request was sent."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from tenure.contract.ids import AttemptId, FencingToken, TaskId
from tenure.executor.clock import ShorterOfTwo, counts_suspend, system_clock
from tenure.executor.context import Context
from tenure.executor.core import authority as rules
from tenure.executor.errors import AuthorityOver
from tenure.executor.lease import Lease

EXPIRES = datetime(2026, 12, 1, tzinfo=UTC)


class HandClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def lease(clock: HandClock, *, sent_at: int = 0, remaining_seconds: float = 30.0) -> Lease:
    return Lease(
        task_id=TaskId("00000000-0000-0000-0000-000000000001"),
        attempt_id=AttemptId("00000000-0000-0000-0000-000000000002"),
        fencing_token=FencingToken(2**32 + 1),
        clock=clock,
        tolerance_seconds=1.0,
        renewal_interval_seconds=10.0,
        sent_at=sent_at,
        remaining_seconds=remaining_seconds,
        expires_at=EXPIRES,
    )


@pytest.mark.requirement("LEASE-09")
def test_authority_counts_from_before_the_request_was_sent_less_the_tolerance() -> None:
    granted = rules.granted(sent_at=1_000, remaining=30_000, tolerance=500)
    assert rules.may_act(granted, 30_499)
    assert not rules.may_act(granted, 30_500)
    assert rules.remaining(granted, 30_499) == 1
    assert rules.remaining(granted, 40_000) == 0


@pytest.mark.requirement("LEASE-09")
def test_a_slow_answer_lengthens_nothing() -> None:
    clock = HandClock()
    clock.now = 20_000_000  # the answer to a request sent at 0 arrives 20 s later
    held = lease(clock, sent_at=0, remaining_seconds=30.0)
    assert held.remaining_seconds() == 9.0


def test_an_answer_that_was_overtaken_shortens_nothing() -> None:
    authority = rules.granted(sent_at=10, remaining=100, tolerance=0)
    later = rules.renewed(authority, sent_at=50, remaining=100, tolerance=0)
    assert later.deadline == 150
    assert rules.renewed(later, sent_at=20, remaining=100, tolerance=0) == later


def test_what_has_ended_stays_ended_whatever_is_renewed_afterwards() -> None:
    clock = HandClock()
    held = lease(clock)
    held.end("lease_expired")
    held.end("something_else")
    held.renew(sent_at=0, remaining_seconds=600.0, expires_at=EXPIRES)
    assert held.ended == "lease_expired"
    assert not held.may_act()
    assert held.remaining_seconds() == 0.0


def test_a_renewal_moves_the_deadline_and_the_expiry_that_receivers_are_told() -> None:
    clock = HandClock()
    held = lease(clock)
    clock.now = 10_000_000
    later = EXPIRES + timedelta(seconds=10)
    held.renew(sent_at=10_000_000, remaining_seconds=30.0, expires_at=later)
    assert held.remaining_seconds() == 29.0
    assert held.expires_at == later
    held.renew(sent_at=0, remaining_seconds=30.0, expires_at=EXPIRES)
    assert held.expires_at == later


@pytest.mark.requirement("LEASE-09")
def test_a_context_says_when_nothing_new_may_begin() -> None:
    clock = HandClock()
    context = Context(lease=lease(clock), task_type="sha256", resources=None)
    context.check_authority()
    assert context.idempotency_key == context.task_id
    clock.now = 29_000_000
    assert context.remaining_authority_seconds() == 0.0
    with pytest.raises(AuthorityOver, match="its time is up"):
        context.check_authority()


def test_a_context_tells_that_it_was_asked_to_end() -> None:
    context = Context(lease=lease(HandClock()), task_type="sha256", resources=None)
    assert (context.cancelled, context.wait_cancelled(0)) == (False, False)
    context.ask_to_end()
    assert (context.cancelled, context.wait_cancelled(60)) == (True, True)


def test_without_a_clock_that_counts_suspend_the_one_that_ran_further_counts() -> None:
    monotonic, wall = HandClock(), HandClock()
    clock = ShorterOfTwo(monotonic, wall)
    monotonic.now = 5_000_000
    assert clock() == 5_000
    wall.now = 60_000_000_000  # the machine slept: only the wall clock went on
    assert clock() == 60_000_000
    wall.now = -1  # and is set back
    assert clock() == 60_000_000


def test_a_platform_without_such_a_clock_is_given_the_shorter_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)  # as on macOS
    assert not counts_suspend()
    assert isinstance(system_clock(), ShorterOfTwo)


def test_the_system_clock_never_runs_back() -> None:
    clock = system_clock()
    readings = [clock() for _ in range(1000)]
    assert readings == sorted(readings)
    assert counts_suspend() != isinstance(clock, ShorterOfTwo)
