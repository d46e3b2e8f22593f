"""Endpoints about scheduling: the part of the table in ``routes.py`` that belongs to it."""

from tenure.contract.codes import Code
from tenure.contract.scheduling import (
    Backlog,
    ExecutableChange,
    ExecutableList,
    ExecutableView,
    Explained,
    NodeDetail,
    NodeFactsChange,
    ProfileList,
    ProfilePush,
    TenantChange,
    TenantList,
    TenantView,
    Why,
)
from tenure.contract.tasks import TaskSubmission
from tenure.coordinator.api.endpoint import READERS, SUBMITTERS, Endpoint, Size
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.programs import ProfileQuery, Programs
from tenure.coordinator.api.scheduling import Scheduling
from tenure.coordinator.identities import Role

OPERATORS = frozenset({Role.OPERATOR})
OVERSEERS = frozenset({Role.OPERATOR, Role.READ_ONLY})


def scheduling_endpoints(
    scheduling: Scheduling, programs: Programs, *, gate: Gate
) -> tuple[Endpoint, ...]:
    """Every endpoint about scheduling. ``gate`` bounds what waits."""
    return (
        Endpoint(
            "POST",
            "/v1/tasks/explain",
            "explain",
            "Ask what would become of a submission; nothing is recorded",
            SUBMITTERS,
            scheduling.explain,
            Explained,
            body=TaskSubmission,
            gate=gate,
            codes=(Code.UNKNOWN_TASK_TYPE, Code.DEADLINE_IN_THE_PAST),
        ),
        Endpoint(
            "GET",
            "/v1/backlog",
            "backlog",
            "Ask why each kind of waiting tasks is not running",
            READERS,
            scheduling.backlog,
            Backlog,
        ),
        Endpoint(
            "GET",
            "/v1/profiles",
            "list_profiles",
            "List workload profiles, newest first",
            READERS,
            programs.profiles,
            ProfileList,
            query=ProfileQuery,
        ),
        Endpoint(
            "POST",
            "/v1/profiles",
            "push_profiles",
            "Register workload profiles before any node runs them",
            OPERATORS,
            programs.push,
            ProfileList,
            body=ProfilePush,
            body_size=Size.BATCH,
            gate=gate,
            codes=(Code.PAYLOAD_TOO_LARGE,),
        ),
        Endpoint(
            "GET",
            "/v1/executables",
            "list_executables",
            "List the programs that nodes run or ran",
            READERS,
            programs.executables,
            ExecutableList,
        ),
        Endpoint(
            "PATCH",
            "/v1/executables/{digest}",
            "set_executable",
            "Withdraw a program, or register it again",
            OPERATORS,
            programs.set_executable,
            ExecutableView,
            body=ExecutableChange,
            gate=gate,
            codes=(Code.NOT_FOUND,),
        ),
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
