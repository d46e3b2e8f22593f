"""What operators ask besides tasks: nodes, what was enqueued, how far publishing is behind; and
what anybody may ask: who a token stands for."""

from typing import Literal

import structlog
from pydantic import Field

from tenure.contract.tasks import IdentityView, IntakeRetried, IntakeRetry, NodeList
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.api.reading import Query, read_model
from tenure.coordinator.store.reads import Reads

log = structlog.get_logger()


class IntakeQuery(Query):
    """A state or all, and the page; newest first."""

    state: Literal["waiting", "taken", "refused"] | None = None
    limit: int = Field(default=50, ge=1, le=500)
    after: int | None = Field(default=None, ge=0, lt=2**63)


class Operators:
    """Handlers of ``/v1/identity``, ``/v1/nodes``, ``/v1/intake`` and ``/v1/outbox``."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    async def identity(self, call: Call) -> Answer:
        """Who asks, by the token of the request."""
        who = call.identity
        return Answer(IdentityView(name=who.name, tenant=who.tenant, role=who.role.value))

    async def nodes(self, call: Call) -> Answer:
        """Live incarnations of the tenant, and those that ended within the last hour."""
        return Answer(NodeList(nodes=await self._reads.nodes(call.identity.tenant)))

    async def intake(self, call: Call) -> Answer:
        """What the tenant's applications enqueued in transactions of their own."""
        query = call.query(IntakeQuery)
        return Answer(
            await self._reads.intake(
                call.identity.tenant, state=query.state, after=query.after, limit=query.limit
            )
        )

    async def retry_intake(self, call: Call) -> Answer:
        """Let refused rows of the tenant be decided anew."""
        request = read_model(await call.body(), IntakeRetry)
        retried = await self._reads.retry_intake(
            call.identity.tenant, code=request.code, type_name=request.type
        )
        log.info("refused rows are decided anew", by=call.identity.name, rows=retried)
        return Answer(IntakeRetried(retried=retried))

    async def outbox(self, _: Call) -> Answer:
        """Cursors of the relay against the log. The log is one for all tenants."""
        return Answer(await self._reads.outbox())
