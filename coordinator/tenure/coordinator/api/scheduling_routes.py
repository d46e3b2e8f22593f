"""Endpoints about scheduling: the part of the table in ``routes.py`` that belongs to it."""

from tenure.contract.codes import Code
from tenure.contract.scheduling import (
    NodeDetail,
    NodeFactsChange,
    TenantChange,
    TenantList,
    TenantView,
    Why,
)
from tenure.coordinator.api.endpoint import READERS, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.scheduling import Scheduling
from tenure.coordinator.identities import Role

OPERATORS = frozenset({Role.OPERATOR})
OVERSEERS = frozenset({Role.OPERATOR, Role.READ_ONLY})


def scheduling_endpoints(scheduling: Scheduling, *, gate: Gate) -> tuple[Endpoint, ...]:
    """Every endpoint about scheduling. ``gate`` bounds what waits."""
    return (
        Endpoint(
            "GET",
            "/v1/tasks/{task_id}/why",
            "why",
            "Ask why a task is not running: every filter over every node",
            READERS,
            scheduling.why,
            Why,
            codes=(Code.NOT_FOUND,),
        ),
        Endpoint(
            "GET",
            "/v1/tenants",
            "list_tenants",
            "List what is stated about tenants",
            OVERSEERS,
            scheduling.tenants,
            TenantList,
        ),
        Endpoint(
            "GET",
            "/v1/tenants/{tenant}",
            "tenant",
            "Read what is stated about a tenant",
            OVERSEERS,
            scheduling.tenant,
            TenantView,
            codes=(Code.NOT_FOUND,),
        ),
        Endpoint(
            "PATCH",
            "/v1/tenants/{tenant}",
            "set_tenant",
            "State what a tenant may use",
            OPERATORS,
            scheduling.set_tenant,
            TenantView,
            body=TenantChange,
            gate=gate,
        ),
        Endpoint(
            "GET",
            "/v1/nodes/{node_id}",
            "node",
            "Read one node, and what is stated about it",
            READERS,
            scheduling.node,
            NodeDetail,
            codes=(Code.NOT_FOUND,),
        ),
        Endpoint(
            "PATCH",
            "/v1/nodes/{node_id}/facts",
            "set_node_facts",
            "State facts about a node",
            OPERATORS,
            scheduling.set_node_facts,
            NodeDetail,
            body=NodeFactsChange,
            gate=gate,
            codes=(Code.NOT_FOUND,),
        ),
    )
