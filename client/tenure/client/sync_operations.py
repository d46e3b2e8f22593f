"""What operators ask and order, of the client whose threads wait."""

from datetime import datetime
from typing import Any, Literal

from tenure.client import calls
from tenure.client.http import Http
from tenure.contract.broker_report import TopologyRepair, TopologyReport
from tenure.contract.bulk import BulkReply, BulkRequest
from tenure.contract.dead_letters import (
    DeadLetterDetail,
    DeadLetterList,
    DeadLetterState,
    Settling,
)
from tenure.contract.flow import PauseList, PauseRequest, Resumed, ResumeRequest
from tenure.contract.limits import LimitChange, LimitList, LimitRemoval, LimitRemoved
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
    RenewalList,
    ReviewClosing,
    ReviewList,
    RevocationRequest,
    Revoked,
)
from tenure.contract.parking import (
    ParkedAsked,
    ParkedDetail,
    ParkedList,
    ParkedReason,
    ParkedRetry,
    ParkedSkip,
    ParkedState,
)
from tenure.contract.replay import (
    ReplayDetail,
    ReplayList,
    ReplayOrder,
    ReplayReply,
    ReplayRequest,
    ReplayResume,
)
from tenure.contract.reports import Resources
from tenure.contract.retention import (
    RetentionChange,
    RetentionPlan,
    RetentionRun,
    RetentionRunRequest,
    RetentionView,
)
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
)
from tenure.contract.scope import Scope
from tenure.contract.subscriptions import (
    Audience,
    Subscribed,
    SubscriptionList,
    SubscriptionRequest,
    Unsubscribed,
)
from tenure.contract.tasks import IntakeList, IntakeRetried, NodeList, OutboxStatus
from tenure.contract.tasktype import TaskType, named


class Operations:
    """Nodes, policies, tenants, limits, pauses, subscriptions, the log and what is kept. The roles
    that may call a method are those of its route (docs/wire.md).

    Every method raises Refused, Unreachable and UnreadableReply (see ``tenure.client.errors``).
    """

    _http: Http

    def nodes(self) -> NodeList:
        """The executors' processes that the coordinator knows."""
        return self._http.run(calls.read("/v1/nodes", NodeList, {}))

    def intake(
        self, *, state: str | None = None, limit: int | None = None, after: int | None = None
    ) -> IntakeList:
        """One page of what was enqueued in transactions, newest first; its ``next`` is the
        ``after`` of the following page."""
        return self._http.run(calls.intake(state=state, limit=limit, after=after))

    def retry_intake(
        self, *, code: str | None = None, type_name: str | None = None
    ) -> IntakeRetried:
        """Let refused rows be decided anew, of one code or type or all: for operators."""
        return self._http.run(calls.retry_intake(code=code, type_name=type_name))

    def policies(self) -> PolicyHistory:
        """Versions of the lease policy, the one in force first."""
        return self._http.run(calls.read("/v1/policies", PolicyHistory, {}))

    def set_policy(self, change: PolicyChange) -> PolicyView:
        """Set the policy for what is granted from now on: for operators."""
        return self._http.run(calls.send("/v1/policies", change, PolicyView))

    def explain(
        self,
        task_type: TaskType[Any, Any] | str,
        input: Any = None,
        *,
        priority: int = 0,
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        resources: Resources | None = None,
        concurrency_key: str | None = None,
        scope: Scope | None = None,
    ) -> Explained:
        """What would become of a submission: which nodes could take it, which filter excludes the
        others, and its turn. Refused as the submission would be; nothing is recorded."""
        task = calls.submission(
            *((task_type, input) if isinstance(task_type, str) else named(task_type, input)),
            idempotency_key=None,
            priority=priority,
            not_before=not_before,
            deadline=deadline,
            resources=resources,
            concurrency_key=concurrency_key,
            scope=scope,
        )
        return self._http.run(calls.explain(task))

    def backlog(self) -> Backlog:
        """Why each kind of waiting tasks is not running."""
        return self._http.run(calls.read("/v1/backlog", Backlog, {}))

    def profiles(self, *, type_name: str | None = None) -> ProfileList:
        """Workload profiles, newest first."""
        query = {"type": type_name}
        return self._http.run(calls.read("/v1/profiles", ProfileList, query))

    def push_profiles(self, request: ProfilePush) -> ProfileList:
        """Register profiles before any node runs them: for operators."""
        return self._http.run(calls.send("/v1/profiles", request, ProfileList))

    def executables(self) -> ExecutableList:
        """The programs that nodes run or ran."""
        return self._http.run(calls.read("/v1/executables", ExecutableList, {}))

    def set_executable(
        self, digest: str, state: Literal["registered", "withdrawn"]
    ) -> ExecutableView:
        """Withdraw a program, so that its nodes are given nothing, or register it again."""
        change = ExecutableChange(state=state)
        path = calls.executable_path(digest)
        return self._http.run(calls.change(path, change, ExecutableView))

    def tenants(self) -> TenantList:
        """What is stated about tenants: of all for who runs the platform, else of one's own."""
        return self._http.run(calls.read("/v1/tenants", TenantList, {}))

    def tenant(self, tenant: str) -> TenantView:
        """What is stated about a tenant."""
        return self._http.run(calls.read(calls.tenant_path(tenant), TenantView, {}))

    def set_tenant(self, tenant: str, change: TenantChange) -> TenantView:
        """State what a tenant may use; what is not set in ``change`` stays."""
        return self._http.run(calls.change(calls.tenant_path(tenant), change, TenantView))

    def node(self, node_id: str) -> NodeDetail:
        """One node, and what is stated about it."""
        return self._http.run(calls.read(calls.node_path(node_id), NodeDetail, {}))

    def set_node_facts(self, node_id: str, change: NodeFactsChange) -> NodeDetail:
        """State facts about a node; what is not set in ``change`` stays."""
        path = calls.node_path(node_id, "/facts")
        return self._http.run(calls.change(path, change, NodeDetail))

    def renewals(self, task_id: str) -> RenewalList:
        """Renewals of a task's leases, newest first."""
        path = calls.task_path(task_id, "/renewals")
        return self._http.run(calls.read(path, RenewalList, {}))

    def revoke(self, task_id: str, revocation: RevocationRequest) -> Revoked:
        """Take the authority of an attempt away before its time: for operators."""
        path = calls.task_path(task_id, "/revoke")
        return self._http.run(calls.send(path, revocation, Revoked))

    def quarantine(self, node_id: str, quarantine: QuarantineRequest) -> Quarantined:
        """Take a node out of service and revoke what it has: for operators."""
        path = calls.node_path(node_id, "/quarantine")
        return self._http.run(calls.send(path, quarantine, Quarantined))

    def reviews(self, node_id: str) -> ReviewList:
        """Health reviews of a node, newest first."""
        path = calls.node_path(node_id, "/reviews")
        return self._http.run(calls.read(path, ReviewList, {}))

    def close_review(self, node_id: str, closing: ReviewClosing) -> ReviewList:
        """Close the health review of a node that somebody has looked at: for operators."""
        path = calls.node_path(node_id, "/reviews/close")
        return self._http.run(calls.send(path, closing, ReviewList))

    def drain_node(self, node_id: str, incarnation: str) -> None:
        """Give a start of a node nothing new; what it runs goes on: for operators. Asked again it
        changes nothing."""
        self._http.run(calls.drain_node(node_id, incarnation))

    def release_node(self, node_id: str) -> None:
        """Let a quarantined node back: for operators."""
        self._http.run(calls.release_node(node_id))

    def authority(self) -> AuthorityView:
        """The authority, its epochs, and whether it grants: for operators."""
        return self._http.run(calls.read("/v1/authority", AuthorityView, {}))

    def recover(self, recovery: Recovery) -> Recovered:
        """Make the database, as it is, the authority from now on: for operators.

        Raises Refused, with `recovery_too_early` while its epoch might be another recovery's.
        """
        return self._http.run(calls.send("/v1/authority/recover", recovery, Recovered))

    def present_evidence(self, evidence: Evidence) -> EvidenceJudged:
        """Present what a receiver or consumer has seen. Above the stored it proves lost history."""
        return self._http.run(calls.send("/v1/authority/evidence", evidence, EvidenceJudged))

    def bulk(self, request: BulkRequest) -> BulkReply:
        """One word about the next tasks that match, or how many match: for operators. The reply's
        ``next`` goes into the ``after`` of the following request."""
        return self._http.run(calls.send("/v1/tasks/bulk", request, BulkReply))

    def limits(self) -> LimitList:
        """Limits and what counts under them now."""
        return self._http.run(calls.read("/v1/limits", LimitList, {}))

    def set_limit(self, change: LimitChange) -> LimitList:
        """Limit how many tasks run at once, or start in a time: for operators."""
        return self._http.run(calls.send("/v1/limits", change, LimitList))

    def remove_limit(self, scope: LimitRemoval) -> LimitRemoved:
        """Take a limit back: for operators."""
        return self._http.run(calls.send("/v1/limits/remove", scope, LimitRemoved))

    def pauses(self) -> PauseList:
        """What is paused now."""
        return self._http.run(calls.read("/v1/pauses", PauseList, {}))

    def pause(self, pause: PauseRequest) -> PauseList:
        """Let nothing of a scope begin any more; what runs goes on: for operators."""
        return self._http.run(calls.send("/v1/pauses", pause, PauseList))

    def resume(self, scope: ResumeRequest) -> Resumed:
        """Let a paused scope begin again: for operators."""
        return self._http.run(calls.send("/v1/pauses/resume", scope, Resumed))

    def subscriptions(self) -> SubscriptionList:
        """Which events reach which queues."""
        return self._http.run(calls.read("/v1/subscriptions", SubscriptionList, {}))

    def subscribe(self, subscription: SubscriptionRequest) -> Subscribed:
        """Let events reach a queue from now on, or change which: for operators."""
        return self._http.run(calls.send("/v1/subscriptions", subscription, Subscribed))

    def unsubscribe(self, which: Audience) -> Unsubscribed:
        """End a subscription; its queue goes with what is in it: for operators."""
        return self._http.run(calls.send("/v1/subscriptions/remove", which, Unsubscribed))

    def dead_letters(
        self,
        *,
        state: DeadLetterState | None = None,
        queue: str | None = None,
        limit: int | None = None,
        after: int | None = None,
    ) -> DeadLetterList:
        """Messages that queues gave up, newest first."""
        page = calls.dead_letters(state=state, queue=queue, limit=limit, after=after)
        return self._http.run(page)

    def dead_letter(self, dead_letter_id: int) -> DeadLetterDetail:
        """A message that a queue gave up, with its body."""
        path = calls.dead_letter_path(dead_letter_id)
        return self._http.run(calls.read(path, DeadLetterDetail, {}))

    def redrive(self, dead_letter_id: int, settling: Settling) -> DeadLetterDetail:
        """Send it to its queue again, the same bytes under the same event id: for operators."""
        path = calls.dead_letter_path(dead_letter_id, "/redrive")
        return self._http.run(calls.send(path, settling, DeadLetterDetail))

    def discard(self, dead_letter_id: int, settling: Settling) -> DeadLetterDetail:
        """Decide that it is not needed: for operators."""
        path = calls.dead_letter_path(dead_letter_id, "/discard")
        return self._http.run(calls.send(path, settling, DeadLetterDetail))

    def retention(self) -> RetentionView:
        """How long what has ended is kept, and how far removal has come: for operators."""
        return self._http.run(calls.read("/v1/retention", RetentionView, {}))

    def set_retention(self, change: RetentionChange) -> RetentionView:
        """Set how long what has ended is kept: for operators."""
        return self._http.run(calls.send("/v1/retention", change, RetentionView))

    def retention_plan(self) -> RetentionPlan:
        """What a run would remove; changes nothing: for operators."""
        return self._http.run(calls.read("/v1/retention/plan", RetentionPlan, {}))

    def run_retention(self, request: RetentionRunRequest) -> RetentionRun:
        """Remove for about a second what is older than it is kept: for operators."""
        return self._http.run(calls.send("/v1/retention/run", request, RetentionRun))

    def parked(
        self,
        *,
        state: ParkedState | None = None,
        reason: ParkedReason | None = None,
        limit: int | None = None,
        after: int | None = None,
    ) -> ParkedList:
        """Messages that could not be published and are parked, oldest first."""
        page = calls.parked(state=state, reason=reason, limit=limit, after=after)
        return self._http.run(page)

    def parked_message(self, position: int) -> ParkedDetail:
        """A parked message with its body, and what was asked about it."""
        path = f"/v1/outbox/parked/{position}"
        return self._http.run(calls.read(path, ParkedDetail, {}))

    def retry_parked(self, request: ParkedRetry) -> ParkedAsked:
        """Have parked messages tried again now: for operators."""
        return self._http.run(calls.send("/v1/outbox/parked/retry", request, ParkedAsked))

    def skip_parked(self, request: ParkedSkip) -> ParkedAsked:
        """Have parked messages never published: for operators."""
        return self._http.run(calls.send("/v1/outbox/parked/skip", request, ParkedAsked))

    def topology(self) -> TopologyReport:
        """What is on the broker beside what must be there."""
        return self._http.run(calls.read("/v1/topology", TopologyReport, {}))

    def apply_topology(self, repair: TopologyRepair) -> TopologyReport:
        """Declare what is missing on the broker, and replace what is named: for operators."""
        return self._http.run(calls.send("/v1/topology/apply", repair, TopologyReport))

    def outbox(self) -> OutboxStatus:
        """How far publishing is behind the log."""
        return self._http.run(calls.read("/v1/outbox", OutboxStatus, {}))

    def replay(self, request: ReplayRequest) -> ReplayReply:
        """Publish rows of the log once more, to one queue, or say what that would be: for
        operators."""
        return self._http.run(calls.replay(request))

    def replays(
        self, *, state: str | None = None, limit: int | None = None, after: str | None = None
    ) -> ReplayList:
        """One page of replays, newest first; its ``next`` is the ``after`` of the following."""
        return self._http.run(calls.replays(state=state, limit=limit, after=after))

    def replay_detail(self, replay_id: str) -> ReplayDetail:
        """One replay and its history."""
        return self._http.run(calls.replay_detail(replay_id))

    def pause_replay(self, replay_id: str, *, reason: str) -> ReplayDetail:
        """Let a replay stand where it is: for operators."""
        return self._http.run(calls.change_replay(replay_id, "pause", ReplayOrder(reason=reason)))

    def resume_replay(self, replay_id: str, *, reason: str, force: bool = False) -> ReplayDetail:
        """Let a paused replay go on: for operators. ``force``: also with what consumers may have
        forgotten to know."""
        order = ReplayResume(reason=reason, force=force)
        return self._http.run(calls.change_replay(replay_id, "resume", order))

    def cancel_replay(self, replay_id: str, *, reason: str) -> ReplayDetail:
        """End a replay for good; what was published stays published: for operators."""
        return self._http.run(calls.change_replay(replay_id, "cancel", ReplayOrder(reason=reason)))
