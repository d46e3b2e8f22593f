"""Limits that operators state: how many tasks run at once, how many start in a time (FLOW-01)."""

import structlog

from tenure.contract.codec import check_value
from tenure.contract.codes import Code
from tenure.contract.ids import DEFAULT_TENANT, TASK_TYPE_PATTERN, TENANT_PATTERN
from tenure.contract.limits import (
    LimitChange,
    LimitedScope,
    LimitList,
    LimitRemoval,
    LimitRemoved,
)
from tenure.contract.states import LimitScope
from tenure.coordinator.api.endpoint import READERS, Answer, Call, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.core.rows import ANY
from tenure.coordinator.errors import InvalidRequest, RequestRefused
from tenure.coordinator.identities import Identity, Role
from tenure.coordinator.store.limits import StatedLimits

log = structlog.get_logger()

_OPERATORS = frozenset({Role.OPERATOR})


class LimitControl:
    """Handlers of ``/v1/limits``."""

    def __init__(self, limits: StatedLimits) -> None:
        self._limits = limits

    async def limits(self, call: Call) -> Answer:
        """What is stated, and what counts under it now."""
        who = call.identity
        own = None if who.tenant == DEFAULT_TENANT else who.tenant
        return Answer(LimitList(limits=await self._limits.limits(own)))

    async def set(self, call: Call) -> Answer:
        """State a limit, or state it anew."""
        request = read_model(await call.body(), LimitChange)
        who = call.identity
        _check(request, who)
        await self._limits.set(
            who.tenant, request.scope, request.name,
            max_running=request.max_running, rate=request.rate, actor=who.name,
        )  # fmt: skip
        log.info("limited", by=who.name, scope=request.scope.value, name=request.name)
        return await self.limits(call)

    async def remove(self, call: Call) -> Answer:
        """Take a limit back. One that is not stated changes nothing."""
        request = read_model(await call.body(), LimitRemoval)
        who = call.identity
        _check(request, who)
        removed = await self._limits.remove(who.tenant, request.scope, request.name, actor=who.name)
        log.info("limit removed", by=who.name, scope=request.scope.value, name=request.name)
        return Answer(LimitRemoved(removed=removed))


def _check(request: LimitedScope, who: Identity) -> None:
    """Nobody limits more than is its own, and nothing that cannot be."""
    check_value(request.name, "The name")
    if request.scope is LimitScope.TENANT:
        if who.tenant != DEFAULT_TENANT:
            raise RequestRefused(
                Code.FORBIDDEN_ROLE,
                f"Whole tenants are limited by operators of the tenant {DEFAULT_TENANT!r}.",
                next_step="Limit a type or a key of your tenant.",
            )
        if not TENANT_PATTERN.fullmatch(request.name):
            raise InvalidRequest(f"{request.name!r} is no name of a tenant.")
    every_type = request.scope is LimitScope.EACH_KEY and request.name == ANY
    if (
        request.scope in (LimitScope.TYPE, LimitScope.EACH_KEY)
        and not every_type
        and not TASK_TYPE_PATTERN.fullmatch(request.name)
    ):
        raise InvalidRequest(f"{request.name!r} is no name of a task type.")


def limit_endpoints(limits: LimitControl, *, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints of limits. ``gate`` bounds what waits."""
    return (
        Endpoint(
            "GET",
            "/v1/limits",
            "list_limits",
            "List limits and what counts under them now",
            READERS,
            limits.limits,
            LimitList,
        ),
        Endpoint(
            "POST",
            "/v1/limits",
            "set_limit",
            "Limit how many tasks run at once, or start in a time",
            _OPERATORS,
            limits.set,
            LimitList,
            body=LimitChange,
            gate=gate,
            codes=(Code.TOO_MANY_LIMITS,),
        ),
        Endpoint(
            "POST",
            "/v1/limits/remove",
            "remove_limit",
            "Take a limit back",
            _OPERATORS,
            limits.remove,
            LimitRemoved,
            body=LimitRemoval,
            gate=gate,
        ),
    )
