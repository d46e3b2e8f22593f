"""What to do next about a payment. Pure (LEASE-10).

Our identifier is written down before anything is sent. Nothing is sent twice without asking first
what became of it; where the answer is "never seen", whether it may be sent again depends on the
gateway.
"""

from enum import StrEnum


class Known(StrEnum):
    """What the record says of a payment."""

    NEW = "new"  # nothing was written down before
    INTENDED = "intended"  # it may have been sent
    PAID = "paid"
    DECLINED = "declined"


class Asked(StrEnum):
    """What the gateway says of our identifier."""

    NOT_YET = "not_yet"
    FOUND = "found"
    NOTHING = "nothing"


class Step(StrEnum):
    """What to do."""

    ACT = "act"
    QUERY = "query"
    RETURN = "return"  # what was paid
    REFUSE = "refuse"  # it was declined
    HOLD = "hold"  # nobody can tell: a person decides


def next_step(
    known: Known, asked: Asked, *, first: bool, record_is_shared: bool, gateway_deduplicates: bool
) -> Step:
    """``first``: certainly nothing was sent before, since this is the first attempt and it has just
    written the payment down. ``record_is_shared``: what is not in the record was never intended by
    anybody. ``gateway_deduplicates``: the gateway takes an identifier once, however often it is
    sent."""
    if known is Known.PAID or asked is Asked.FOUND:
        return Step.RETURN
    if known is Known.DECLINED:
        return Step.REFUSE
    if known is Known.NEW and first:
        return Step.ACT
    if asked is Asked.NOT_YET:
        return Step.QUERY
    if gateway_deduplicates or (known is Known.NEW and record_is_shared):
        return Step.ACT
    return Step.HOLD
