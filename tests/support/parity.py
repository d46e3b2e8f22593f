"""One history lived twice: by the SQL commit function, and by the commit model beside it.

Both are given the same commands, the same decisions and the same time: the model's clock is what
the database read. After every step all rows have to be the same, and the log has to hold exactly
the events of what was applied. The rules are not on trial here, but whether the model that they
are explored with behaves as the database does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import asyncpg

from tenure.contract.ids import (
    AttemptId,
    CommandId,
    EventId,
    IncarnationId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import LimitScope, PauseScope
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decide import EVENTS_PER_COMMAND, decide
from tenure.coordinator.core.decisions import Accepted, Decision, ItemOutcome
from tenure.coordinator.core.limits import bucket
from tenure.coordinator.core.rows import ANY, Bucket, LimitRow, PauseRow, ResourceAmounts, TenantRow
from tenure.coordinator.core.snapshot import LeasePolicy, Minted, Snapshot, StoredCommand
from tenure.coordinator.model.commit import commit_batch
from tenure.coordinator.model.rows import Reservation, Rows, load
from tenure.coordinator.store.postgres import json_text
from tenure.coordinator.store.rows import (
    attempt_row,
    incarnation_row,
    pause_rows,
    receipt_row,
    reply_from_text,
    task_row,
    tenant_row,
    to_datetime,
    to_microseconds,
)
from tests.support import steps

TASKS = "select * from tenure.tasks where tenant = $1"
ATTEMPTS = """
    select *, task_id as attempt_task_id, tenant as attempt_tenant, state as attempt_state,
        version as attempt_version, sequence as attempt_sequence, decided_at as attempt_decided_at
    from tenure.attempts where tenant = $1
"""
INCARNATIONS = """
    select *, tenant as node_tenant, state as node_state, version as node_version,
        sequence as node_sequence, cpu_millis as node_cpu_millis,
        memory_bytes as node_memory_bytes, facts::text as node_facts,
        case when type_concurrency is not null then tenure.running_types(incarnation)::text end
            as running_types
    from tenure.incarnations where tenant = $1
"""
RECEIPTS = "select *, generation as receipt_generation from tenure.receipts where tenant = $1"
TENANT = """
    select *, tenant as fact_tenant, version as tenant_version, state as tenant_state,
        locations as tenant_locations, networks as tenant_networks, pauses::text as pauses,
        limits::text as limits
    from tenure.tenants join tenure.accounts using (tenant) where tenant = $1
"""
PROFILES = """
    select t.task_id, p.digest from tenure.tasks t
    join tenure.profiles p on p.tenant = t.tenant and p.digest = t.profile_digest
    where t.tenant = $1
"""


@dataclass(frozen=True)
class Decided:
    """A decision that waits for its commit."""

    command: AnyCommand
    accepted: Accepted


class Twice:
    """A tenant, in the database and in the model. ``owner`` may change what nobody may."""

    def __init__(self, tenant: str, pool: asyncpg.Pool, owner: asyncpg.Connection) -> None:
        self.tenant = TenantId(tenant)
        self.pool = pool
        self.owner = owner
        self.rows = Rows(now=0)
        self._minted = 0

    async def begin(self, budget_minor: int) -> None:
        """The tenant may do what it likes, as far as its budget reaches."""
        await self.owner.execute(
            "insert into tenure.tenants (tenant, node_pools, locations, networks, budget_minor,"
            " currency, changed_by) values ($1, '{*}', '{*}', '{*}', $2, 'EUR', 'tests')",
            self.tenant,
            budget_minor,
        )
        await self.owner.execute("insert into tenure.accounts (tenant) values ($1)", self.tenant)
        unlimited = frozenset({ANY})
        facts = TenantRow(
            tenant=self.tenant,
            version=1,
            authorized=True,
            node_pools=unlimited,
            locations=unlimited,
            networks=unlimited,
            budget_minor=budget_minor,
        )
        version = await self.owner.fetchval("select max(version) from tenure.policies")
        self.rows = replace(self.rows, policy_version=version, tenants={self.tenant: facts})

    @property
    def policy(self) -> LeasePolicy:
        """The one in force."""
        return LeasePolicy(version=self.rows.policy_version)

    async def decide(self, command: AnyCommand) -> Decision:
        """What is decided now. Both have to find the same."""
        snapshot, now = await steps.load(self.pool, command)
        found = _looked_at(load(replace(self.rows, now=now), command))
        assert found == _looked_at(snapshot), (found, snapshot)
        self._minted += 1
        events = (self.id(f"event {self._minted}.{n}") for n in range(EVENTS_PER_COMMAND))
        minted = Minted(tuple(EventId(one) for one in events), 0.5)
        return decide(command, snapshot, now, minted, self.policy)

    def id(self, name: str) -> str:
        """The id with that name in this tenant."""
        return str(uuid5(NAMESPACE_OID, f"{self.tenant}/{name}"))

    async def commit(
        self, batch: Sequence[Decided], seen: Sequence[IncarnationId] = ()
    ) -> list[ItemOutcome]:
        """One call with these; both have to say and do the same."""
        items = [steps.Item(one.command, one.accepted) for one in batch]
        events = [event.event_id for one in batch for event in one.accepted.events]
        before = await self._logged(events)
        done = await steps.committed(self.pool, *items, seen=seen)
        outcomes, self.rows = commit_batch(
            replace(self.rows, now=done.now),
            [(one.command, one.accepted) for one in batch],
            seen=seen,
        )
        assert list(done.outcomes) == outcomes
        applied = [
            (event.event_id, event.entity_id, event.sequence, event.next_state, at)
            for one, outcome, at in zip(batch, outcomes, done.decided, strict=True)
            if outcome is ItemOutcome.APPLIED
            for event in one.accepted.events
        ]
        assert (await self._logged(events))[len(before) :] == applied
        await self.compare()
        return outcomes

    async def compare(self) -> None:
        """Every row of the one is a row of the other."""
        rows, fetch = self.rows, self._fetch
        tasks = [_present(task_row(one)) for one in await fetch(TASKS)]
        assert {one.task_id: one for one in tasks} == rows.tasks
        attempts = [_present(attempt_row(one)) for one in await fetch(ATTEMPTS)]
        assert {one.attempt_id: one for one in attempts} == rows.attempts
        nodes = [_present(incarnation_row(one)) for one in await fetch(INCARNATIONS)]
        assert {one.incarnation: one for one in nodes} == rows.incarnations
        receipts = [_present(receipt_row(one)) for one in await fetch(RECEIPTS)]
        assert {(one.attempt_id, one.content_digest): one for one in receipts} == rows.receipts
        (facts,) = [_present(tenant_row(one)) for one in await fetch(TENANT)]
        assert replace(facts, full_at=await self._buckets()) == rows.tenants[self.tenant]
        frozen = {TaskId(str(row["task_id"])): row["digest"].hex() for row in await fetch(PROFILES)}
        assert frozen == {task_id: row.digest for task_id, row in rows.profile_of.items()}
        assert await self._reservations() == rows.reservations
        assert await self._nodes() == (rows.nodes, rows.quarantined)
        assert await self._commands() == rows.commands
        intake = await fetch("select * from tenure.intake where tenant = $1")
        assert {row["intake_id"]: row["state"] for row in intake} == rows.intake

    async def _reservations(self) -> dict[AttemptId, Reservation]:
        return {
            AttemptId(str(row["attempt_id"])): Reservation(
                TenantId(row["tenant"]),
                row["type"],
                row["concurrency_key"],
                IncarnationId(str(row["incarnation"])),
                ResourceAmounts(row["cpu_millis"], row["memory_bytes"], row["slots"]),
                row["cost_minor"],
            )
            for row in await self._fetch("select * from tenure.reservations where tenant = $1")
        }

    async def _buckets(self) -> dict[Bucket, int]:
        return {
            (LimitScope(row["scope"]), row["name"], row["key"]): to_microseconds(row["full_at"])
            for row in await self._fetch("select * from tenure.limit_buckets where tenant = $1")
        }

    async def _nodes(self) -> tuple[dict[Any, Any], frozenset[Any]]:
        records = await self._fetch("select * from tenure.nodes where tenant = $1")
        current = {
            (self.tenant, NodeId(row["node_id"])): row["incarnation"] and str(row["incarnation"])
            for row in records
        }
        return current, frozenset(
            (self.tenant, NodeId(row["node_id"])) for row in records if row["quarantined_at"]
        )

    async def _commands(self) -> dict[CommandId, StoredCommand]:
        return {
            CommandId(str(row["command_id"])): StoredCommand(
                CommandId(str(row["command_id"])),
                TenantId(row["tenant"]),
                row["fingerprint"],
                reply_from_text(row["reply"]),
                to_microseconds(row["decided_at"]),
            )
            for row in await self._fetch("select * from tenure.commands where tenant = $1")
        }

    async def _logged(self, events: Sequence[str]) -> list[tuple[Any, ...]]:
        records = await self.owner.fetch(
            "select * from tenure.log where event_id = any ($1::uuid[]) and not copy"
            " order by position",
            events,
        )
        return [
            (
                str(row["event_id"]),
                str(row["entity_id"]),
                row["sequence"],
                row["next_state"],
                to_microseconds(row["recorded_at"]),
            )
            for row in records
        ]

    async def _fetch(self, query: str) -> list[asyncpg.Record]:
        return list(await self.owner.fetch(query, self.tenant))

    # What happens besides commands ---------------------------------------------------------------

    async def lapse(self, attempt_id: AttemptId, until: int) -> None:
        """The lease ends, so many microseconds from now."""
        row = self.rows.attempts[attempt_id]
        at = await self._now() + until
        await self.owner.execute(
            "update tenure.attempts set expires_at = $2 where attempt_id = $1",
            attempt_id,
            to_datetime(at),
        )
        attempts = {**self.rows.attempts, attempt_id: replace(row, expires_at=at)}
        self.rows = replace(self.rows, attempts=attempts)

    async def hear(self, incarnation: IncarnationId, at: int) -> None:
        """The node was heard of, so many microseconds from now."""
        row = self.rows.incarnations[incarnation]
        at += await self._now()
        await self.owner.execute(
            "update tenure.incarnations set last_seen_at = $2 where incarnation = $1",
            incarnation,
            to_datetime(at),
        )
        incarnations = {**self.rows.incarnations, incarnation: replace(row, last_seen_at=at)}
        self.rows = replace(self.rows, incarnations=incarnations)

    async def due(self, task_id: TaskId, not_before: int | None, deadline: int | None) -> None:
        """The task's times, so many microseconds from now."""
        row, now = self.rows.tasks[task_id], await self._now()
        begins = None if not_before is None else now + not_before
        ends = None if deadline is None else now + deadline
        await self.owner.execute(
            "update tenure.tasks set not_before = $2, deadline = $3 where task_id = $1",
            task_id,
            None if begins is None else to_datetime(begins),
            None if ends is None else to_datetime(ends),
        )
        changed = replace(row, not_before=begins, deadline=ends)
        self.rows = replace(self.rows, tasks={**self.rows.tasks, task_id: changed})

    async def enqueue(self, type_name: str, name: str) -> None:
        """A row of the intake, as an application's transaction leaves it."""
        intake_id: int = await self.owner.fetchval(
            "insert into tenure.intake (tenant, command_id, task_id, type, input, priority,"
            " fingerprint, enqueued_by) values ($1, $2, $2, $3, '1', 0, '', 'shop')"
            " returning intake_id",
            self.tenant,
            self.id(name),
            type_name,
        )
        self.rows = replace(self.rows, intake={**self.rows.intake, intake_id: "waiting"})

    async def authorize(self, authorized: bool) -> None:
        """Suspend the tenant, or authorize it again."""
        await self.owner.execute(
            "update tenure.tenants set state = $2, version = version + 1 where tenant = $1",
            self.tenant,
            "authorized" if authorized else "suspended",
        )
        self._tell(authorized=authorized)

    async def pause(self, ends_in: int | None) -> None:
        """Pause the tenant until then; None: resume it."""
        now = await self._now()
        pauses: tuple[PauseRow, ...] = ()
        if ends_in is not None:
            about = PauseScope.TENANT, self.tenant, self.tenant, now + ends_in
            pauses = (PauseRow(*about, reason="why", paused_by="tests", paused_at=now),)
        text = json_text(
            [{name: getattr(one, name) for name in PauseRow.__slots__} for one in pauses]
        )
        assert pause_rows(text) == pauses
        await self.owner.execute(
            "update tenure.tenants set pauses = $2, version = version + 1 where tenant = $1",
            self.tenant,
            text if pauses else None,
        )
        self._tell(pauses=pauses)

    async def limit(
        self, scope: LimitScope, name: str, *, max_running: int | None, starts: int | None
    ) -> None:
        """State a limit, of so many starts a second; of neither: take it back."""
        about = scope.value, self.tenant, name
        facts = self.rows.tenants[self.tenant]
        limits = {(one.scope, one.name): one for one in facts.limits}
        full_at = dict(facts.full_at)
        if max_running is None and starts is None:
            if limits.pop((scope, name), None) is None:
                return
            await self.owner.fetchval("select tenure.remove_limit($1, $2, $3, 'tests')", *about)
            full_at = {place: at for place, at in full_at.items() if place[:2] != (scope, name)}
        else:
            await self.owner.fetchval(
                "select tenure.set_limit($1, $2, $3, $4, $5, $6, $7, 'tests', 100)",
                *about,
                max_running,
                starts,
                starts and 1,
                starts,
            )
            interval = None if starts is None else -(-1_000_000 // starts)
            limits[scope, name] = LimitRow(scope, name, max_running, interval, starts or 1)
        self._tell(limits=tuple(row for _, row in sorted(limits.items())), full_at=full_at)

    def _tell(self, **changes: Any) -> None:
        facts = self.rows.tenants[self.tenant]
        changed = replace(facts, version=facts.version + 1, **changes)
        self.rows = replace(self.rows, tenants={self.tenant: changed})

    async def set_policy(self) -> None:
        """The same terms under a new version."""
        await self.owner.execute(
            "insert into tenure.policies (version, lease_microseconds,"
            " clock_tolerance_microseconds, node_silence_microseconds, retry_base_microseconds,"
            " retry_cap_microseconds, set_by, reason) select version + 1, lease_microseconds,"
            " clock_tolerance_microseconds, node_silence_microseconds, retry_base_microseconds,"
            " retry_cap_microseconds, 'tests', 'why' from tenure.policies"
            " order by version desc limit 1"
        )
        self.rows = replace(self.rows, policy_version=self.rows.policy_version + 1)

    async def _now(self) -> int:
        return to_microseconds(await self.owner.fetchval("select clock_timestamp()"))


def _present(row: Any) -> Any:
    assert row is not None
    return row


def _looked_at(snapshot: Snapshot) -> Snapshot:
    """Without buckets that the task does not count in: the statement leaves some of them out."""
    task, tenant = snapshot.task, snapshot.tenant
    if task is None or tenant is None:
        return snapshot
    places = {bucket(limit, task.type, task.concurrency_key) for limit in tenant.limits}
    full_at = {place: at for place, at in tenant.full_at.items() if place in places}
    return replace(snapshot, tenant=replace(tenant, full_at=full_at))
