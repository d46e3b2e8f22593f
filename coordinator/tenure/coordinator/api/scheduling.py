"""What operators state about tenants and nodes, and how the scheduler explains itself."""

from tenure.contract.codes import Code
from tenure.contract.ids import DEFAULT_TENANT, NODE_PATTERN, TENANT_PATTERN, TaskId, TenantId
from tenure.contract.scheduling import (
    Explanation,
    FilterView,
    MissView,
    NodeFactsChange,
    TenantChange,
    TenantList,
    Why,
)
from tenure.contract.states import Match, phase_of
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.api.syntax import is_uuid
from tenure.coordinator.core import explanation
from tenure.coordinator.core.rows import TaskRow
from tenure.coordinator.errors import InvalidRequest, RequestRefused
from tenure.coordinator.identities import Identity
from tenure.coordinator.policies import Policies
from tenure.coordinator.store.scheduling import SchedulingReads


class Scheduling:
    """Handlers of ``/v1/tenants``, of facts about nodes, and of ``why``."""

    def __init__(self, reads: SchedulingReads, policies: Policies) -> None:
        self._reads = reads
        self._policies = policies

    async def why(self, call: Call) -> Answer:
        """Why a task is where it is."""
        task_id = call.path("task_id").lower()
        tenant = call.identity.tenant
        found = await self._reads.judged_task(tenant, task_id) if is_uuid(task_id) else None
        if found is None:
            raise RequestRefused(Code.NOT_FOUND, f"There is no task {task_id!r}.")
        explained = explanation.explain(
            found.task,
            found.attempt,
            await self._reads.judged_nodes(tenant),
            found.tenant,
            found.now,
            self._policies.in_force.node_silence_microseconds,
        )
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
                explanation=explanation_view(task, explained),
            )
        )

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
