"""Parked messages, as operators see and settle them (RELAY-04)."""

from typing import Final

import structlog
from pydantic import Field

from tenure.contract.codec import check_value
from tenure.contract.codes import Code
from tenure.contract.ids import DEFAULT_TENANT
from tenure.contract.parking import (
    ParkedAsked,
    ParkedDetail,
    ParkedList,
    ParkedReason,
    ParkedRetry,
    ParkedSkip,
    ParkedState,
)
from tenure.coordinator.api.endpoint import Answer, Call, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.reading import Query, read_model
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.identities import Identity, Role
from tenure.coordinator.store.parking import ParkedRows

log = structlog.get_logger()

_OPERATORS = frozenset({Role.OPERATOR})
_LOOKERS = frozenset({Role.OPERATOR, Role.READ_ONLY})
_MAX_POSITION: Final = 2**63 - 1


class ParkedQuery(Query):
    """State, reason, and the page; oldest first."""

    state: ParkedState | None = None
    reason: ParkedReason | None = None
    limit: int = Field(default=50, ge=1, le=500)
    after: int = Field(default=0, ge=0, le=_MAX_POSITION)


class ParkingControl:
    """Handlers of ``/v1/outbox/parked``. Operators of the default tenant see those of all."""

    def __init__(self, rows: ParkedRows) -> None:
        self._rows = rows

    async def parked(self, call: Call) -> Answer:
        """What is parked."""
        query = call.query(ParkedQuery)
        found = await self._rows.views(
            _own(call.identity),
            state=query.state,
            reason=query.reason,
            after=query.after,
            limit=query.limit,
        )
        more = found[-1].position if len(found) == query.limit else None
        return Answer(ParkedList(parked=found, next=more))

    async def parked_message(self, call: Call) -> Answer:
        """One, with what it says and what was asked about it."""
        found = await self._rows.detail(_own(call.identity), _position(call))
        if found is None:
            raise _not_found(call)
        return Answer(found)

    async def retry(self, call: Call) -> Answer:
        """Have messages tried again now."""
        request = read_model(await call.body(), ParkedRetry)
        check_value(request.reason, "The reason")
        who = call.identity
        reached = await self._rows.retry(
            _own(who), request.positions, request.failed_as,
            reason=request.reason, actor=who.name,
        )  # fmt: skip
        log.info("parked messages are tried again", by=who.name, messages=len(reached))
        return Answer(ParkedAsked(positions=reached))

    async def skip(self, call: Call) -> Answer:
        """Have messages never published."""
        request = read_model(await call.body(), ParkedSkip)
        check_value(request.reason, "The reason")
        who = call.identity
        reached = await self._rows.skip(
            _own(who), request.positions, reason=request.reason, actor=who.name
        )
        log.info("parked messages are skipped", by=who.name, positions=reached)
        return Answer(ParkedAsked(positions=reached))


def _own(who: Identity) -> str | None:
    return None if who.tenant == DEFAULT_TENANT else who.tenant


def _position(call: Call) -> int:
    text = call.path("position")
    if not text.isascii() or not text.isdecimal() or int(text) > _MAX_POSITION:
        raise _not_found(call)
    return int(text)


def _not_found(call: Call) -> RequestRefused:
    return RequestRefused(
        Code.NOT_FOUND,
        f"Nothing is or was parked at position {call.path('position')!r}.",
        next_step="See `tenure outbox parked list`.",
    )


def parking_endpoints(control: ParkingControl, *, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints of parked messages. ``gate`` bounds what waits."""
    return (
        Endpoint(
            "GET",
            "/v1/outbox/parked",
            "list_parked",
            "List messages that could not be published and are parked",
            _LOOKERS,
            control.parked,
            ParkedList,
            query=ParkedQuery,
        ),
        Endpoint(
            "GET",
            "/v1/outbox/parked/{position}",
            "parked_message",
            "Read a parked message, and what was asked about it",
            _LOOKERS,
            control.parked_message,
            ParkedDetail,
            codes=(Code.NOT_FOUND,),
        ),
        Endpoint(
            "POST",
            "/v1/outbox/parked/retry",
            "retry_parked",
            "Try parked messages again now",
            _OPERATORS,
            control.retry,
            ParkedAsked,
            body=ParkedRetry,
            gate=gate,
        ),
        Endpoint(
            "POST",
            "/v1/outbox/parked/skip",
            "skip_parked",
            "Never publish parked messages",
            _OPERATORS,
            control.skip,
            ParkedAsked,
            body=ParkedSkip,
            gate=gate,
        ),
    )
