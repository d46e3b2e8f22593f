"""When a row is parked: set aside with its bytes, so that it holds up no other stream (RELAY-04).

Durations are integer microseconds.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tenure.relay.core.outcome import Outcome

BEHIND: Final = "behind"
"""Reason of a row that waits for an earlier row of its stream. The others are outcomes."""

_REFUSALS: Final = 2
_FAILURES: Final = 3
_RETRY_BASE: Final = 5_000_000
_RETRY_CAP: Final = 120_000_000
_DETAIL_CHARACTERS: Final = 500


class ParkingPolicy(StrEnum):
    """What becomes of later rows of a stream whose row is parked."""

    HOLD = "hold"  # they are parked behind it: the stream keeps its order
    FLOW = "flow"  # they are published: the stream gets a hole


@dataclass(frozen=True, slots=True)
class ParkingTerms:
    """``after``: how long a row may fail before it is parked. ``rows_per_shard``: how many rows of
    a shard may be parked; beyond that the shard waits instead."""

    policy: ParkingPolicy = ParkingPolicy.HOLD
    after: int = 30_000_000
    rows_per_shard: int = 2_000


class Parking(NamedTuple):
    """How a row is parked. ``retry_after``: when it is tried again by itself; None: only when
    somebody asks. ``holds``: later rows of its stream wait for it."""

    position: int
    reason: str
    detail: str
    holds: bool
    retry_after: int | None = None


class Unparking(StrEnum):
    """What became of a parked row that was due."""

    PUBLISHED = "published"
    WITHDRAWN = "withdrawn"  # void: the attempt it tells a node about has ended
    SKIPPED = "skipped"  # somebody asked for that
    FAILED = "failed"  # it stays parked


class Unparked(NamedTuple):
    """What became of a parked row. Where it failed, ``reason`` is the outcome, ``detail`` says why,
    and ``retry_after`` is as in Parking."""

    shard: int
    claim_token: int
    position: int
    stream: Hashable
    what: Unparking
    reason: str = ""
    detail: str = ""
    retry_after: int | None = None


def should_park(outcome: Outcome, *, failures: int, failing: int, terms: ParkingTerms) -> bool:
    """Whether a row is set aside that failed with ``outcome`` now, ``failures`` times in a row and
    for the length of ``failing``.

    What no repetition mends goes at once: the relay cannot write it, or the broker closed the
    channel over it twice while it was alone. Whatever may pass has its time, and three tries.
    """
    if outcome is Outcome.UNSENDABLE:
        return True
    if outcome is Outcome.REFUSED:
        return failures >= _REFUSALS
    return failures >= _FAILURES and failing >= terms.after


def retry_after(outcome: Outcome, tries: int, jitter: float) -> int | None:
    """When a row is tried again by itself after ``tries`` tries since it was parked: from 5 s
    doubling to 2 min, of which ``jitter`` in [0, 1) takes up to a half. None: it would fail again.
    """
    if outcome in (Outcome.UNSENDABLE, Outcome.REFUSED):
        return None
    bound = min(_RETRY_CAP, _RETRY_BASE << min(tries, 32))
    return int(bound * (1 - jitter / 2))


def short(detail: str) -> str:
    """``detail`` as it is stored: not long, and text for PostgreSQL."""
    return detail.replace("\x00", "")[:_DETAIL_CHARACTERS]
