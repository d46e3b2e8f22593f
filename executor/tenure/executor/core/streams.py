"""What an event means to a consumer that knows how far it has come in the stream (EVENT-03).

Order within a stream is ``(epoch, sequence)``. A hole, a new epoch and an old one are not guessed
about: the authority's own history of the stream decides, and this module says what follows from it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Position(NamedTuple):
    """A place in a stream; they compare as the specification says (EVENT-02)."""

    epoch: int
    sequence: int


class Told(NamedTuple):
    """One event of the authority's history of a stream."""

    event_id: str
    position: Position


class Step(StrEnum):
    """What to do with an event."""

    HANDLE = "handle"  # hand it to the handler now
    SKIP = "skip"  # it was seen: only let the message go
    ASK = "ask"  # ask the authority for the stream first


class Why(StrEnum):
    """Why that is done: a word for the log and the metrics."""

    NEXT = "next"
    LATE = "late"  # of a stream that comes in parts: older than what was handled last
    DUPLICATE = "duplicate"
    BEGUN = "begun"  # the stream is met in its middle
    GAP = "gap"
    NEWER_EPOCH = "newer_epoch"
    OLDER_EPOCH = "older_epoch"
    BEHIND = "behind"  # older than what was handled last, and not seen


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do, and why."""

    step: Step
    why: Why


def judge(known: Position | None, event: Position, *, seen: bool, whole: bool) -> Judgement:
    """What an event means.

    ``known`` is how far the stream was handled, None for one that was never met; ``seen`` whether
    this very event was; ``whole`` whether the subscription leaves out nothing of such streams, so
    that a hole is one.
    """
    if seen:
        return Judgement(Step.SKIP, Why.DUPLICATE)
    if known is None:
        if whole and event.sequence > 1:
            return Judgement(Step.ASK, Why.BEGUN)
        return Judgement(Step.HANDLE, Why.NEXT)
    if event.epoch > known.epoch:
        return Judgement(Step.ASK, Why.NEWER_EPOCH)
    if event.epoch < known.epoch:
        return Judgement(Step.ASK, Why.OLDER_EPOCH)
    if event.sequence > known.sequence:
        if whole and event.sequence > known.sequence + 1:
            return Judgement(Step.ASK, Why.GAP)
        return Judgement(Step.HANDLE, Why.NEXT)
    if whole:
        return Judgement(Step.ASK, Why.BEHIND)
    return Judgement(Step.HANDLE, Why.LATE)


@dataclass(frozen=True, slots=True)
class Account:
    """What comparing with the authority came to."""

    missed: tuple[str, ...]
    """Events of the authority that were not seen, in its order: to be handled now."""
    discarded: tuple[str, ...]
    """Events that were seen and that the authority does not know: they never happened."""


def settle_account(
    mine: Mapping[str, Position],
    history: Sequence[Told],
    *,
    wanted: Collection[str],
    begins_at: int,
) -> Account:
    """Compare what was seen of a stream with the authority's history of it.

    ``mine``: events that were seen, with their places. ``history``: in the authority's order, from
    the sequence ``begins_at`` on, to its end. ``wanted``: those of it that are subscribed to. What
    lies before ``begins_at`` is not judged.
    """
    known = {told.event_id for told in history}
    return Account(
        missed=tuple(
            told.event_id
            for told in history
            if told.event_id in wanted and told.event_id not in mine
        ),
        discarded=tuple(
            event_id
            for event_id, position in sorted(mine.items(), key=lambda item: item[1])
            if event_id not in known and position.sequence >= begins_at
        ),
    )


def authority_is_behind(event: Position, *, epoch: int, last_sequence: int) -> bool:
    """Whether an event proves that the authority has lost history: it is of the very epoch that the
    authority is in (or of a later one), and beyond the end of its stream there."""
    return event.epoch > epoch or (event.epoch == epoch and event.sequence > last_sequence)
