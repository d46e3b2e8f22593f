"""What queues gave up, as operators see and settle it."""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from pydantic import Field

from tenure.contract.codec import check_value
from tenure.contract.codes import Code
from tenure.contract.dead_letters import (
    DeadLetterDetail,
    DeadLetterList,
    DeadLetterState,
    Settling,
)
from tenure.contract.ids import DEFAULT_TENANT
from tenure.coordinator.api.endpoint import Answer, Call, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.reading import Query, read_model
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.identities import Identity, Role
from tenure.coordinator.store.dead_letters import CameBack, DeadLetters

log = structlog.get_logger()

_OPERATORS = frozenset({Role.OPERATOR})
_LOOKERS = frozenset({Role.OPERATOR, Role.READ_ONLY})
_MAX_ID: Final = 2**63 - 1


class DeadLetterQuery(Query):
    """State, queue, and the page; newest first."""

    state: DeadLetterState | None = None
    queue: str | None = Field(default=None, max_length=255)
    limit: int = Field(default=50, ge=1, le=500)
    after: int | None = Field(default=None, ge=0, le=_MAX_ID)


class DeadLetterControl:
    """Handlers of ``/v1/dead-letters``."""

    def __init__(
        self, letters: DeadLetters, *, publish: Callable[[CameBack], Awaitable[bool]]
    ) -> None:
        """``publish`` sends one to its queue again; whether it reached it."""
        self._letters = letters
        self._publish = publish

    async def dead_letters(self, call: Call) -> Answer:
        """What came back."""
        query = call.query(DeadLetterQuery)
        found = await self._letters.views(
            _own(call.identity),
            state=query.state,
            queue=query.queue,
            after=query.after,
            limit=query.limit,
        )
        more = found[-1].dead_letter_id if len(found) == query.limit else None
        return Answer(DeadLetterList(dead_letters=found, next=more))

    async def dead_letter(self, call: Call) -> Answer:
        """One, with what it says."""
        found = await self._letters.detail(_own(call.identity), _id(call))
        if found is None:
            raise _not_found(call)
        return Answer(found)

    async def redrive(self, call: Call) -> Answer:
        """Send one to its queue again: the same bytes, under the same event id."""
        request = read_model(await call.body(), Settling)
        check_value(request.reason, "The reason")
        letter = await self._letters.content(_own(call.identity), _id(call))
        if letter is None:
            raise _not_found(call)
        if letter.body is None:
            raise RequestRefused(
                Code.WRONG_STATE,
                f"The message had {letter.body_bytes} bytes and was not kept.",
                next_step="Discard it: an event is never that large.",
            )
        if not await self._publish(letter):
            raise RequestRefused(
                Code.UNROUTABLE,
                f"There is no queue {letter.queue!r} any more.",
                next_step="Of a node that is gone nothing is needed: discard it. Of a consumer:"
                " subscribe again, or replay to another queue.",
            )
        return await self._settled(call, DeadLetterState.REDRIVEN, request.reason)

    async def discard(self, call: Call) -> Answer:
        """Decide that one is not needed."""
        request = read_model(await call.body(), Settling)
        check_value(request.reason, "The reason")
        return await self._settled(call, DeadLetterState.DISCARDED, request.reason)

    async def _settled(self, call: Call, state: DeadLetterState, reason: str) -> Answer:
        who = call.identity
        there = await self._letters.settle(
            _own(who), _id(call), state, reason=reason, actor=who.name
        )
        found = await self._letters.detail(_own(who), _id(call)) if there else None
        if found is None:
            raise _not_found(call)
        log.info("dead letter settled", by=who.name, event_id=found.event_id, state=state.value)
        return Answer(found)


def _own(who: Identity) -> str | None:
    """Whose may be seen; None: all, those included that are no events."""
    return None if who.tenant == DEFAULT_TENANT else who.tenant


def _id(call: Call) -> int:
    """The number in the path."""
    text = call.path("dead_letter_id")
    if not text.isascii() or not text.isdecimal() or int(text) > _MAX_ID:
        raise _not_found(call)
    return int(text)


def _not_found(call: Call) -> RequestRefused:
    return RequestRefused(
        Code.NOT_FOUND,
        f"There is no dead letter {call.path('dead_letter_id')!r}.",
        next_step="See `tenure dead-letter list`.",
    )


def dead_letter_endpoints(control: DeadLetterControl, *, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints of dead letters. ``gate`` bounds what waits."""
    return (
        Endpoint(
            "GET",
            "/v1/dead-letters",
            "list_dead_letters",
            "List messages that queues gave up, newest first",
            _LOOKERS,
            control.dead_letters,
            DeadLetterList,
            query=DeadLetterQuery,
        ),
        Endpoint(
            "GET",
            "/v1/dead-letters/{dead_letter_id}",
            "dead_letter",
            "Read a message that a queue gave up",
            _LOOKERS,
            control.dead_letter,
            DeadLetterDetail,
            codes=(Code.NOT_FOUND,),
        ),
        Endpoint(
            "POST",
            "/v1/dead-letters/{dead_letter_id}/redrive",
            "redrive",
            "Send a message that a queue gave up to it again",
            _OPERATORS,
            control.redrive,
            DeadLetterDetail,
            body=Settling,
            gate=gate,
            codes=(Code.NOT_FOUND, Code.UNROUTABLE, Code.WRONG_STATE),
        ),
        Endpoint(
            "POST",
            "/v1/dead-letters/{dead_letter_id}/discard",
            "discard",
            "Decide that a message that a queue gave up is not needed",
            _OPERATORS,
            control.discard,
            DeadLetterDetail,
            body=Settling,
            gate=gate,
            codes=(Code.NOT_FOUND,),
        ),
    )
