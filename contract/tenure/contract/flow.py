"""What operators pause and resume."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import AwareDatetime, Field, model_validator

from tenure.contract.reports import Frozen
from tenure.contract.states import PauseScope

ScopeName = Annotated[
    str,
    Field(
        max_length=255,
        description="of the tenant, type or node; NAME=VALUE of the label; empty for all",
    ),
]


class Scope(Frozen):
    """A part of the work. Types, nodes and labels are those of the caller's tenant."""

    scope: PauseScope
    name: ScopeName = ""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.scope is PauseScope.ALL) == bool(self.name):
            raise ValueError("every scope but `all` has a name")
        if self.scope is PauseScope.LABEL and not all(self.name.partition("=")):
            raise ValueError("a label is named like gpu=a100")
        return self


class PauseRequest(Scope):
    """``POST /v1/pauses``: nothing of the scope begins any more; what runs goes on. Pausing again
    replaces what was said before."""

    reason: str = Field(min_length=1, max_length=1000, description="for those who find it paused")
    until: AwareDatetime | None = Field(
        default=None, description="it is over then by itself; null: until it is resumed"
    )


class ResumeRequest(Scope):
    """``POST /v1/pauses/resume``."""


class PauseView(Frozen):
    """A pause that is in force."""

    scope: PauseScope
    tenant: str | None = Field(description="null: of all")
    name: str
    reason: str
    until: datetime | None
    paused_by: str
    paused_at: datetime


class PauseList(Frozen):
    """``GET /v1/pauses``: those in force that concern the caller's tenant; of all tenants for who
    looks after the platform."""

    pauses: tuple[PauseView, ...]


class Resumed(Frozen):
    """Whether the scope was paused."""

    resumed: bool
