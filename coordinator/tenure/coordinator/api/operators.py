"""What operators ask besides tasks: nodes, and how far publishing is behind."""

from tenure.contract.tasks import NodeList
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.store.reads import Reads


class Operators:
    """Handlers of ``GET /v1/nodes`` and ``GET /v1/outbox``."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    async def nodes(self, call: Call) -> Answer:
        """Live incarnations of the tenant, and those that ended within the last hour."""
        return Answer(NodeList(nodes=await self._reads.nodes(call.identity.tenant)))

    async def outbox(self, _: Call) -> Answer:
        """Cursors of the relay against the log. The log is one for all tenants."""
        return Answer(await self._reads.outbox())
