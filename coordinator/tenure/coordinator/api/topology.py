"""What is on the broker beside what must be there, as operators see and mend it."""

from typing import Protocol

import structlog

from tenure.contract.broker_report import TopologyFinding, TopologyRepair, TopologyReport
from tenure.contract.codes import Code
from tenure.contract.ids import DEFAULT_TENANT
from tenure.coordinator.api.endpoint import Answer, Call, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.identities import Identity, Role

log = structlog.get_logger()

_OPERATORS = frozenset({Role.OPERATOR})
_LOOKERS = frozenset({Role.OPERATOR, Role.READ_ONLY})


class Mended(Protocol):
    """The broker, as it is examined and mended."""

    async def examine(self) -> tuple[TopologyFinding, ...]:
        """Everything that must be there. Raises Unavailable."""

    async def mend(self, replaced: tuple[str, ...]) -> tuple[TopologyFinding, ...]:
        """Declare what is missing and replace what is named. Raises Unavailable."""


class TopologyControl:
    """Handlers of ``/v1/topology``. The broker is one for all tenants."""

    def __init__(self, broker: Mended) -> None:
        self._broker = broker

    async def topology(self, call: Call) -> Answer:
        """What is there, and what is not as it must be."""
        _of_the_platform(call.identity)
        return Answer(TopologyReport(findings=await self._broker.examine()))

    async def apply(self, call: Call) -> Answer:
        """Make it as it must be."""
        request = read_model(await call.body(), TopologyRepair)
        _of_the_platform(call.identity)
        found = await self._broker.mend(request.replace)
        log.info("topology applied", by=call.identity.name, replaced=request.replace)
        return Answer(TopologyReport(findings=found))


def _of_the_platform(who: Identity) -> None:
    if who.tenant != DEFAULT_TENANT:
        raise RequestRefused(
            Code.FORBIDDEN_ROLE,
            f"The broker is looked after by operators of the tenant {DEFAULT_TENANT!r}.",
        )


def topology_endpoints(control: TopologyControl, *, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints of the broker's topology. ``gate`` bounds what waits."""
    return (
        Endpoint(
            "GET",
            "/v1/topology",
            "topology",
            "Compare what is on the broker with what must be there",
            _LOOKERS,
            control.topology,
            TopologyReport,
        ),
        Endpoint(
            "POST",
            "/v1/topology/apply",
            "apply_topology",
            "Declare what is missing on the broker, and replace what is named",
            _OPERATORS,
            control.apply,
            TopologyReport,
            body=TopologyRepair,
            gate=gate,
        ),
    )
