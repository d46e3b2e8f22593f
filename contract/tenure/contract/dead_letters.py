"""Dead letters: messages that a queue gave up, as the coordinator recorded them."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tenure.contract.reports import Frozen


class DeadLetterState(StrEnum):
    """What became of a dead letter."""

    WAITING = "waiting"  # for somebody who looks at it
    REDRIVEN = "redriven"  # sent to its queue again; when it comes back it waits again
    DISCARDED = "discarded"  # somebody decided that it is not needed


class DeadLetterView(Frozen):
    """One event that one queue gave up, however often it did."""

    dead_letter_id: int
    queue: str = Field(description="that gave it up")
    event_id: str = Field(description="for what is no event: a digest of the body")
    tenant: str | None = Field(description="null: the message is no event")
    task_id: str | None
    event_type: str | None
    reason: str = Field(description="`rejected`, `delivery_limit`, `expired`, `maxlen`, `unknown`")
    times: int = Field(description="how many copies came back")
    body_bytes: int
    first_at: datetime
    last_at: datetime
    state: DeadLetterState
    settled_at: datetime | None = Field(description="when it was redriven or discarded last")
    settled_by: str | None
    settled_reason: str | None


class DeadLetterList(Frozen):
    """``GET /v1/dead-letters``: newest first. ``next`` goes into ``?after=`` for the next page."""

    dead_letters: tuple[DeadLetterView, ...]
    next: int | None


class DeadLetterDetail(DeadLetterView):
    """``GET /v1/dead-letters/{id}``."""

    body: str | None = Field(
        description="as text, with U+FFFD in the place of what is none; null: too large to be kept"
    )


class Settling(Frozen):
    """``POST /v1/dead-letters/{id}/redrive`` and ``/discard``."""

    reason: Annotated[str, Field(min_length=1, max_length=1000)]
