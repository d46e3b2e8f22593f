"""What operators state about tenants and nodes, and how the scheduler explains itself."""

from collections.abc import Sequence
from dataclasses import replace

from tenure.contract.codes import Code
from tenure.contract.flow import PauseView
from tenure.contract.ids import (
    DEFAULT_TENANT,
    NODE_PATTERN,
    TENANT_PATTERN,
    CommandId,
    EventId,
    TaskId,
    TenantId,
)
from tenure.contract.limits import ReachedLimit
from tenure.contract.scheduling import (
    Backlog,
    BacklogGroup,
    Explained,
    Explanation,
    FilterView,
    MissView,
    NodeFactsChange,
    TenantChange,
    TenantList,
    Why,
)
from tenure.contract.states import AttemptState, LimitScope, Match, PauseScope, phase_of
from tenure.contract.tasks import TaskSubmission
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.api.syntax import is_uuid
from tenure.coordinator.core import explanation
from tenure.coordinator.core.decisions import Refused
from tenure.coordinator.core.fairness import head_start
from tenure.coordinator.core.limits import Reached
from tenure.coordinator.core.ranking import Kind, smallest
from tenure.coordinator.core.rows import ANY, IncarnationRow, PauseRow, TaskRow, TenantRow
from tenure.coordinator.core.snapshot import Minted, Snapshot
from tenure.coordinator.core.task import submit
from tenure.coordinator.errors import InvalidRequest, RequestRefused
from tenure.coordinator.identities import Identity
from tenure.coordinator.policies import Policies
from tenure.coordinator.store.rows import optional_datetime, to_datetime
from tenure.coordinator.store.scheduling import SchedulingReads
from tenure.coordinator.submission import submission


class Scheduling:
    """Handlers of ``/v1/tenants``, of facts about nodes, and of ``why``."""

    def __init__(
        self, reads: SchedulingReads, policies: Policies, *, payload_limit_bytes: int
    ) -> None:
        self._reads = reads
        self._payload_limit_bytes = payload_limit_bytes
        self._policies = policies

    async def why(self, call: Call) -> Answer:
        """Why a task is where it is."""
        task_id = call.path("task_id").lower()
        tenant = call.identity.tenant
        found = await self._reads.judged_task(tenant, task_id) if is_uuid(task_id) else None
        if found is None:
            raise RequestRefused(Code.NOT_FOUND, f"There is no task {task_id!r}.")
        nodes = await self._reads.judged_nodes(tenant)
        task = found.task
        return Answer(
            Why(
                task_id=TaskId(task_id),
                type=task.type,
                state=task.state,
                phase=phase_of(task.state, found.attempt),
                reason=found.reason,
                since=found.since,
                not_before=found.not_before,
                deadline=found.deadline,
                node_id=found.node_id,
                position=found.position,
                explanation=self._explain(task, nodes, found.tenant, found.now, found.attempt),
            )
        )

    async def backlog(self, call: Call) -> Answer:
        """Everything that waits, in groups that are judged alike."""
        tenant = call.identity.tenant
        waiting, not_before = await self._reads.waiting_counts(tenant)
        nodes = await self._reads.judged_nodes(tenant)
        groups = [
            BacklogGroup(
                type=one.task.type,
                tasks=one.tasks,
                oldest=one.oldest,
                example_task_id=one.task.task_id,
                cpu_millis=one.task.resources.cpu_millis,
                memory_bytes=one.task.resources.memory_bytes,
                explanation=self._explain(one.task, nodes, one.tenant, one.now),
            )
            for one in await self._reads.backlog(tenant)
        ]
        return Answer(Backlog(waiting=waiting, not_before=not_before, groups=tuple(groups)))

    async def explain(self, call: Call) -> Answer:
        """What would become of a submission. Refused as that would be; records nothing."""
        request = read_model(await call.body(), TaskSubmission)
        command = submission(
            request,
            task_id=TaskId(""),
            fallback_id=CommandId(""),
            key=None,
            identity=call.identity,
            payload_limit_bytes=self._payload_limit_bytes,
        )
        tenant = call.identity.tenant
        found = await self._reads.declared(
            tenant, command.type, head_start(command.priority), command.concurrency_key
        )
        snapshot = Snapshot(epoch=1, task_type=found.task_type)
        decision = submit(command, snapshot, found.now, Minted((EventId(""),), 0.0))
        if isinstance(decision, Refused):
            raise RequestRefused(decision.code, decision.message)
        if found.profile is None:
            raise AssertionError("a type that is declared has a profile")
        task = replace(
            smallest(Kind(tenant, found.profile)),
            not_before=command.not_before,
            deadline=command.deadline,
            resources=command.resources or found.profile.resources,
            concurrency_key=command.concurrency_key,
        )
        nodes = await self._reads.judged_nodes(tenant)
        return Answer(
            Explained(
                type=command.type,
                position=found.position,
                explanation=self._explain(task, nodes, found.tenant, found.now),
            )
        )

    def _explain(
        self,
        task: TaskRow,
        nodes: Sequence[IncarnationRow],
        tenant: TenantRow | None,
        now: int,
        attempt: AttemptState | None = None,
    ) -> Explanation:
        silence = self._policies.in_force.node_silence_microseconds
        found = explanation.explain(task, attempt, nodes, tenant, now, silence)
        return explanation_view(task, found)

    async def tenants(self, call: Call) -> Answer:
        """Every tenant for who runs the platform, else one's own."""
        own = None if _runs_the_platform(call.identity) else call.identity.tenant
        return Answer(TenantList(tenants=await self._reads.tenants(own)))

    async def tenant(self, call: Call) -> Answer:
        """What is stated about one tenant."""
        name = call.path("tenant")
        found = await self._reads.tenants(TenantId(name))
        if not found or not (_runs_the_platform(call.identity) or name == call.identity.tenant):
            raise RequestRefused(
                Code.NOT_FOUND,
                f"Nothing is stated about a tenant {name!r}.",
                next_step="State it with `tenure tenant set`.",
            )
        return Answer(found[0])

    async def set_tenant(self, call: Call) -> Answer:
        """State facts about a tenant. Nobody widens the limits of its own."""
        name = call.path("tenant")
        if not TENANT_PATTERN.fullmatch(name):
            raise InvalidRequest(
                f"{name!r} is no name of a tenant.",
                next_step="Use lower case letters, digits and '-', at most 63 characters.",
            )
        if not _runs_the_platform(call.identity):
            raise RequestRefused(
                Code.FORBIDDEN_ROLE,
                f"Limits of tenants are set by operators of the tenant {DEFAULT_TENANT!r}.",
            )
        request = read_model(await call.body(), TenantChange)
        change = request.model_dump(mode="json", exclude_unset=True)
        _check_budget(request)
        if change.get("budget_minor") is not None:
            change["budget_unlimited"] = False
        elif change.get("budget_unlimited"):
            change["budget_minor"] = None
        await self._reads.set_tenant(name, change, call.identity.name)
        return await self.tenant(call)

    async def node(self, call: Call) -> Answer:
        """One node, and what is stated about it."""
        name = call.path("node_id")
        found = await self._reads.node(call.identity.tenant, name)
        if found is None:
            raise RequestRefused(Code.NOT_FOUND, f"There is no node {name!r}.")
        return Answer(found)

    async def set_node_facts(self, call: Call) -> Answer:
        """State facts about a node of one's tenant."""
        name = call.path("node_id")
        if not NODE_PATTERN.fullmatch(name):
            raise InvalidRequest(f"{name!r} is no name of a node.")
        request = read_model(await call.body(), NodeFactsChange)
        change = request.model_dump(mode="json", exclude_unset=True)
        await self._reads.set_node_facts(call.identity.tenant, name, change, call.identity.name)
        return await self.node(call)


def explanation_view(task: TaskRow, found: explanation.Explanation) -> Explanation:
    """An explanation as people and programs read it."""
    return Explanation(
        standing=found.standing,
        nodes=found.nodes,
        unavailable={str(code): number for code, number in found.unavailable.items()},
        eligible=found.eligible,
        filters=tuple(
            FilterView(
                filter=verdict.filter,
                removed=verdict.removed,
                codes={str(code): number for code, number in verdict.codes.items()},
                nearest=None if verdict.nearest is None else _miss(verdict.nearest),
            )
            for verdict in found.verdicts
        ),
        profile_digest="" if task.profile is None else task.profile.digest,
        match=Match.COMPATIBLE if task.profile is None else task.profile.match,
        pauses=tuple(map(_pause, found.pauses)),
        limits=tuple(_reached(task, one) for one in found.limits),
    )


def _reached(task: TaskRow, found: Reached) -> ReachedLimit:
    limit = found.limit
    return ReachedLimit(
        scope=limit.scope,
        name=task.tenant if limit.scope is LimitScope.TENANT else limit.name,
        key=found.key or None,
        max_running=limit.max_running,
        running=found.running,
        next_start=optional_datetime(found.next_start),
    )


def _pause(pause: PauseRow) -> PauseView:
    everyone = pause.tenant == ANY
    return PauseView(
        scope=pause.scope,
        tenant=None if everyone else pause.tenant,
        name=pause.tenant if pause.scope is PauseScope.TENANT else pause.name,
        reason=pause.reason,
        until=optional_datetime(pause.until),
        paused_by=pause.paused_by,
        paused_at=to_datetime(pause.paused_at),
    )


def _miss(miss: explanation.Miss) -> MissView:
    return MissView(
        node_id=miss.node_id,
        incarnation=miss.incarnation,
        code=miss.excluded.code,
        wanted=miss.excluded.wanted,
        found=miss.excluded.found,
        other_filters=miss.others,
    )


def _check_budget(request: TenantChange) -> None:
    """Raises InvalidRequest for words on the budget that contradict each other."""
    stated = request.model_fields_set
    if request.currency is None and "currency" in stated and "budget_minor" not in stated:
        raise InvalidRequest("The currency is taken back together with the budget.")
    if request.budget_minor is None:
        return
    if request.budget_unlimited:
        raise InvalidRequest("budget_minor and budget_unlimited contradict each other.")
    if request.currency is None:
        raise InvalidRequest("A budget needs the currency that it is in.")


def _runs_the_platform(who: Identity) -> bool:
    """Whether somebody looks after all tenants: those of the default tenant do."""
    return who.tenant == DEFAULT_TENANT
