"""The endpoints about authority, for operators."""

from tenure.contract.codes import Code
from tenure.contract.operations import (
    AuthorityView,
    Evidence,
    EvidenceJudged,
    PolicyChange,
    PolicyHistory,
    PolicyView,
    Quarantined,
    QuarantineRequest,
    Recovered,
    Recovery,
    ReviewClosing,
    ReviewList,
    RevocationRequest,
    Revoked,
)
from tenure.coordinator.api.endpoint import EVERY_ROLE, READERS, Endpoint
from tenure.coordinator.api.executors import Nothing
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.leases import Leases
from tenure.coordinator.identities import Role

OPERATORS = frozenset({Role.OPERATOR})


def lease_endpoints(leases: Leases, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints about policies, revocation and the authority itself."""
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
        Endpoint(
            "POST",
            "/v1/tasks/{task_id}/revoke",
            "revoke",
            "Take the authority of an attempt away before its time",
            OPERATORS,
            leases.revoke,
            Revoked,
            body=RevocationRequest,
            gate=gate,
            codes=(Code.NOT_FOUND, Code.UNKNOWN_ATTEMPT, Code.IDEMPOTENCY_CONFLICT),
        ),
        Endpoint(
            "POST",
            "/v1/nodes/{node_id}/quarantine",
            "quarantine",
            "Take a node out of service and revoke what it has",
            OPERATORS,
            leases.quarantine,
            Quarantined,
            body=QuarantineRequest,
            gate=gate,
            codes=(Code.UNKNOWN_NODE,),
        ),
        Endpoint(
            "POST",
            "/v1/nodes/{node_id}/release",
            "release_node",
            "Let a quarantined node back",
            OPERATORS,
            leases.release_node,
            Nothing,
            body=Nothing,
            gate=gate,
            codes=(Code.UNKNOWN_NODE,),
        ),
        Endpoint(
            "GET",
            "/v1/nodes/{node_id}/reviews",
            "list_reviews",
            "List the health reviews of a node",
            READERS,
            leases.reviews,
            ReviewList,
            codes=(Code.UNKNOWN_NODE,),
        ),
        Endpoint(
            "POST",
            "/v1/nodes/{node_id}/reviews/close",
            "close_review",
            "Close the health review of a node that somebody has looked at",
            OPERATORS,
            leases.close_review,
            ReviewList,
            body=ReviewClosing,
            gate=gate,
            codes=(Code.UNKNOWN_NODE,),
        ),
        Endpoint(
            "GET",
            "/v1/authority",
            "authority",
            "See the authority, its epochs, and whether it grants",
            OPERATORS | {Role.READ_ONLY},
            leases.authority,
            AuthorityView,
        ),
        Endpoint(
            "POST",
            "/v1/authority/recover",
            "recover",
            "Make this database, as it is, the authority from now on",
            OPERATORS,
            leases.recover,
            Recovered,
            body=Recovery,
            gate=gate,
            codes=(Code.NOTHING_TO_RECOVER, Code.RECOVERY_TOO_EARLY),
        ),
        Endpoint(
            "POST",
            "/v1/authority/evidence",
            "present_evidence",
            "Present what was seen: above what is stored it proves lost history",
            EVERY_ROLE,
            leases.present,
            EvidenceJudged,
            body=Evidence,
            gate=gate,
        ),
    )
