"""The envelope of every event (EVENT-01): CloudEvents 1.0, structured JSON, encoded once.

The attribute names are CloudEvents' (lower case, no separators); the properties below give the
names that the specification and the rest of the code use. Order within a stream is
``(epoch, sequence)``; ``time`` orders nothing (EVENT-02).
"""

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from tenure.contract.states import EntityType

SCHEMA_VERSION: Final = 1
EVENT_SOURCE: Final = "/tenure/coordinator"
CONTENT_TYPE: Final = "application/cloudevents+json"
EVENT_ID_HEADER: Final = "event-id"
"""AMQP header that repeats ``event_id``; the AMQP ``message_id`` differs for each publish."""
REPLAY_ID_HEADER: Final = "replay-id"
"""AMQP header of what a replay published once more; absent the first time."""


class EventData(BaseModel):
    """What changed. References only: inputs and outputs are read from the coordinator."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    previous_state: str | None = Field(description="null for the first event of a stream")
    next_state: str
    reason: str | None = None
    task_type: str | None = None
    node_id: str | None = None
    incarnation: str | None = None
    fencing_token: int | None = None
    ordinal: int | None = Field(default=None, description="attempt number within the task, from 1")
    receipt_id: str | None = None
    retry_after_seconds: float | None = Field(
        default=None, description="the next attempt begins no earlier than so long after ``time``"
    )
    cancel_requested: bool | None = None


class Event(BaseModel):
    """One state change as it leaves the system."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: datetime = Field(description="recorded_at: the authority's clock at the decision")
    specversion: Literal["1.0"] = "1.0"
    id: str = Field(description="event_id: random; consumers deduplicate by it")
    source: str = EVENT_SOURCE
    type: str = Field(description="tenure.<entity>.<state>")
    subject: str = Field(description="entity_id")
    datacontenttype: Literal["application/json"] = "application/json"
    tenant: str
    entitytype: EntityType
    taskid: str | None = None
    attemptid: str | None = None
    epoch: Annotated[int, Field(ge=1)]
    sequence: Annotated[int, Field(ge=1)]
    schemaversion: int = SCHEMA_VERSION
    actor: str = Field(description="who caused it: a token's name, or a loop of the coordinator")
    traceparent: str | None = None
    data: EventData

    @property
    def event_id(self) -> str:
        """Identity of the event, the same in every copy of it."""
        return self.id

    @property
    def entity_type(self) -> EntityType:
        """What the stream is about."""
        return self.entitytype

    @property
    def entity_id(self) -> str:
        """Which one."""
        return self.subject

    @property
    def task_id(self) -> str | None:
        """The task concerned, where there is one."""
        return self.taskid

    @property
    def attempt_id(self) -> str | None:
        """The attempt concerned, where there is one."""
        return self.attemptid

    @property
    def previous_state(self) -> str | None:
        """State before; None for the first event of a stream."""
        return self.data.previous_state

    @property
    def next_state(self) -> str:
        """State after."""
        return self.data.next_state

    @property
    def recorded_at(self) -> datetime:
        """The authority's clock at the decision."""
        return self.time


def event_type(entity_type: EntityType, next_state: str) -> str:
    """CloudEvents ``type`` of a state change."""
    return f"tenure.{entity_type.value}.{next_state}"
