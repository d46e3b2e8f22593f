"""Parked messages: what the relay could not publish and has set aside (RELAY-04)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from tenure.contract.reports import Frozen

Position = Annotated[int, Field(ge=1, lt=2**63)]
Why = Annotated[str, Field(min_length=1, max_length=1000, description="for those who ask later")]
Positions = Annotated[tuple[Position, ...], Field(min_length=1, max_length=1000)]


class ParkedState(StrEnum):
    """What a parked message waits for."""

    FAILED = "failed"  # until it is tried again
    BEHIND = "behind"  # until earlier messages of its stream are sent or skipped


class ParkedReason(StrEnum):
    """How the last publish of a parked message ended."""

    RETURNED = "returned"  # it has to reach a queue, and there is none
    NACKED = "nacked"  # the broker refused it for now
    TIMED_OUT = "timed_out"  # no confirm in time
    NOT_SENT = "not_sent"  # its exchange does not exist
    UNSENDABLE = "unsendable"  # too large for the relay, or cannot be encoded
    REFUSED = "refused"  # the broker closed the channel over it
    BEHIND = "behind"  # it was not tried


class ParkedView(Frozen):
    """One parked message. ``position`` is its place in the log and its name here."""

    position: int
    shard: int
    state: ParkedState
    reason: ParkedReason
    detail: str
    tenant: str
    stream_type: str
    stream_id: str
    event_id: str
    exchange: str
    routing_key: str
    required: bool = Field(description="it counts as sent only when it reached a queue")
    holds: bool = Field(description="later messages of its stream wait for it")
    tries: int = Field(description="since it was parked")
    due_at: datetime | None = Field(
        description="when it is tried again by itself; null: after what it is behind, or on request"
    )
    skip: bool = Field(description="it will be skipped when its turn comes")
    body_bytes: int
    recorded_at: datetime
    parked_at: datetime


class ParkedList(Frozen):
    """``GET /v1/outbox/parked``: oldest first. ``next`` goes into ``?after=``."""

    parked: tuple[ParkedView, ...]
    next: int | None


class ParkedRequestView(Frozen):
    """What somebody asked for about a parked message, and what came of it."""

    action: str = Field(description="`retry` or `skip`")
    reason: str
    requested_by: str
    requested_at: datetime
    carried_out_at: datetime | None
    result: str | None = Field(
        description="`published`, `withdrawn`, `skipped`, `failed`; null: not carried out yet"
    )


class ParkedDetail(Frozen):
    """``GET /v1/outbox/parked/{position}``. What is parked no more has requests only."""

    parked: ParkedView | None
    body: str | None = Field(description="as text, with U+FFFD in the place of what is none")
    requests: tuple[ParkedRequestView, ...] = Field(description="newest first, at most 100")


class ParkedRetry(Frozen):
    """``POST /v1/outbox/parked/retry``: these, or all that failed, or that failed for a reason; of
    the latter at most 10,000 at a time."""

    positions: Positions | None = None
    failed_as: ParkedReason | None = None
    reason: Why

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.positions is not None and self.failed_as is not None:
            raise ValueError("either positions or failed_as")
        return self


class ParkedSkip(Frozen):
    """``POST /v1/outbox/parked/skip``: never publish these; consumers see a hole."""

    positions: Positions
    reason: Why


class ParkedAsked(Frozen):
    """The positions that a request reached: for those of a retry that are behind another, the first
    of their stream. The relay carries it out."""

    positions: tuple[int, ...]
