"""What to do next about a payment, case by case."""

from itertools import product

import pytest

from tenure.executor.core.paying import Asked, Known, Step, next_step

BOTH = (True, False)
CASES = list(product(Known, Asked, BOTH, BOTH, BOTH))


def step(known: Known, asked: Asked, first: bool, shared: bool, deduplicates: bool) -> Step:
    return next_step(
        known, asked, first=first, record_is_shared=shared, gateway_deduplicates=deduplicates
    )


@pytest.mark.requirement("LEASE-10")
def test_nothing_is_sent_again_before_it_was_asked_for() -> None:
    for known, asked, first, shared, deduplicates in CASES:
        if step(known, asked, first, shared, deduplicates) is not Step.ACT:
            continue
        certainly_first = known is Known.NEW and first
        assert certainly_first or asked is Asked.NOTHING


@pytest.mark.requirement("LEASE-10")
def test_what_may_be_on_its_way_is_sent_again_only_to_a_gateway_that_takes_it_once() -> None:
    for first, shared in product(BOTH, BOTH):
        assert step(Known.INTENDED, Asked.NOTHING, first, shared, True) is Step.ACT
        assert step(Known.INTENDED, Asked.NOTHING, first, shared, False) is Step.HOLD
    # A record of one machine does not know what was intended elsewhere.
    assert step(Known.NEW, Asked.NOTHING, False, False, False) is Step.HOLD
    assert step(Known.NEW, Asked.NOTHING, False, True, False) is Step.ACT


def test_what_has_ended_is_never_sent() -> None:
    for asked, first, shared, deduplicates in product(Asked, BOTH, BOTH, BOTH):
        assert step(Known.PAID, asked, first, shared, deduplicates) is Step.RETURN
        declined = Step.RETURN if asked is Asked.FOUND else Step.REFUSE
        assert step(Known.DECLINED, asked, first, shared, deduplicates) is declined
