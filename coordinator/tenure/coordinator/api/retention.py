"""How long what has ended is kept, and what goes (OPS-08). The rows are those of all tenants, so
that operators of the platform decide."""

from typing import Final

import structlog

from tenure.contract.codec import check_value
from tenure.contract.codes import Code
from tenure.contract.ids import DEFAULT_TENANT
from tenure.contract.retention import (
    RetentionChange,
    RetentionPlan,
    RetentionRun,
    RetentionRunRequest,
    RetentionView,
)
from tenure.contract.states import RetentionKind
from tenure.coordinator import retention as loop
from tenure.coordinator.api.endpoint import Answer, Call, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.core.retention import contradiction
from tenure.coordinator.errors import InvalidRequest, RequestRefused, Unavailable
from tenure.coordinator.identities import Role
from tenure.coordinator.store.postgres import ConnectionLost, PostgresError
from tenure.coordinator.store.reading import is_transient
from tenure.coordinator.store.retention import Retention

log = structlog.get_logger()

_OPERATORS: Final = frozenset({Role.OPERATOR})
_READERS: Final = frozenset({Role.OPERATOR, Role.READ_ONLY})


class RetentionPolicy:
    """Handlers of ``/v1/retention``."""

    def __init__(self, retention: Retention, remover: loop.Retention) -> None:
        self._retention = retention
        self._remover = remover

    async def show(self, _: Call) -> Answer:
        """The policy in force, and how far removal has come."""
        return Answer(await self._retention.policy())

    async def plan(self, _: Call) -> Answer:
        """What would be removed now."""
        return Answer(RetentionPlan(kinds=await self._retention.plan()))

    async def set(self, call: Call) -> Answer:
        """The next version of the policy."""
        change = read_model(await call.body(), RetentionChange)
        _of_the_platform(call)
        check_value(change.reason, "reason")
        before = await self._retention.policy()
        if before.version != change.after_version:
            raise _changed_meanwhile(change.after_version, before.version)
        keep = {one.kind: one.keep_seconds for one in before.kinds} | change.keep_seconds
        fault = contradiction(keep)
        if fault is not None:
            raise InvalidRequest(f"These times contradict each other: {fault}.")
        done = await self._retention.set(
            change.after_version, keep, set_by=call.identity.name, reason=change.reason
        )
        now = await self._retention.policy()
        if not done and (now.set_by, now.reason) != (call.identity.name, change.reason):
            raise _changed_meanwhile(change.after_version, now.version)
        log.info("retention set", by=call.identity.name, version=now.version, reason=change.reason)
        return Answer(now)

    async def run(self, call: Call) -> Answer:
        """Remove for about a second."""
        request = read_model(await call.body(), RetentionRunRequest)
        _of_the_platform(call)
        try:
            removed, more = await self._remover.run_now(request.kinds or tuple(RetentionKind))
        except (PostgresError, *ConnectionLost) as error:
            if not is_transient(error):
                raise
            raise Unavailable("The database went away.") from error
        log.info("retention run", by=call.identity.name, removed=removed, more=more)
        return Answer(RetentionRun(removed_rows=removed, more=more))


def _of_the_platform(call: Call) -> None:
    if call.identity.tenant != DEFAULT_TENANT:
        raise RequestRefused(
            Code.FORBIDDEN_ROLE,
            "How long rows of all tenants are kept is decided by operators of the tenant"
            f" {DEFAULT_TENANT!r}.",
        )


def _changed_meanwhile(after: int, now: int) -> RequestRefused:
    return RequestRefused(
        Code.STALE_VERSION,
        f"The retention policy in force is version {now}, not {after}.",
        next_step="See `tenure retention show`, and decide anew.",
    )


def retention_endpoints(retention: RetentionPolicy, *, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints of the retention policy. ``gate`` bounds what waits."""
    return (
        Endpoint(
            "GET",
            "/v1/retention",
            "retention",
            "See how long what has ended is kept, and how far removal has come",
            _READERS,
            retention.show,
            RetentionView,
        ),
        Endpoint(
            "GET",
            "/v1/retention/plan",
            "retention_plan",
            "See what a run would remove",
            _READERS,
            retention.plan,
            RetentionPlan,
        ),
        Endpoint(
            "POST",
            "/v1/retention",
            "set_retention",
            "Set how long what has ended is kept",
            _OPERATORS,
            retention.set,
            RetentionView,
            body=RetentionChange,
            gate=gate,
            codes=(Code.STALE_VERSION,),
        ),
        Endpoint(
            "POST",
            "/v1/retention/run",
            "run_retention",
            "Remove now what is older than it is kept",
            _OPERATORS,
            retention.run,
            RetentionRun,
            body=RetentionRunRequest,
            gate=gate,
        ),
    )
