"""Subscriptions: which events of a stream reach a consumer's queue.

What is asked for is said in words: ``all``, an entity type (every event of these streams), or
``ENTITY.STATE``. On the broker a word is a binding key, ``<tenant>.<entity>.<state>``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, field_validator, model_validator

from tenure.contract.ids import TENANT_PATTERN, TenantId
from tenure.contract.reports import Frozen
from tenure.contract.states import AttemptState, EntityType, NodeState, TaskState
from tenure.contract.topology import ANY_WORD, event_routing_key, matches

EVERYTHING: Final = "all"
MAX_EVENTS: Final = 64
DEFAULT_DEDUPE_RETENTION_SECONDS: Final = 7 * 86_400.0
STATES: Final[Mapping[EntityType, type[StrEnum]]] = {
    EntityType.TASK: TaskState,
    EntityType.ATTEMPT: AttemptState,
    EntityType.NODE: NodeState,
}
"""States that streams of each type go through."""

SUBSCRIPTION_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_ANY_TENANT: Final = TenantId("any")

SubscriptionName = Annotated[
    str,
    Field(
        pattern=f"^{SUBSCRIPTION_PATTERN.pattern}$",
        description="lower-case letters, digits, - and _; its queue is named after it",
    ),
]
TenantName = Annotated[str, Field(pattern=f"^{TENANT_PATTERN.pattern}$")]


class Audience(Frozen):
    """Whose events: those of the caller's tenant unless something else is said, which only
    operators of the tenant `default` may."""

    name: SubscriptionName
    tenant: TenantName | None = None
    all_tenants: bool = False

    @model_validator(mode="after")
    def _one_or_all(self) -> Self:
        if self.all_tenants and self.tenant is not None:
            raise ValueError("name one tenant or say all_tenants, not both")
        return self


class SubscriptionRequest(Audience):
    """``POST /v1/subscriptions``: from now on these events reach the subscription's queue. Said
    again with something else, it is changed."""

    events: tuple[str, ...] = Field(
        min_length=1,
        max_length=MAX_EVENTS,
        description="`all`, an entity type, or ENTITY.STATE like task.delivered",
    )
    dedupe_retention_seconds: float = Field(
        default=DEFAULT_DEDUPE_RETENTION_SECONDS,
        gt=0,
        le=10 * 365 * 86_400,
        description="how long its consumers remember the ids of events: nothing older is replayed",
    )

    @field_validator("events")
    @classmethod
    def _known(cls, events: tuple[str, ...]) -> tuple[str, ...]:
        for word in events:
            _parts(word)
        return events


class SubscriptionView(Frozen):
    """A subscription."""

    name: str
    tenant: str | None = Field(description="null: events of every tenant")
    queue: str
    events: tuple[str, ...]
    patterns: tuple[str, ...] = Field(description="keys by which its queue is bound")
    whole_streams: tuple[EntityType, ...] = Field(
        description="streams that come without holes: gaps in them are gaps. In others an event"
        " that was not asked for is one too, so consumers compare with the authority on a timer"
    )
    dedupe_retention_seconds: float
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str


class SubscriptionList(Frozen):
    """``GET /v1/subscriptions``: those of the caller's tenant; all for who looks after the
    platform."""

    subscriptions: tuple[SubscriptionView, ...]


class Subscribed(Frozen):
    """A subscription as it is now."""

    subscription: SubscriptionView
    bound: bool = Field(
        description="its queue is there and bound; false: it will be within seconds after the"
        " broker can be used, and what is recorded meanwhile waits for it"
    )


class Unsubscribed(Frozen):
    """Whether there was such a subscription. Its queue goes with what is in it."""

    removed: bool


def binding_keys(tenant: str | None, events: Iterable[str]) -> tuple[str, ...]:
    """Patterns of these words on the events exchange, without doubles.

    Raises ValueError for a word that names no events.
    """
    keys = (".".join((ANY_WORD if tenant is None else tenant, *_parts(word))) for word in events)
    return tuple(dict.fromkeys(keys))


def words_of(patterns: Iterable[str]) -> tuple[str, ...]:
    """The words that patterns were made of."""
    found = []
    for pattern in patterns:
        _, entity, state = pattern.split(".")
        if entity == ANY_WORD:
            found.append(EVERYTHING)
        else:
            found.append(entity if state == ANY_WORD else f"{entity}.{state}")
    return tuple(found)


def whole_streams(events: Sequence[str]) -> tuple[EntityType, ...]:
    """Types of streams of which these words leave out nothing."""
    patterns = binding_keys(None, events)
    return tuple(
        entity
        for entity, states in STATES.items()
        if all(
            any(
                matches(pattern, event_routing_key(_ANY_TENANT, entity, state.value))
                for pattern in patterns
            )
            for state in states
        )
    )


def _parts(word: str) -> tuple[str, str]:
    """Entity and state of a word, each a word of a routing key or any."""
    if word == EVERYTHING:
        return ANY_WORD, ANY_WORD
    entity, dot, state = word.partition(".")
    if entity not in set(EntityType):
        known = ", ".join(EntityType)
        raise ValueError(f"{word!r} names no events: say `{EVERYTHING}`, or begin with {known}")
    states = STATES[EntityType(entity)]
    if not dot:
        return entity, ANY_WORD
    if state not in {one.value for one in states}:
        known = ", ".join(one.value for one in states)
        raise ValueError(f"{word!r} names no events: states of {entity} are {known}")
    return entity, state
