"""What operators pause and resume (FLOW-01)."""

import structlog

from tenure.contract.codec import check_value
from tenure.contract.codes import Code
from tenure.contract.flow import PauseList, PauseRequest, Resumed, ResumeRequest, Scope
from tenure.contract.ids import DEFAULT_TENANT, TENANT_PATTERN
from tenure.contract.states import PauseScope
from tenure.coordinator.api.endpoint import READERS, Answer, Call, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.errors import InvalidRequest, RequestRefused
from tenure.coordinator.identities import Identity, Role
from tenure.coordinator.store.flow import Flow

log = structlog.get_logger()

_OPERATORS = frozenset({Role.OPERATOR})
_OF_THE_PLATFORM = frozenset({PauseScope.ALL, PauseScope.TENANT})


class FlowControl:
    """Handlers of ``/v1/pauses``."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    async def pauses(self, call: Call) -> Answer:
        """What is paused now."""
        who = call.identity
        own = None if who.tenant == DEFAULT_TENANT else who.tenant
        return Answer(PauseList(pauses=await self._flow.pauses(own)))

    async def pause(self, call: Call) -> Answer:
        """Let nothing of a scope begin any more."""
        request = read_model(await call.body(), PauseRequest)
        who = call.identity
        _check(request, who)
        check_value(request.reason, "The reason")
        ahead = await self._flow.pause(
            who.tenant, request.scope, request.name,
            until=request.until, reason=request.reason, actor=who.name,
        )  # fmt: skip
        if not ahead:
            raise InvalidRequest(
                "`until` has passed.", next_step="Give an instant that is ahead, or none."
            )
        log.info("paused", by=who.name, scope=request.scope.value, name=request.name)
        return await self.pauses(call)

    async def resume(self, call: Call) -> Answer:
        """Let a scope begin again. Resuming what is not paused changes nothing."""
        request = read_model(await call.body(), ResumeRequest)
        who = call.identity
        _check(request, who)
        resumed = await self._flow.resume(who.tenant, request.scope, request.name, actor=who.name)
        log.info("resumed", by=who.name, scope=request.scope.value, name=request.name)
        return Answer(Resumed(resumed=resumed))


def _check(request: Scope, who: Identity) -> None:
    """Nobody pauses more than is its own, and no tenant that cannot be."""
    check_value(request.name, "The name")
    if request.scope in _OF_THE_PLATFORM and who.tenant != DEFAULT_TENANT:
        raise RequestRefused(
            Code.FORBIDDEN_ROLE,
            f"All work and whole tenants are paused by operators of the tenant {DEFAULT_TENANT!r}.",
            next_step="Pause a type, a node or a label of your tenant.",
        )
    if request.scope is PauseScope.TENANT and not TENANT_PATTERN.fullmatch(request.name):
        raise InvalidRequest(f"{request.name!r} is no name of a tenant.")


def flow_endpoints(flow: FlowControl, *, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints of flow control. ``gate`` bounds what waits."""
    return (
        Endpoint(
            "GET",
            "/v1/pauses",
            "list_pauses",
            "List what is paused now",
            READERS,
            flow.pauses,
            PauseList,
        ),
        Endpoint(
            "POST",
            "/v1/pauses",
            "pause",
            "Pause all work, a tenant, a type, a node or a label",
            _OPERATORS,
            flow.pause,
            PauseList,
            body=PauseRequest,
            gate=gate,
        ),
        Endpoint(
            "POST",
            "/v1/pauses/resume",
            "resume",
            "Resume what was paused",
            _OPERATORS,
            flow.resume,
            Resumed,
            body=ResumeRequest,
            gate=gate,
        ),
    )
