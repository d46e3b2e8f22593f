"""How long what has ended is kept. HTTP under ``/v1/retention`` (OPS-08)."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from tenure.contract.operations import Why
from tenure.contract.reports import Frozen
from tenure.contract.states import RetentionKind

KeepSeconds = Annotated[
    int | None,
    Field(ge=3600, le=3_155_760_000, description="null: for ever; at least an hour"),
]


class KindRetention(Frozen):
    """The policy of one kind of rows, and how far removal has come."""

    kind: RetentionKind
    keep_seconds: int | None = Field(description="after the end; null: for ever")
    removed_to: datetime | None = Field(
        description="what ended before may be gone; null: nothing was ever removed"
    )
    removed_rows: int = Field(description="so far; of the log estimated")
    removed_at: datetime | None
    overdue_seconds: float | None = Field(
        description="how long ago the oldest row that is still there should have gone, whatever"
        " keeps it; null: nothing is due"
    )


class RetentionView(Frozen):
    """``GET /v1/retention``: the policy in force."""

    version: int
    set_by: str
    reason: str
    set_at: datetime
    kinds: tuple[KindRetention, ...]


class RetentionChange(Frozen):
    """``POST /v1/retention``: the next version. Kinds that are absent stay as they are."""

    after_version: int = Field(ge=1, description="the version in force that this is a change of")
    keep_seconds: dict[RetentionKind, KeepSeconds] = Field(min_length=1)
    reason: Why = Field(description="why, for those who read the history")


class KindPlan(Frozen):
    """What would be removed of one kind now."""

    kind: RetentionKind
    before: datetime | None = Field(
        description="what ended before that goes; null: nothing goes, by the policy or because the"
        " authority is in doubt"
    )
    rows: int = Field(description="counted up to 1,000,000; of the log estimated")
    bytes: int = Field(description="about so many; of the log the files' sizes")
    kept_back: str | None = Field(description="why some that is old enough has to stay")


class RetentionPlan(Frozen):
    """``GET /v1/retention/plan``: what a run would remove. Reading it changes nothing."""

    kinds: tuple[KindPlan, ...]


class RetentionRunRequest(Frozen):
    """``POST /v1/retention/run``: remove now what the loop would remove in time."""

    kinds: tuple[RetentionKind, ...] | None = Field(
        default=None, min_length=1, description="null: of every kind"
    )


class RetentionRun(Frozen):
    """What one request removed. It ends after about a second: ask again while there is ``more``."""

    removed_rows: dict[RetentionKind, int] = Field(description="of the log its partitions")
    more: bool
