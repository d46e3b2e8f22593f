"""Replays: what was published once is published once more, to one queue (REPLAY-01)."""

from datetime import datetime
from typing import Annotated, Final, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from tenure.contract.events import event_type
from tenure.contract.ids import TENANT_PATTERN
from tenure.contract.reports import Frozen, Uuid
from tenure.contract.states import EntityType, ReplayPause, ReplayState
from tenure.contract.subscriptions import STATES

DEFAULT_RATE: Final = 1_000
MAX_RATE: Final = 100_000
MAX_TYPES: Final = 50
QUEUE_BYTES: Final = 255
EVENT_TYPES: Final = frozenset(
    event_type(entity, state.value) for entity, states in STATES.items() for state in states
)
"""As events have it in their ``type``."""

Position = Annotated[int, Field(ge=1, lt=2**63)]
QueueName = Annotated[str, Field(min_length=1, max_length=QUEUE_BYTES)]
EventType = Annotated[str, Field(max_length=100)]
Reason = Annotated[str, Field(min_length=1, max_length=1000)]


class ReplayFilter(Frozen):
    """Which rows of the log; a row has to meet every condition that is set. Without ``destination``
    these are events; with it, what went to that queue, messages to a node included."""

    since: AwareDatetime | None = Field(default=None, description="recorded then or later")
    until: AwareDatetime | None = Field(default=None, description="recorded before")
    from_position: Position | None = Field(default=None, description="of the log, included")
    to_position: Position | None = Field(default=None, description="of the log, included")
    tenant: str | None = Field(default=None, pattern=f"^{TENANT_PATTERN.pattern}$")
    task_id: Uuid | None = Field(default=None, description="the task and its attempts")
    entity_type: EntityType | None = None
    entity_id: Uuid | None = Field(default=None, description="with entity_type: one stream")
    types: tuple[EventType, ...] = Field(
        default=(), max_length=MAX_TYPES, description="any of these, like tenure.task.delivered"
    )
    destination: QueueName | None = Field(
        default=None, description="the queue that rows went to at first"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise ValueError("`until` is not after `since`")
        bounds = (self.from_position, self.to_position)
        if bounds[0] is not None and bounds[1] is not None and bounds[1] < bounds[0]:
            raise ValueError("`to_position` is before `from_position`")
        if self.entity_id is not None and self.entity_type is None:
            raise ValueError("`entity_id` needs its `entity_type`")
        for name in self.types:
            if name not in EVENT_TYPES:
                raise ValueError(f"there are no events of type {name}")
        return self


class ReplayRequest(Frozen):
    """``POST /v1/replays``: publish rows once more, to one queue; with ``dry_run`` only say what
    that would be. ``replay_id`` is chosen by the caller, so that repeating a request is safe."""

    replay_id: Uuid | None = Field(default=None, description="null: the coordinator chooses")
    queue: QueueName = Field(description="through the default exchange; it has to exist")
    filter: ReplayFilter = ReplayFilter()
    rate: int = Field(default=DEFAULT_RATE, ge=1, le=MAX_RATE, description="rows a second")
    reason: Reason = Field(description="kept with who began it and when")
    force: bool = Field(
        default=False, description="also what consumers of the queue may have forgotten to know"
    )
    dry_run: bool = False


class ReplaySample(Frozen):
    """One row that matches."""

    position: int
    recorded_at: datetime
    tenant: str
    type: str
    entity_id: str
    event_id: str
    destination: str | None = Field(description="the queue it went to; null: to the exchange")


class ReplayPreview(Frozen):
    """What a replay covers."""

    from_position: int = Field(description="included, as far as the log has it")
    to_position: int = Field(description="included; what is recorded later is left alone")
    rows: int
    exact: bool = Field(description="false: estimated from pieces of the log")
    sample: tuple[ReplaySample, ...] = Field(description="the first rows, of those looked at")
    log_from_position: int | None = Field(description="where the log begins; null: it is empty")
    log_recorded_from: datetime | None
    oldest_recorded_at: datetime | None = Field(
        description="no row was recorded before; null: there is none"
    )
    remembered_since: datetime | None = Field(
        description="what was recorded before, consumers of the queue may have forgotten to know;"
        " null: no subscription says"
    )

    @property
    def behind_dedupe_retention(self) -> bool:
        """Whether consumers may take a row for new that they have seen."""
        if self.oldest_recorded_at is None or self.remembered_since is None:
            return False
        return self.rows > 0 and self.oldest_recorded_at < self.remembered_since


class ReplayChange(Frozen):
    """One entry of a replay's history."""

    at: datetime
    change: Literal["started", "paused", "resumed", "cancelled", "completed"]
    actor: str = Field(description="who; `relay` where it could not go on, or was done")
    reason: str


class ReplayView(Frozen):
    """One replay."""

    replay_id: str
    queue: str
    filter: ReplayFilter
    rate: int
    forced: bool
    state: ReplayState
    pause_code: ReplayPause | None
    pause_detail: str | None
    from_position: int
    to_position: int
    position: int = Field(description="everything up to here is published, or does not match")
    replayed: int = Field(description="rows up to there that were published")
    held_back: int = Field(description="rows up to there that were left out: their stream is held")
    expected: int = Field(description="rows, as counted at the start")
    expected_exactly: bool
    waits_for_live: bool = Field(description="what comes next has not been published so far")
    relay: str | None = Field(description="that works on it")
    reason: str
    created_by: str
    created_at: datetime
    moved_at: datetime
    ended_at: datetime | None


class ReplayDetail(Frozen):
    """``GET /v1/replays/{id}``: one replay and who did what to it, oldest first."""

    replay: ReplayView
    history: tuple[ReplayChange, ...]


class ReplayReply(Frozen):
    """What ``POST /v1/replays`` would do (``replay`` is null then), or began."""

    preview: ReplayPreview
    replay: ReplayView | None


class ReplayList(Frozen):
    """``GET /v1/replays``: newest first. ``next`` goes into ``?after=`` for the following page."""

    replays: tuple[ReplayView, ...]
    next: str | None


class ReplayOrder(Frozen):
    """``POST /v1/replays/{id}/pause`` and ``/cancel``."""

    reason: Reason


class ReplayResume(ReplayOrder):
    """``POST /v1/replays/{id}/resume``."""

    force: bool = Field(
        default=False, description="also what consumers of the queue may have forgotten to know"
    )
