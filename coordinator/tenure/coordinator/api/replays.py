"""What operators publish once more (REPLAY-01).

The log and the broker's queues belong to no tenant: replays are for operators of the tenant that
looks after the platform.
"""

import structlog
from pydantic import Field
from uuid_utils.compat import uuid7

from tenure.contract import topology
from tenure.contract.codec import check_value
from tenure.contract.codes import Code
from tenure.contract.ids import DEFAULT_TENANT
from tenure.contract.replay import (
    QUEUE_BYTES,
    ReplayDetail,
    ReplayList,
    ReplayOrder,
    ReplayReply,
    ReplayRequest,
    ReplayResume,
)
from tenure.contract.states import ReplayState
from tenure.coordinator.api.endpoint import READERS, Answer, Call, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.reading import Query, read_model
from tenure.coordinator.api.syntax import UUID_PATTERN, is_uuid
from tenure.coordinator.errors import InvalidRequest, RequestRefused
from tenure.coordinator.identities import Role
from tenure.coordinator.store.replay import Change, Replays, absent

log = structlog.get_logger()

_OPERATORS = frozenset({Role.OPERATOR})
_PATH = "/v1/replays"


class ReplayQuery(Query):
    """A state or all, and the page; newest first."""

    state: ReplayState | None = None
    limit: int = Field(default=50, ge=1, le=500)
    after: str | None = Field(default=None, pattern=UUID_PATTERN)


class ReplayControl:
    """Handlers of ``/v1/replays``. ``name_prefix``: of every name on the broker."""

    def __init__(self, replays: Replays, *, name_prefix: str) -> None:
        self._replays = replays
        self._dead_letters = topology.dead_letter_queue(name_prefix)
        self._node_queues = topology.node_queues(name_prefix)

    async def replay(self, call: Call) -> Answer:
        """Say what a replay covers, and begin it unless this is a dry run."""
        request = read_model(await call.body(), ReplayRequest)
        _check_platform(call)
        self._check(request)
        preview = await self._replays.preview(request.filter, request.queue)
        if request.dry_run:
            return Answer(ReplayReply(preview=preview, replay=None))
        if preview.behind_dedupe_retention and not request.force:
            raise RequestRefused(
                Code.BEHIND_DEDUPE_RETENTION,
                f"The oldest row was recorded at {preview.oldest_recorded_at}; consumers of"
                f" {request.queue!r} know again only what was recorded after"
                f" {preview.remembered_since}.",
            )
        replay_id = request.replay_id or str(uuid7())
        who = call.identity.name
        started = await self._replays.start(replay_id, request, preview, actor=who)
        if started:
            log.info("replay started", by=who, replay_id=replay_id, queue=request.queue)
        reply = ReplayReply(preview=preview, replay=await self._replays.replay(replay_id))
        headers = {"Location": f"{_PATH}/{replay_id}"}
        return Answer(reply, 201 if started else 200, headers if started else {})

    async def replays(self, call: Call) -> Answer:
        """A page of replays."""
        _check_platform(call)
        query = call.query(ReplayQuery)
        return Answer(
            await self._replays.replays(state=query.state, after=query.after, limit=query.limit)
        )

    async def detail(self, call: Call) -> Answer:
        """One replay and its history."""
        _check_platform(call)
        return Answer(await self._replays.detail(_replay_id(call)))

    async def pause(self, call: Call) -> Answer:
        """Let it stand where it is."""
        order = read_model(await call.body(), ReplayOrder)
        return await self._change(call, "paused", order)

    async def resume(self, call: Call) -> Answer:
        """Let it go on from where it stands."""
        order = read_model(await call.body(), ReplayResume)
        return await self._change(call, "resumed", order, force=order.force)

    async def cancel(self, call: Call) -> Answer:
        """End it for good; what was published stays published."""
        order = read_model(await call.body(), ReplayOrder)
        return await self._change(call, "cancelled", order)

    async def _change(
        self, call: Call, change: Change, order: ReplayOrder, *, force: bool = False
    ) -> Answer:
        _check_platform(call)
        check_value(order.reason, "The reason")
        replay_id = _replay_id(call)
        who = call.identity.name
        await self._replays.change(replay_id, change, reason=order.reason, actor=who, force=force)
        log.info(f"replay {change}", by=who, replay_id=replay_id)
        return Answer(await self._replays.detail(replay_id))

    def _check(self, request: ReplayRequest) -> None:
        """Names that can be stored and sent, and no queue whose consumers expect something else."""
        check_value(request.reason, "The reason")
        for name in (request.queue, request.filter.destination or ""):
            check_value(name, "The name of the queue")
            if len(name.encode()) > QUEUE_BYTES:
                raise InvalidRequest(f"The name of a queue has at most {QUEUE_BYTES} bytes.")
        if request.queue.startswith((self._node_queues, "amq.")) or (
            request.queue == self._dead_letters
        ):
            raise InvalidRequest(
                f"The queue {request.queue!r} is not for replays: it belongs to a node, to the"
                " coordinator or to the broker.",
                next_step="Name a queue of your consumers.",
            )


def _check_platform(call: Call) -> None:
    if call.identity.tenant != DEFAULT_TENANT:
        raise RequestRefused(
            Code.FORBIDDEN_ROLE,
            f"Replays are for operators of the tenant {DEFAULT_TENANT!r}: the log is one for all.",
            next_step="Read a stream with GET /v1/streams, or ask who runs the platform.",
        )


def _replay_id(call: Call) -> str:
    replay_id = call.path("replay_id")
    if not is_uuid(replay_id):
        raise absent(replay_id)
    return replay_id


def replay_endpoints(replays: ReplayControl, *, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints of replays. ``gate`` bounds what waits."""
    orders = (
        ("pause", "Let a replay stand where it is", replays.pause, ReplayOrder),
        ("resume", "Let a paused replay go on", replays.resume, ReplayResume),
        ("cancel", "End a replay for good", replays.cancel, ReplayOrder),
    )
    return (
        Endpoint(
            "POST",
            _PATH,
            "replay",
            "Publish rows of the log once more, to one queue; or say what that would be",
            _OPERATORS,
            replays.replay,
            ReplayReply,
            body=ReplayRequest,
            gate=gate,
            replies=(200, 201),
            reply_headers={201: {"Location": "path of the replay"}},
            codes=(Code.IDEMPOTENCY_CONFLICT, Code.BEHIND_DEDUPE_RETENTION),
        ),
        Endpoint(
            "GET",
            _PATH,
            "list_replays",
            "List replays",
            READERS,
            replays.replays,
            ReplayList,
            query=ReplayQuery,
        ),
        Endpoint(
            "GET",
            f"{_PATH}/{{replay_id}}",
            "get_replay",
            "Read a replay and its history",
            READERS,
            replays.detail,
            ReplayDetail,
            codes=(Code.NOT_FOUND,),
        ),
        *(
            Endpoint(
                "POST",
                f"{_PATH}/{{replay_id}}/{name}",
                f"{name}_replay",
                summary,
                _OPERATORS,
                handler,
                ReplayDetail,
                body=body,
                gate=gate,
                codes=(Code.NOT_FOUND, Code.WRONG_STATE),
            )
            for name, summary, handler, body in orders
        ),
    )
