"""Every SELECT of the API, as the views of the contract. The statements are in ``queries/``.

All are bound to a tenant. What is not there, and what is another tenant's, is None alike.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from asyncpg import Record
from pydantic import TypeAdapter
from pydantic_core import from_json

from tenure.contract.codes import Code
from tenure.contract.ids import IncarnationId, NodeId, TaskId, TenantId
from tenure.contract.operations import (
    AuthorityView,
    EpochView,
    HeldAttempt,
    PresentedPosition,
    PresentedToken,
    RenewalList,
    RenewalView,
    ReviewList,
    ReviewView,
)
from tenure.contract.progress import ProgressView
from tenure.contract.reports import Assignment, Resources
from tenure.contract.scope import Scope
from tenure.contract.states import (
    EntityType,
    NodeState,
    Phase,
    RetentionKind,
    TaskState,
    phase_of,
)
from tenure.contract.tasks import (
    AttemptView,
    Erasure,
    IntakeEntry,
    IntakeList,
    NodeView,
    OutboxStatus,
    PartitionView,
    ReceiptContent,
    ReceiptView,
    ShardStatus,
    StreamView,
    TaskList,
    TaskResult,
    TaskSummary,
    TaskView,
)
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store import named_queries, views
from tenure.coordinator.store.policies import StoredPolicy, set_policy_arguments, stored_policy
from tenure.coordinator.store.reading import Reader
from tenure.coordinator.store.views import (
    BulkPage,
    Ended,
    Enqueued,
    KnownIncarnation,
    ResultAt,
)

MAX_NODES: Final = 10_000
HEARD_SECONDS: Final = 15.0
MAX_REVIEWS: Final = 100
MAX_RENEWALS: Final = 1000
MAX_ASSIGNMENTS: Final = 100_000
MAX_RETRIED_ROWS: Final = 10_000
MAX_COUNTED_ROWS: Final = 10_000
MAX_SCANNED_TASKS: Final = 20_000
"""For one page of a word about many: few may match, and the statement has to end in time."""

_TASKS: Final = named_queries.load("tasks.sql")
_NODES: Final = named_queries.load("nodes.sql")
_INTAKE: Final = named_queries.load("intake.sql")
_SYSTEM: Final = named_queries.load("system.sql")
_AUTHORITY: Final = named_queries.load("authority.sql")
_POLICIES: Final = named_queries.load("policies.sql")
_RETENTION: Final = named_queries.load("retention.sql")
_ATTEMPTS: Final = TypeAdapter(tuple[AttemptView, ...])
_RECEIPTS: Final = TypeAdapter(tuple[ReceiptView, ...])
_CONTENTS: Final = TypeAdapter(tuple[ReceiptContent, ...])


class Reads:
    """The reads, over one pool. Every method raises Unavailable when the database stays away."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def task(self, tenant: TenantId, task_id: str) -> TaskView | None:
        """A task with its attempts, receipts and timeline."""
        row = await self._one(_TASKS["task"], tenant, task_id)
        if row is None:
            return None
        timeline = tuple(views.timeline_entry(body) for body in row["events"])
        return TaskView(
            **views.summary(row),
            tenant=row["tenant"],
            message=row["message"],
            profile_digest=row["profile_digest"].hex(),
            failures=row["failures"],
            losses=row["losses"],
            max_attempts=row["max_attempts"],
            effects=row["effects"],
            resources=Resources(cpu_millis=row["cpu_millis"], memory_bytes=row["memory_bytes"]),
            concurrency_key=row["concurrency_key"],
            traceparent=row["traceparent"],
            scope=None if row["scope"] is None else Scope.model_validate_json(row["scope"]),
            cancel_requested_at=row["cancel_requested_at"],
            cancel_delivered_at=row["cancel_delivered_at"],
            cancel_confirmed_at=row["cancel_confirmed_at"],
            retry_of=row["retry_of"],
            retried_by=row["retried_by"],
            ended_at=row["ended_at"],
            input=views.parsed(row["input"]),
            output=views.parsed(row["output"]),
            attempt_list=_ATTEMPTS.validate_json(row["attempt_list"]),
            receipts=_RECEIPTS.validate_json(row["receipts"]),
            progress=None
            if row["progress"] is None
            else ProgressView.model_validate_json(row["progress"]),
            erasure=None if row["erasure"] is None else Erasure.model_validate_json(row["erasure"]),
            timeline=timeline,
            # Events go oldest first: where the first one is, all are.
            timeline_complete=any(
                entry.entity_type == EntityType.TASK and entry.sequence == 1 for entry in timeline
            ),
        )

    async def receipts(self, tenant: TenantId, task_id: str) -> tuple[ReceiptContent, ...] | None:
        """Every delivery submission of a task with its content."""
        row = await self._one(_TASKS["receipts"], tenant, task_id)
        return None if row is None else _CONTENTS.validate_json(row["receipts"])

    async def erase(
        self, tenant: TenantId, task_id: str, *, by: str, reason: str
    ) -> tuple[str, Erasure | None]:
        """Erase what a task was about: what came of that, as ``erase_task`` says. A call that
        writes: repeated, it gives the first erasure."""
        (row,) = await self._reader.fetch(_TASKS["erase"], tenant, task_id, by, reason)
        outcome = row["outcome"]
        if outcome != "erased":
            return outcome, None
        fields = {name: row[name] for name in ("erased_at", "erased_by", "reason")}
        return outcome, Erasure(task_id=task_id, **fields)

    async def result(self, tenant: TenantId, task_id: str) -> ResultAt | None:
        """The short form, with the head of the log that it was read at."""
        row = await self._one(_TASKS["result"], tenant, task_id)
        if row is None:
            return None
        state = TaskState(row["state"])
        return ResultAt(
            TaskResult(
                task_id=row["task_id"],
                state=state,
                phase=phase_of(state, views.attempt_state(row)),
                reason=row["reason"],
                message=row["message"],
                attempt_id=row["attempt_id"],
                output=views.parsed(row["output"]),
                erased=row["erased"],
            ),
            row["head"],
            None if row["intake_state"] is None else views.enqueued(row, row["intake_state"]),
        )

    async def enqueued(self, tenant: TenantId, task_id: str) -> Enqueued | None:
        """What became of an id that a transaction was told."""
        row = await self._one(_INTAKE["enqueued"], tenant, task_id)
        return None if row is None else views.enqueued(row, row["state"])

    async def intake(
        self, tenant: TenantId, *, state: str | None, after: int | None, limit: int
    ) -> IntakeList:
        """A page of what was enqueued, newest first; ``after`` is the last of the page before."""
        states = ["waiting", "taken", "refused"] if state is None else [state]
        rows = await self._reader.fetch(_INTAKE["list_intake"], tenant, states, after, limit + 1)
        entries = tuple(IntakeEntry(**row) for row in rows[:limit])
        return IntakeList(
            entries=entries, next=entries[-1].intake_id if len(rows) > limit else None
        )

    async def retry_intake(
        self, tenant: TenantId, *, code: Code | None, type_name: str | None
    ) -> int:
        """Let refused rows wait once more, 10,000 at most; how many. The one call here that writes:
        repeated, it leaves alone what waits already."""
        (row,) = await self._reader.fetch(
            _INTAKE["retry_intake"], tenant, code, type_name, MAX_RETRIED_ROWS
        )
        retried: int = row["retried"]
        return retried

    async def list_tasks(
        self,
        tenant: TenantId,
        *,
        state: TaskState | None = None,
        phase: Phase | None = None,
        type_name: str | None = None,
        after: str | None = None,
        created_before: datetime | None = None,
        limit: int,
    ) -> TaskList:
        """A page of tasks, newest first; ``after`` is the last task id of the page before."""
        rows = await self._reader.fetch(
            _TASKS["list_tasks"],
            tenant,
            state,
            type_name,
            phase,
            after,
            created_before,
            limit + 1,
        )
        tasks = tuple(TaskSummary(**views.summary(row)) for row in rows[:limit])
        return TaskList(tasks=tasks, next=tasks[-1].task_id if len(rows) > limit else None)

    async def bulk_page(
        self,
        tenant: TenantId,
        *,
        states: Collection[TaskState],
        phase: Phase | None,
        type_name: str | None,
        created_before: datetime | None,
        after: str | None,
        limit: int | None,
    ) -> BulkPage:
        """The next tasks that match, oldest first; without a ``limit`` only how many."""
        (row,) = await self._reader.fetch(
            _TASKS["bulk_page"],
            tenant,
            sorted(states),
            type_name,
            phase,
            after,
            created_before,
            limit,
            MAX_SCANNED_TASKS,
        )
        return BulkPage(
            task_ids=tuple(map(TaskId, row["task_ids"])),
            matched=row["matched"],
            next=row["next"],
            clock=row["clock"],
        )

    async def stream(
        self,
        tenant: TenantId,
        entity_type: EntityType,
        entity_id: str,
        *,
        after: int,
        limit: int,
    ) -> StreamView | None:
        """Events of one stream with a sequence above ``after``, as they were published.

        Raises RequestRefused ``events_removed`` when some of them are no longer kept.
        """
        row = await self._one(_TASKS["stream"], tenant, entity_type, entity_id, after, limit)
        if row is None:
            return None
        first, last = row["first_sequence"], row["sequence"]
        if last > after and (first is None or first > after + 1):
            kept_after = last if first is None else first - 1
            raise RequestRefused(
                Code.EVENTS_REMOVED,
                f"Events up to sequence {kept_after} are no longer kept.",
                next_step=f"Read the state of the entity, and go on with after={kept_after}.",
            )
        return StreamView(
            entity_type=entity_type,
            entity_id=entity_id,
            state=row["state"],
            epoch=row["epoch"],
            sequence=row["sequence"],
            events=tuple(from_json(body) for body in row["events"]),
        )

    async def ended_since(self, position: int, *, limit: int = 1000) -> Ended:
        """Tasks of all tenants that ended or were held after ``position``."""
        (row,) = await self._reader.fetch(_TASKS["ended_since"], position, limit)
        positions: Sequence[int] = row["positions"]
        reached = positions[-1] if len(positions) == limit else row["head"]
        return Ended(reached, row["head"], tuple(row["task_ids"]))

    async def incarnation(self, tenant: TenantId, incarnation: str) -> KnownIncarnation | None:
        """One start of one executor process."""
        row = await self._one(_NODES["incarnation"], tenant, incarnation)
        if row is None:
            return None
        return KnownIncarnation(
            NodeId(row["node_id"]),
            IncarnationId(incarnation),
            NodeState(row["state"]),
            row["queue"],
            row["under_review"],
        )

    async def assignments(self, tenant: TenantId, incarnation: str) -> tuple[Assignment, ...]:
        """Attempts of an incarnation that have not ended, oldest first."""
        rows = await self._reader.fetch(_NODES["assignments"], tenant, incarnation, MAX_ASSIGNMENTS)
        return tuple(Assignment(**row) for row in rows)

    async def renewals(self, tenant: TenantId, task_id: str) -> RenewalList:
        """Renewals of a task's attempts, newest first."""
        rows = await self._reader.fetch(_NODES["renewals"], tenant, task_id, MAX_RENEWALS)
        return RenewalList(renewals=tuple(RenewalView(**row) for row in rows))

    async def reviews(self, tenant: TenantId, node_id: str) -> ReviewList:
        """Health reviews of a node's starts, newest first."""
        rows = await self._reader.fetch(_NODES["reviews"], tenant, node_id, MAX_REVIEWS)
        return ReviewList(reviews=tuple(ReviewView(**row) for row in rows))

    async def lease_end(self, tenant: TenantId, attempt_id: str) -> datetime | None:
        """When the lease of an attempt ends by itself."""
        row = await self._one(_NODES["lease_end"], tenant, attempt_id)
        return None if row is None else row["expires_at"]

    async def open_attempts(self, tenant: TenantId, node_id: str) -> tuple[HeldAttempt, ...]:
        """Attempts of all incarnations of a node that have not ended, and revoked ones whose tokens
        receivers may still accept."""
        rows = await self._reader.fetch(_NODES["open_attempts"], tenant, node_id, MAX_ASSIGNMENTS)
        return tuple(HeldAttempt(**row) for row in rows)

    async def nodes(self, tenant: TenantId) -> tuple[NodeView, ...]:
        """Live incarnations, and those that ended within the last hour."""
        rows = await self._reader.fetch(_NODES["list_nodes"], tenant, MAX_NODES)
        return tuple(views.node_view(row) for row in rows)

    async def queues(self) -> dict[str, bool]:
        """Queues of nodes of all tenants: True when it must exist, False when it may be deleted."""
        rows = await self._reader.fetch(_NODES["queues"])
        return {row["queue"]: bool(row["needed"]) for row in rows}

    async def heard_queues(self) -> frozenset[str]:
        """Queues of nodes that were heard a moment ago, and were there before."""
        rows = await self._reader.fetch(_NODES["heard_queues"], HEARD_SECONDS)
        return frozenset(row["queue"] for row in rows)

    async def outbox(self) -> OutboxStatus:
        """How far publishing is behind; at most 10,000 rows are counted for each shard."""
        rows = await self._reader.fetch(_SYSTEM["outbox"], MAX_COUNTED_ROWS)
        (size,) = await self._reader.fetch(_SYSTEM["log_size"], MAX_COUNTED_ROWS)
        (needed,) = await self._reader.fetch(_RETENTION["needed_from"])
        (policy,) = await self._reader.fetch(_RETENTION["policy"])
        partitions = await self._reader.fetch(_RETENTION["partitions"])
        return OutboxStatus(
            head=max((row["head"] for row in rows), default=0),
            lag_rows=sum(row["lag_rows"] for row in rows),
            oldest_unpublished_seconds=views.oldest(rows),
            parked=sum(row["parked"] for row in rows),
            needed_from=needed["position"],
            bytes=size["bytes"],
            kept_since=next(
                (one["oldest_at"] for one in partitions if one["oldest_at"] is not None), None
            ),
            keep_seconds=views.parsed(policy["keep"]).get(RetentionKind.LOG),
            rows_beyond_partitions=size["misplaced"],
            partitions=tuple(
                PartitionView(
                    name=one["name"],
                    first_position=one["first_position"],
                    end_position=one["end_position"],
                    oldest_at=one["oldest_at"],
                    rows=one["rows"],
                    bytes=one["bytes"],
                )
                for one in partitions
            ),
            shards=tuple(
                ShardStatus(
                    shard=row["shard"],
                    position=row["position"],
                    owner=row["owner"],
                    claimed_until=row["claimed_until"],
                    lag_rows=row["lag_rows"],
                    lag_seconds=row["oldest_seconds"] or 0.0,
                    parked=row["parked"],
                )
                for row in rows
            ),
        )

    async def policies(self, limit: int) -> tuple[StoredPolicy, ...]:
        """Versions of the policy, newest first: the first is in force."""
        rows = await self._reader.fetch(_POLICIES["history"], limit)
        return tuple(stored_policy(row) for row in rows)

    async def set_policy(
        self, after: int, policy: LeasePolicy, *, set_by: str, reason: str
    ) -> bool:
        """As ``policies.set_policy``. A call that writes: repeated, it changes nothing more."""
        (row,) = await self._reader.fetch(
            _POLICIES["set_policy"], *set_policy_arguments(after, policy, set_by, reason)
        )
        return bool(row["set_policy"])

    async def authority(self, epochs: int) -> AuthorityView:
        """What the authority is, and every epoch that it had."""
        (row,) = await self._reader.fetch(_AUTHORITY["show"])
        opened = await self._reader.fetch(_AUTHORITY["epochs"], epochs)
        state = "confirmed" if row["epoch"] is not None else "unconfirmed"
        if row["lost_at"] is not None:
            state = "history_lost"
        fields = {name: value for name, value in row.items() if name not in ("epoch", "lost_proof")}
        return AuthorityView(
            **fields,
            state=state,
            lost_proof=views.parsed(row["lost_proof"]),
            epochs=tuple(EpochView(**epoch) for epoch in opened),
        )

    async def recover(
        self, *, by: str, reason: str, above_epoch: int | None
    ) -> tuple[int | None, int | None]:
        """The epoch that was opened, or for how many seconds one has to wait. A call that writes:
        repeated after it was done, there is nothing to recover."""
        (row,) = await self._reader.fetch(_AUTHORITY["recover"], by, reason, above_epoch)
        return row["epoch"], row["wait_seconds"]

    async def present_positions(
        self, tenant: TenantId, positions: Sequence[PresentedPosition], by: str
    ) -> tuple[bool, ...]:
        """For each position of a stream whether it proves that history was lost; records it."""
        rows = await self._reader.fetch(
            _AUTHORITY["present_positions"],
            tenant,
            [position.entity_type for position in positions],
            [position.entity_id for position in positions],
            [position.epoch for position in positions],
            [position.sequence for position in positions],
            by,
        )
        return tuple(row["proven"] for row in rows)

    async def present_tokens(
        self, tenant: TenantId, tokens: Sequence[PresentedToken], by: str
    ) -> tuple[bool, ...]:
        """For each fencing token whether it proves that history was lost; records it."""
        rows = await self._reader.fetch(
            _AUTHORITY["present_tokens"],
            [tenant] * len(tokens),
            [token.task_id for token in tokens],
            [token.fencing_token for token in tokens],
            [by] * len(tokens),
        )
        return tuple(row["proven"] for row in rows)

    async def _one(self, query: str, *arguments: Any) -> Record | None:
        rows = await self._reader.fetch(query, *arguments)
        return rows[0] if rows else None
