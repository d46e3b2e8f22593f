"""The table of endpoints, and the application made of it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from tenure.contract.codes import Code
from tenure.contract.progress import ProgressReplies, ProgressReports
from tenure.contract.reports import (
    Assignments,
    DrainRequest,
    Registration,
    RegistrationReply,
    RenewalReplies,
    Renewals,
    ReportReplies,
    Reports,
)
from tenure.contract.tasks import (
    IDEMPOTENCY_KEY_HEADER,
    REPLAYED_HEADER,
    TRACEPARENT_HEADER,
    BatchReply,
    CancelReply,
    IdentityView,
    IntakeList,
    IntakeRetried,
    IntakeRetry,
    NodeList,
    OutboxStatus,
    StreamView,
    Submitted,
    TaskBatch,
    TaskList,
    TaskResult,
    TaskSubmission,
    TaskView,
)
from tenure.coordinator.api.applications import (
    NEVER_TAKEN_IN,
    Applications,
    StreamQuery,
    TaskListQuery,
    WaitQuery,
)
from tenure.coordinator.api.bulk import Bulk, bulk_endpoints
from tenure.coordinator.api.dead_letters import DeadLetterControl, dead_letter_endpoints
from tenure.coordinator.api.endpoint import (
    EVERY_ROLE,
    EXECUTORS,
    READERS,
    SUBMITTERS,
    Endpoint,
    Entrance,
    Size,
)
from tenure.coordinator.api.executors import Executors, IncarnationQuery, Nothing
from tenure.coordinator.api.flow import FlowControl, flow_endpoints
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.intervention_routes import intervention_endpoints
from tenure.coordinator.api.interventions import Interventions
from tenure.coordinator.api.lease_routes import lease_endpoints
from tenure.coordinator.api.leases import Leases
from tenure.coordinator.api.limits import LimitControl, limit_endpoints
from tenure.coordinator.api.openapi import PAGES, document
from tenure.coordinator.api.operators import IntakeQuery, Operators
from tenure.coordinator.api.parking import ParkingControl, parking_endpoints
from tenure.coordinator.api.problems import response_of
from tenure.coordinator.api.programs import Programs
from tenure.coordinator.api.progress import ProgressOfAttempts
from tenure.coordinator.api.replays import ReplayControl, replay_endpoints
from tenure.coordinator.api.retention import RetentionPolicy, retention_endpoints
from tenure.coordinator.api.scheduling import Scheduling
from tenure.coordinator.api.scheduling_routes import scheduling_endpoints
from tenure.coordinator.api.subscriptions import SubscriptionControl, subscription_endpoints
from tenure.coordinator.api.topology import TopologyControl, topology_endpoints
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.identities import Role

Plain = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Handlers:
    """Everything that answers."""

    applications: Applications
    executors: Executors
    progress: ProgressOfAttempts
    operators: Operators
    leases: Leases
    scheduling: Scheduling
    programs: Programs
    interventions: Interventions
    bulk: Bulk
    flow: FlowControl
    subscriptions: SubscriptionControl
    dead_letters: DeadLetterControl
    topology: TopologyControl
    parking: ParkingControl
    retention: RetentionPolicy
    limits: LimitControl
    replays: ReplayControl
    healthz: Plain
    readyz: Plain
    metrics: Plain


def endpoints(
    handlers: Handlers, *, application_gate: Gate, executor_gate: Gate
) -> tuple[Endpoint, ...]:
    """Every endpoint under ``/v1``. Gates bound what waits in the lanes."""
    tasks, nodes, operators = handlers.applications, handlers.executors, handlers.operators
    return (
        Endpoint(
            "POST",
            "/v1/tasks",
            "submit",
            "Submit a task",
            SUBMITTERS,
            tasks.submit,
            Submitted,
            body=TaskSubmission,
            gate=application_gate,
            replies=(201, 200),
            request_headers={
                IDEMPOTENCY_KEY_HEADER: "The same key gives the same task: 200 instead of 201.",
                TRACEPARENT_HEADER: "W3C Trace Context: its events are told under this trace.",
            },
            reply_headers={
                201: {"Location": "Path of the new task."},
                200: {REPLAYED_HEADER: "true: the key had been seen, nothing new was created."},
            },
            codes=(
                Code.UNKNOWN_TASK_TYPE,
                Code.DEADLINE_IN_THE_PAST,
                Code.IDEMPOTENCY_CONFLICT,
            ),
        ),
        Endpoint(
            "POST",
            "/v1/tasks/batch",
            "submit_batch",
            "Submit many tasks, each decided by itself",
            SUBMITTERS,
            tasks.submit_batch,
            BatchReply,
            body=TaskBatch,
            body_size=Size.BATCH,
            gate=application_gate,
            request_headers={TRACEPARENT_HEADER: "Of the tasks that name no trace."},
            codes=(
                Code.PAYLOAD_TOO_LARGE,
                Code.UNKNOWN_TASK_TYPE,
                Code.DEADLINE_IN_THE_PAST,
                Code.IDEMPOTENCY_CONFLICT,
            ),
        ),
        Endpoint(
            "POST",
            "/v1/nodes/{node_id}/reports",
            "report",
            "Report about attempts",
            EXECUTORS,
            nodes.report,
            ReportReplies,
            body=Reports,
            body_size=Size.BATCH,
            gate=executor_gate,
            codes=(
                Code.UNKNOWN_NODE,
                Code.PAYLOAD_TOO_LARGE,
                Code.IDEMPOTENCY_CONFLICT,
                Code.NOT_CURRENT,
                Code.STALE_TOKEN,
                Code.WRONG_NODE,
                Code.LEASE_EXPIRED,
                Code.WRONG_STATE,
                Code.ALREADY_DELIVERED,
                Code.CANCEL_REQUESTED,
                Code.UNKNOWN_ATTEMPT,
                Code.NODE_GONE,
            ),
        ),
        Endpoint(
            "POST",
            "/v1/nodes/{node_id}/renewals",
            "renew",
            "Renew leases; also the heartbeat",
            EXECUTORS,
            nodes.renew,
            RenewalReplies,
            body=Renewals,
            body_size=Size.BATCH,
            gate=executor_gate,
            codes=(
                Code.UNKNOWN_NODE,
                Code.NOT_CURRENT,
                Code.STALE_TOKEN,
                Code.WRONG_NODE,
                Code.LEASE_EXPIRED,
                Code.WRONG_STATE,
                Code.UNKNOWN_ATTEMPT,
                Code.NODE_GONE,
            ),
        ),
        Endpoint(
            "POST",
            "/v1/nodes/{node_id}/progress",
            "progress",
            "Say how far attempts are, and save what the next one may go on from",
            EXECUTORS,
            handlers.progress.record,
            ProgressReplies,
            body=ProgressReports,
            body_size=Size.BATCH,
            gate=executor_gate,
            codes=(
                Code.UNKNOWN_NODE,
                Code.UNKNOWN_ATTEMPT,
                Code.WRONG_NODE,
                Code.STALE_TOKEN,
                Code.NOT_CURRENT,
                Code.WRONG_STATE,
                Code.LEASE_EXPIRED,
                Code.AUTHORITY_UNCONFIRMED,
                Code.INVALID_CHARACTER,
            ),
        ),
        Endpoint(
            "GET",
            "/v1/tasks/{task_id}/result",
            "result",
            "Read or wait for the result of a task",
            READERS,
            tasks.result,
            TaskResult,
            query=WaitQuery,
            codes=(Code.NOT_FOUND, Code.OVERLOADED, *NEVER_TAKEN_IN),
        ),
        Endpoint(
            "GET",
            "/v1/tasks/{task_id}",
            "task",
            "Read a task with its whole timeline",
            READERS,
            tasks.task,
            TaskView,
            codes=(Code.NOT_FOUND, *NEVER_TAKEN_IN),
        ),
        Endpoint(
            "GET",
            "/v1/tasks",
            "list_tasks",
            "List tasks, newest first",
            READERS,
            tasks.list_tasks,
            TaskList,
            query=TaskListQuery,
        ),
        Endpoint(
            "POST",
            "/v1/tasks/{task_id}/cancel",
            "cancel",
            "Cancel a task",
            SUBMITTERS,
            tasks.cancel,
            CancelReply,
            body=Nothing,
            gate=application_gate,
            codes=(Code.NOT_FOUND, *NEVER_TAKEN_IN),
        ),
        Endpoint(
            "GET",
            "/v1/streams/{entity_type}/{entity_id}",
            "stream",
            "Read the events of a task, an attempt or an incarnation of a node",
            EVERY_ROLE,
            tasks.stream,
            StreamView,
            query=StreamQuery,
            codes=(Code.NOT_FOUND, Code.EVENTS_REMOVED, *NEVER_TAKEN_IN),
        ),
        Endpoint(
            "GET",
            "/v1/identity",
            "identity",
            "See who a token stands for",
            EVERY_ROLE,
            operators.identity,
            IdentityView,
        ),
        Endpoint(
            "GET",
            "/v1/nodes",
            "list_nodes",
            "List nodes",
            READERS,
            operators.nodes,
            NodeList,
        ),
        Endpoint(
            "GET",
            "/v1/intake",
            "list_intake",
            "List what was enqueued in transactions, newest first",
            READERS,
            operators.intake,
            IntakeList,
            query=IntakeQuery,
        ),
        Endpoint(
            "POST",
            "/v1/intake/retry",
            "retry_intake",
            "Let what was enqueued and refused be decided anew",
            frozenset({Role.OPERATOR}),
            operators.retry_intake,
            IntakeRetried,
            body=IntakeRetry,
            gate=application_gate,
        ),
        Endpoint(
            "GET",
            "/v1/outbox",
            "outbox",
            "See how far publishing is behind",
            frozenset({Role.OPERATOR, Role.READ_ONLY}),
            operators.outbox,
            OutboxStatus,
        ),
        Endpoint(
            "POST",
            "/v1/nodes",
            "register",
            "Register an incarnation of a node",
            EXECUTORS,
            nodes.register,
            RegistrationReply,
            body=Registration,
            body_size=Size.BATCH,
            gate=executor_gate,
            codes=(
                Code.UNSUPPORTED_PROTOCOL,
                Code.IDEMPOTENCY_CONFLICT,
                Code.PAYLOAD_TOO_LARGE,
                Code.NODE_GONE,
                Code.UNKNOWN_NODE,
            ),
        ),
        Endpoint(
            "GET",
            "/v1/nodes/{node_id}/assignments",
            "assignments",
            "Read the attempts of an incarnation that have not ended",
            EXECUTORS,
            nodes.assignments,
            Assignments,
            query=IncarnationQuery,
            codes=(Code.UNKNOWN_NODE,),
        ),
        Endpoint(
            "POST",
            "/v1/nodes/{node_id}/drain",
            "drain",
            "Give an incarnation nothing new, or record that it is gone",
            EXECUTORS | {Role.OPERATOR},
            nodes.drain,
            Nothing,
            body=DrainRequest,
            gate=executor_gate,
            codes=(Code.UNKNOWN_NODE, Code.NODE_GONE),
        ),
        *lease_endpoints(handlers.leases, application_gate),
        *scheduling_endpoints(handlers.scheduling, handlers.programs, gate=application_gate),
        *bulk_endpoints(handlers.bulk, gate=application_gate),
        *intervention_endpoints(handlers.interventions, application_gate),
        *flow_endpoints(handlers.flow, gate=application_gate),
        *subscription_endpoints(handlers.subscriptions, gate=application_gate),
        *dead_letter_endpoints(handlers.dead_letters, gate=application_gate),
        *topology_endpoints(handlers.topology, gate=application_gate),
        *parking_endpoints(handlers.parking, gate=application_gate),
        *retention_endpoints(handlers.retention, gate=application_gate),
        *limit_endpoints(handlers.limits, gate=application_gate),
        *replay_endpoints(handlers.replays, gate=application_gate),
    )


def application(handlers: Handlers, entrance: Entrance, table: Sequence[Endpoint]) -> Starlette:
    """The ASGI application."""
    openapi = document(table)

    async def describe(_: Request) -> Response:
        return JSONResponse(openapi)

    pages: dict[str, Plain] = {
        "healthz": handlers.healthz,
        "readyz": handlers.readyz,
        "metrics": handlers.metrics,
        "openapi": describe,
    }
    return Starlette(
        routes=[
            *(entrance.route(endpoint) for endpoint in table),
            *(Route(page.path, pages[page.name], methods=["GET"]) for page in PAGES),
        ],
        exception_handlers={HTTPException: _routing_problem},
    )


def _methods(request: Request) -> set[str]:
    """What is possible on a path: the methods of all its routes."""
    return {
        method
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


async def _routing_problem(request: Request, error: Exception) -> Response:
    """No such path, or no such method on it."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        return response_of(
            RequestRefused(
                Code.METHOD_NOT_ALLOWED,
                f"{request.method} is not possible on {request.url.path!r}.",
                headers={"Allow": ", ".join(sorted(_methods(request)))},
            )
        )
    return response_of(
        RequestRefused(
            Code.NOT_FOUND,
            f"There is nothing at {request.url.path!r}.",
            next_step="See /openapi.json for what there is.",
        )
    )
