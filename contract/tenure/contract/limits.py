"""How many tasks run at once, and how many start in a time, as operators state it."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from tenure.contract.reports import Frozen
from tenure.contract.states import LimitScope

LimitName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=255,
        description="the tenant, type or concurrency key; for each_key the type, or *",
    ),
]


class StartRate(Frozen):
    """A token bucket: it holds ``burst`` starts, and is filled with ``starts`` in each period."""

    starts: int = Field(ge=1, le=1_000_000)
    period_seconds: int = Field(default=1, ge=1, le=7 * 86_400)
    burst: int | None = Field(
        default=None, ge=1, le=1_000_000, description="null: those of 0.1 s, at least one"
    )


class LimitedScope(Frozen):
    """What counts together. Types and keys are those of the caller's tenant."""

    scope: LimitScope
    name: LimitName


class LimitChange(LimitedScope):
    """``POST /v1/limits``: replaces what was stated for the scope. What runs goes on; where more
    runs than is allowed now, nothing begins until less does."""

    max_running: int | None = Field(
        default=None, ge=1, le=1_000_000, description="tasks that nodes have at once"
    )
    rate: StartRate | None = Field(default=None, description="how many are given to nodes")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.max_running is None and self.rate is None:
            raise ValueError("a limit needs max_running, a rate, or both")
        return self


class LimitRemoval(LimitedScope):
    """``POST /v1/limits/remove``."""


class LimitView(LimitedScope):
    """A limit and what counts under it now."""

    tenant: str
    max_running: int | None
    rate: StartRate | None
    running: int = Field(description="tasks that nodes have; of each key, the key with most")
    next_start: datetime | None = Field(
        description="when an empty bucket has a start again; null: none is empty"
    )
    set_by: str
    set_at: datetime


class LimitList(Frozen):
    """``GET /v1/limits``: those of the caller's tenant; of all for who looks after the platform."""

    limits: tuple[LimitView, ...]


class LimitRemoved(Frozen):
    """Whether the limit was stated."""

    removed: bool


class ReachedLimit(Frozen):
    """A limit that keeps a task from beginning now."""

    scope: LimitScope
    name: str
    key: str | None = Field(description="the task's, where each key counts by itself")
    max_running: int | None
    running: int
    next_start: datetime | None = Field(description="where the rate is used up: no earlier")
