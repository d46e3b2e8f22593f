"""The endpoints about authority, for operators."""

from tenure.contract.codes import Code
from tenure.contract.operations import PolicyChange, PolicyHistory, PolicyView
from tenure.coordinator.api.endpoint import READERS, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.leases import Leases
from tenure.coordinator.identities import Role

OPERATORS = frozenset({Role.OPERATOR})


def lease_endpoints(leases: Leases, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints of ``/v1/policies``."""
    return (
        Endpoint(
            "GET",
            "/v1/policies",
            "list_policies",
            "List the versions of the lease policy, the one in force first",
            READERS,
            leases.list_policies,
            PolicyHistory,
        ),
        Endpoint(
            "POST",
            "/v1/policies",
            "set_policy",
            "Set the lease policy for what is granted from now on",
            OPERATORS,
            leases.set_policy,
            PolicyView,
            body=PolicyChange,
            gate=gate,
            codes=(Code.STALE_VERSION,),
        ),
    )
