"""What executors ask: register an incarnation, report, renew, read assignments, drain."""

from collections.abc import Awaitable, Callable
from typing import Annotated
from uuid import uuid4

from pydantic import Field

from tenure.contract.codec import parse_json
from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.contract.ids import NODE_PATTERN, CommandId, IncarnationId, NodeId, TenantId
from tenure.contract.reports import (
    PROTOCOL_VERSIONS,
    Assignments,
    DrainRequest,
    Frozen,
    LeaseTerms,
    Registration,
    RegistrationReply,
    RenewalReplies,
    Renewals,
    ReportReplies,
    ReportReply,
    Reports,
)
from tenure.contract.states import NodeState
from tenure.contract.topology import events_exchange, node_queue
from tenure.coordinator.admission import Admission
from tenure.coordinator.api import wire
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.api.problems import problem_of
from tenure.coordinator.api.reading import Query, read_items, read_model
from tenure.coordinator.api.syntax import UUID_PATTERN, is_uuid
from tenure.coordinator.core.commands import AttemptCommand, CloseReview
from tenure.coordinator.core.decisions import Outcome
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.errors import InvalidRequest, RequestRefused
from tenure.coordinator.news import MAX_NEWS_WAIT_SECONDS, News, version_of
from tenure.coordinator.policies import Policies
from tenure.coordinator.store.reads import Reads
from tenure.coordinator.store.views import KnownIncarnation


class Nothing(Frozen):
    """An answer that says only that it was done: ``{}``."""


class IncarnationQuery(Query):
    """Which start of the node's process asks, and how long it waits for news, in seconds: ``seen``
    is the ``version`` of the list that it knows."""

    incarnation: Annotated[str, Field(pattern=UUID_PATTERN)]
    wait: float = Field(default=0.0, ge=0, le=MAX_NEWS_WAIT_SECONDS)
    seen: str | None = Field(default=None, max_length=64)


class Executors:
    """Handlers of ``/v1/nodes`` that executors use."""

    def __init__(
        self,
        *,
        admission: Admission,
        reads: Reads,
        declare_queue: Callable[[str], Awaitable[None]],
        policies: Policies,
        name_prefix: str,
        payload_limit_bytes: int,
        news: News,
    ) -> None:
        """``declare_queue`` waits for the broker no longer than a moment, and never raises."""
        self._admission = admission
        self._reads = reads
        self._declare_queue = declare_queue
        self._policies = policies
        self._name_prefix = name_prefix
        self._payload_limit_bytes = payload_limit_bytes
        self._news = news

    async def register(self, call: Call) -> Answer:
        """An incarnation. The queue follows later when the broker is away."""
        body = await call.body()
        _check_protocol(parse_json(body))
        request = read_model(body, Registration)
        incarnation = IncarnationId(request.incarnation)
        queue = ""
        if request.queue:
            queue = node_queue(call.identity.tenant, incarnation, self._name_prefix)
        command = wire.registration(
            request,
            queue=queue,
            identity=call.identity,
            schema_limit_bytes=self._payload_limit_bytes,
        )
        outcome = await self._admission.register(command)
        wire.applied(outcome)
        if outcome.replayed:
            known = await self._known(call.identity.tenant, command.node_id, incarnation)
            if known.state is NodeState.GONE:
                raise RequestRefused(Code.NODE_GONE, f"The incarnation {incarnation} has ended.")
        if queue:
            await self._declare_queue(queue)
        return Answer(
            RegistrationReply(
                node_id=command.node_id,
                incarnation=incarnation,
                queue=queue,
                events_exchange=events_exchange(self._name_prefix),
                lease=_terms(self._policies.in_force),
            )
        )

    async def report(self, call: Call) -> Answer:
        """A batch of reports; one that is wrong refuses itself only."""
        node_id = node_id_of(call)
        items = read_items(await call.body(), Reports, "reports")
        faults: dict[int, ReportReply] = {
            index: wire.refused_report(
                _report_id(items.raw[index], fault), fault.code, fault.message
            )
            for index, fault in items.faults.items()
        }
        reports = items.batch.reports if items.batch else ()
        commands: dict[int, AttemptCommand] = {}
        report_ids: dict[int, str] = {}
        number = len(reports) + len(faults)
        good = iter(reports)
        for index in range(number):
            if index in faults or items.batch is None:
                continue
            report = next(good)
            report_ids[index] = report.report_id
            try:
                commands[index] = wire.report(
                    report,
                    node_id=node_id,
                    incarnation=IncarnationId(items.batch.incarnation),
                    identity=call.identity,
                    payload_limit_bytes=self._payload_limit_bytes,
                )
            except TenureError as error:
                details = problem_of(error)
                faults[index] = wire.refused_report(report.report_id, details.code, details.detail)
        replies = dict(faults)
        if commands:
            outcomes = await self._admission.report(list(commands.values()))
            for index, outcome in zip(commands, outcomes, strict=True):
                reply = wire.report_reply(report_ids[index], outcome)
                replies[index] = await self._with_terms(reply, outcome)
        return Answer(
            ReportReplies(replies=tuple(replies[index] for index in range(number))),
            exclude_none=True,
        )

    async def _with_terms(self, reply: ReportReply, outcome: Outcome) -> ReportReply:
        """The terms that the lease was granted under, where the reply speaks of a lease."""
        if outcome.reply is None or outcome.reply.policy_version is None:
            return reply
        policy = await self._policies.of_version(outcome.reply.policy_version)
        return reply.model_copy(update={"lease": _terms(policy)})

    async def renew(self, call: Call) -> Answer:
        """Renewals of a node's leases, and its heartbeat."""
        node_id = node_id_of(call)
        request = read_model(await call.body(), Renewals)
        incarnation = IncarnationId(request.incarnation)
        known = await self._known(call.identity.tenant, node_id, incarnation)
        outcomes = await self._admission.renew(
            [
                wire.renewal(
                    lease,
                    command_id=CommandId(str(uuid4())),
                    node_id=node_id,
                    incarnation=incarnation,
                    identity=call.identity,
                )
                for lease in request.leases
            ],
            seen=incarnation,
        )
        if known.under_review:
            await self._admission.review(
                CloseReview(
                    command_id=CommandId(str(uuid4())),
                    fingerprint=b"",
                    tenant=call.identity.tenant,
                    actor=call.identity.name,
                    node_id=node_id,
                    incarnation=incarnation,
                    message=None,
                )
            )
        return Answer(
            RenewalReplies(
                node_state=known.state,
                lease=_terms(self._policies.in_force),
                replies=tuple(
                    wire.renewal_reply(lease.attempt_id, outcome)
                    for lease, outcome in zip(request.leases, outcomes, strict=True)
                ),
            ),
            exclude_none=True,
        )

    async def assignments(self, call: Call) -> Answer:
        """Attempts of the incarnation that have not ended: what notifications may have lost, or
        what a node without a broker waits for."""
        query = call.query(IncarnationQuery)
        incarnation = IncarnationId(query.incarnation)
        await self._known(call.identity.tenant, node_id_of(call), incarnation)

        async def read() -> Assignments:
            listed = await self._reads.assignments(call.identity.tenant, incarnation)
            return Assignments(assignments=listed, version=version_of(listed))

        return Answer(
            await self._news.await_change(
                incarnation, read, seen=query.seen, wait_seconds=query.wait
            )
        )

    async def drain(self, call: Call) -> Answer:
        """Nothing new for an incarnation; with ``gone``, its process ends."""
        node_id = node_id_of(call)
        request = read_model(await call.body(), DrainRequest)
        command = wire.node_change(
            node_id,
            IncarnationId(request.incarnation),
            NodeState.GONE if request.gone else NodeState.DRAINING,
            command_id=CommandId(str(uuid4())),
            identity=call.identity,
        )
        wire.applied(await self._admission.change_node(command))
        return Answer(Nothing())

    async def _known(
        self, tenant: TenantId, node_id: NodeId, incarnation: IncarnationId
    ) -> KnownIncarnation:
        known = await self._reads.incarnation(tenant, incarnation)
        if known is None or known.node_id != node_id:
            raise RequestRefused(
                Code.UNKNOWN_NODE, f"There is no incarnation {incarnation} of {node_id!r}."
            )
        return known


def _terms(policy: LeasePolicy) -> LeaseTerms:
    return LeaseTerms(
        duration_seconds=policy.lease_microseconds / 1_000_000,
        renewal_interval_seconds=policy.renewal_interval_microseconds / 1_000_000,
        clock_tolerance_seconds=policy.clock_tolerance_microseconds / 1_000_000,
        policy_version=policy.version,
    )


def _check_protocol(value: object) -> None:
    """Before anything else: another version may have other fields."""
    version = value.get("protocol_version") if isinstance(value, dict) else None
    lowest, highest = PROTOCOL_VERSIONS
    if isinstance(version, int) and not lowest <= version <= highest:
        raise RequestRefused(
            Code.UNSUPPORTED_PROTOCOL,
            f"Protocol version {version} is not supported; this coordinator speaks"
            f" {lowest} to {highest}.",
        )


def node_id_of(call: Call) -> NodeId:
    """The node that the path names. Raises RequestRefused for what is no name."""
    node_id = call.path("node_id")
    if not NODE_PATTERN.fullmatch(node_id):
        raise RequestRefused(Code.UNKNOWN_NODE, f"There is no node {node_id!r}.")
    return NodeId(node_id)


def _report_id(raw: object, fault: InvalidRequest) -> str:
    """Under which id a wrong report is answered. Without one the whole request is refused."""
    report_id = raw.get("report_id") if isinstance(raw, dict) else None
    if not isinstance(report_id, str) or not is_uuid(report_id):
        raise fault
    return report_id
