"""One word about many tasks: page by page, each task told by itself (FLOW-01).

A page is small, and its tasks go through the lanes together with everybody else's commands. Who
asks holds the cursor: a run that was stopped, or lost its coordinator, goes on with another.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from tenure.contract.bulk import BulkReply, BulkRequest, BulkVerb
from tenure.contract.codec import check_value
from tenure.contract.codes import Code
from tenure.contract.ids import TaskId
from tenure.contract.states import TaskState
from tenure.coordinator.api.endpoint import Answer, Call, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.api.syntax import is_uuid
from tenure.coordinator.api.words import DONE_AGAIN, Words
from tenure.coordinator.errors import InvalidRequest, RequestRefused
from tenure.coordinator.identities import Identity, Role
from tenure.coordinator.store.reads import Reads

log = structlog.get_logger()

AT_ONCE: Final = 32
"""Tasks of a page that are told at the same time: they share batches of the lanes."""
_OPEN: Final = frozenset({TaskState.OPEN})
_HELD: Final = frozenset({TaskState.HELD})
SENSIBLE: Final[Mapping[BulkVerb, frozenset[TaskState]]] = {
    BulkVerb.CANCEL: _OPEN | _HELD,
    BulkVerb.HOLD: _OPEN,
    BulkVerb.RELEASE: _HELD,
    BulkVerb.RETRY: _HELD | DONE_AGAIN,
    BulkVerb.ERASE: frozenset(TaskState) - _OPEN - _HELD,
    BulkVerb.MOVE_PROFILE: _OPEN | _HELD,
}
"""Tasks of which states a word is said about; others do not match."""


class Bulk:
    """The handler of ``/v1/tasks/bulk``."""

    def __init__(self, words: Words, reads: Reads) -> None:
        self._words = words
        self._reads = reads

    async def say(self, call: Call) -> Answer:
        """Say a word about the next tasks that match, or count them."""
        request = read_model(await call.body(), BulkRequest)
        check_value(request.reason, "reason")
        after = request.after
        if after is not None and not is_uuid(after):
            raise InvalidRequest(f"`after`: {after!r} is no `next` of a reply.")
        wanted = request.filter
        states = SENSIBLE[request.verb]
        if wanted.state is not None:
            states &= {wanted.state}
        page = await self._reads.bulk_page(
            call.identity.tenant,
            states=states,
            phase=wanted.phase,
            type_name=wanted.type,
            created_before=wanted.created_before,
            after=after,
            limit=None if request.dry_run else request.limit,
        )
        told: Counter[str] = Counter()
        if not request.dry_run:
            told = await self._tell(call.identity, request, page.task_ids)
            log.info(
                "operator's word about many",
                by=call.identity.name,
                verb=request.verb.value,
                done=told["done"],
                matched=page.matched,
            )
        done = told.pop("done", 0)
        return Answer(
            BulkReply(
                matched=page.matched,
                done=done,
                refused=dict(sorted(told.items())),
                next=page.next,
                clock=page.clock,
            )
        )

    async def _tell(
        self, who: Identity, request: BulkRequest, task_ids: tuple[TaskId, ...]
    ) -> Counter[str]:
        """How many were told, and how many refused by code. Raises Unavailable when it is not known
        of some: who asks again says it again."""
        word = self._word(who, request)
        free = asyncio.Semaphore(AT_ONCE)
        told: Counter[str] = Counter()

        async def one(task_id: TaskId) -> None:
            async with free:
                try:
                    await word(task_id)
                    told["done"] += 1
                except RequestRefused as refused:
                    if refused.code == Code.AUTHORITY_UNCONFIRMED:
                        raise
                    told[str(refused.code)] += 1

        ended = await asyncio.gather(*map(one, task_ids), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error
        return told

    def _word(self, who: Identity, request: BulkRequest) -> Callable[[TaskId], Awaitable[object]]:
        words, reason = self._words, request.reason or ""
        match request.verb:
            case BulkVerb.CANCEL:
                return lambda task_id: words.cancel(who, task_id)
            case BulkVerb.HOLD:
                return lambda task_id: words.hold(who, task_id, reason)
            case BulkVerb.RELEASE:
                return lambda task_id: words.release(who, task_id)
            case BulkVerb.RETRY:
                return lambda task_id: words.retry(who, task_id)
            case BulkVerb.ERASE:
                return lambda task_id: words.erase(who, task_id, reason)
            case BulkVerb.MOVE_PROFILE:
                return lambda task_id: words.move_profile(who, task_id, request.digest)


def bulk_endpoints(bulk: Bulk, *, gate: Gate) -> tuple[Endpoint, ...]:
    """The endpoint of many tasks. ``gate`` bounds what waits."""
    return (
        Endpoint(
            "POST",
            "/v1/tasks/bulk",
            "bulk",
            "Cancel, hold, release, retry, erase or move the next tasks that match, or count them",
            frozenset({Role.OPERATOR}),
            bulk.say,
            BulkReply,
            body=BulkRequest,
            gate=gate,
        ),
    )
