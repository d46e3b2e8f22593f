"""What a publish came to, and what that means for its row (RELAY-01, RELAY-02)."""

from enum import StrEnum


class Outcome(StrEnum):
    """How one publish ended, as the broker or the connection says."""

    ACKED = "acked"  # confirmed, and not returned before
    RETURNED = "returned"  # confirmed, but it reached no queue although one was required
    NACKED = "nacked"  # refused by the broker; it may succeed later
    TIMED_OUT = "timed_out"  # no confirm before the deadline: it may have arrived, or still arrive
    LOST = "lost"  # channel or connection gone first: it may have arrived
    WITHDRAWN = "withdrawn"  # returned, and void: the attempt it tells a node about has ended
    NOT_SENT = "not_sent"  # the relay did not write it: there is no such exchange
    UNSENDABLE = "unsendable"  # nor this: it is larger than permitted, or cannot be encoded
    REFUSED = "refused"  # the broker closed the channel while nothing else was in flight
    SUSPECTED = "suspected"  # the same, but with others in flight: one of them is refused


class Verdict(StrEnum):
    """What to do with the row."""

    DONE = "done"  # published, or not needed any more: the cursor may pass it
    AGAIN = "again"  # publish it again as soon as there is a channel
    AGAIN_ALONE = "again_alone"  # the same, with nothing else in flight
    AGAIN_LATER = "again_later"  # publish it again after a pause of its stream
    PARKED = "parked"  # set aside, so that it holds up no other stream


_VERDICTS = {
    Outcome.ACKED: Verdict.DONE,
    Outcome.WITHDRAWN: Verdict.DONE,
    Outcome.RETURNED: Verdict.AGAIN_LATER,
    Outcome.NACKED: Verdict.AGAIN_LATER,
    Outcome.TIMED_OUT: Verdict.AGAIN_LATER,
    Outcome.LOST: Verdict.AGAIN,
    Outcome.NOT_SENT: Verdict.AGAIN_LATER,
    Outcome.UNSENDABLE: Verdict.AGAIN_LATER,
    Outcome.REFUSED: Verdict.AGAIN_LATER,
    Outcome.SUSPECTED: Verdict.AGAIN_ALONE,
}
DELAYING = tuple(
    outcome for outcome, verdict in _VERDICTS.items() if verdict is Verdict.AGAIN_LATER
)
"""Outcomes after which a stream waits; while one of them lasts, an operator has something to do."""


def judge(outcome: Outcome, *, required: bool) -> Verdict:
    """What ``outcome`` means for a row; ``required``: it must reach a queue.

    An event that nobody subscribed to and that comes back was published, to nobody.
    """
    if outcome is Outcome.RETURNED and not required:
        return Verdict.DONE
    return _VERDICTS[outcome]


def may_arrive_twice(outcome: Outcome) -> bool:
    """Whether the publish may have arrived although its row will be published again."""
    return outcome in (Outcome.TIMED_OUT, Outcome.LOST, Outcome.SUSPECTED)
