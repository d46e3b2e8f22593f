"""One word about many tasks."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import AwareDatetime, Field, model_validator

from tenure.contract.ids import TASK_TYPE_PATTERN
from tenure.contract.reports import Digest, Frozen
from tenure.contract.states import Phase, TaskState

MAX_TASKS_TOLD: Final = 500
"""Of one request, so that it is answered soon and others get their turn."""


class BulkVerb(StrEnum):
    """What may be said about many tasks at once."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    RETRY = "retry"
    ERASE = "erase"
    MOVE_PROFILE = "move_profile"


class TaskFilter(Frozen):
    """Which tasks: all conditions have to hold; null: any."""

    state: TaskState | None = None
    phase: Phase | None = None
    type: Annotated[str, Field(pattern=f"^{TASK_TYPE_PATTERN.pattern}$")] | None = None
    created_before: AwareDatetime | None = None


class BulkRequest(Frozen):
    """``POST /v1/tasks/bulk``: the next tasks that match and that the word makes sense for, oldest
    first. Each is told by itself, as by the request about one; a word may be said again."""

    verb: BulkVerb
    filter: TaskFilter = TaskFilter()
    reason: Annotated[str, Field(min_length=1, max_length=2000)] | None = Field(
        default=None, description="why, for people: with hold and erase"
    )
    digest: Digest | None = Field(
        default=None, description="with move_profile; null: the profile that new tasks get"
    )
    dry_run: bool = Field(default=False, description="count only; nothing is said")
    limit: int = Field(default=100, ge=1, le=MAX_TASKS_TOLD)
    after: str | None = Field(default=None, description="`next` of the request before")

    @model_validator(mode="after")
    def _has_its_words(self) -> Self:
        needs = self.verb in (BulkVerb.HOLD, BulkVerb.ERASE)
        if needs and self.reason is None and not self.dry_run:
            raise ValueError(f"{self.verb.value} needs a reason")
        if self.reason is not None and not needs:
            raise ValueError(f"{self.verb.value} takes no reason")
        if self.digest is not None and self.verb is not BulkVerb.MOVE_PROFILE:
            raise ValueError(f"{self.verb.value} takes no digest")
        return self


class BulkReply(Frozen):
    """What became of these tasks. Reading on ends where ``next`` is null; a request looks at 20,000
    tasks at most, so that there may be more though none was found."""

    matched: int
    done: int
    refused: dict[str, int] = Field(description="by code")
    next: str | None = Field(description="goes into `after`")
    clock: datetime = Field(
        description="the authority's; as `created_before` it leaves later tasks alone"
    )
