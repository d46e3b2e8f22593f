"""A small world of tasks and nodes in a tenant of its own, so that one history can be lived twice
in one database and compared.

Every id is derived from a name and the tenant; a dump puts the names back and leaves instants out.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import asyncpg

from tenure.contract.ids import (
    AttemptId,
    CommandId,
    EventId,
    FencingToken,
    IncarnationId,
    LeaseId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import Effects, NodeState
from tenure.coordinator.core import commands
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decide import EVENTS_PER_COMMAND
from tenure.coordinator.core.rows import ResourceAmounts
from tenure.coordinator.core.snapshot import Minted
from tests.support.rows import declared

TYPE = "sha256"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d|Z)")
_MICROSECONDS = re.compile(r'(expires_at"*[:=])\d+')

REPORTS: dict[str, type[commands.AttemptCommand]] = {
    "accept": commands.Accept,
    "start": commands.Start,
    "take": commands.Take,
    "deliver": commands.Deliver,
    "fail": commands.Fail,
    "reject": commands.Reject,
    "confirm": commands.ConfirmCancel,
    "renew": commands.Renew,
}


@dataclass(frozen=True)
class Op:
    """A command in words. ``identity`` is shared by commands that claim to be the same one."""

    kind: str
    task: int = 0
    node: int = 0
    identity: int = 0
    content: int = 0
    old: bool = False  # of a report: about the task's first attempt instead of its latest
    first: bool = False  # of a submission: of the task that others call by its number


class World:
    """One tenant. ``read`` looks at the whole database, past the rights of the services."""

    def __init__(self, tenant: str, read: asyncpg.Connection) -> None:
        self.tenant = TenantId(tenant)
        self._read = read
        self._names: dict[str, str] = {}

    def id(self, name: str) -> str:
        """The id with that name."""
        identity = str(uuid5(NAMESPACE_OID, f"{self.tenant}/{name}"))
        self._names[identity] = name
        return identity

    def minted(self, name: str) -> Minted:
        """Event ids of the command with that name, and no jitter."""
        events = (EventId(self.id(f"event {n} of {name}")) for n in range(EVENTS_PER_COMMAND))
        return Minted(tuple(events), 0.0)

    async def command(self, op: Op, name: str) -> AnyCommand | None:
        """What ``op`` means in the world as it is now; None when there is nothing to speak of."""
        task_id = TaskId(self.id(f"task {op.task}"))
        common: dict[str, Any] = {
            "command_id": CommandId(self.id(f"command {op.identity}")),
            "fingerprint": hashlib.sha256(repr(op).encode()).digest(),
            "tenant": self.tenant,
            "actor": op.kind,
        }
        unstored = common | {"command_id": CommandId(self.id(f"command {name}"))}
        node_id = NodeId(f"node-{op.node}")
        match op.kind:
            case "submit":
                # Minted with every request, also with one that comes again.
                task_id = TaskId(self.id(f"task {op.task}" if op.first else f"task of {name}"))
                return commands.Submit(
                    **common, task_id=task_id, type=TYPE, input_text="{}", priority=0,
                    not_before=None, deadline=None,
                    resources=ResourceAmounts(cpu_millis=400, memory_bytes=op.content),
                    concurrency_key=f"key {op.content}",
                )  # fmt: skip
            case "cancel":
                return commands.Cancel(**common, task_id=task_id)
            case "expire":
                return commands.Expire(**unstored, task_id=task_id)
            case "allocate":
                incarnation = await self._current(node_id)
                attempt_id = AttemptId(self.id(f"attempt {name}"))
                if incarnation is None:
                    return None
                return commands.Allocate(
                    **unstored, task_id=task_id, incarnation=incarnation, attempt_id=attempt_id,
                    lease_id=LeaseId(self.id(f"lease {name}")),
                )  # fmt: skip
            case "register":
                return self._registration(common, node_id, IncarnationId(self.id(name)), op)
            case "drain" | "gone":
                incarnation = await self._current(node_id)
                state = NodeState.DRAINING if op.kind == "drain" else NodeState.GONE
                if incarnation is None:
                    return None
                return commands.ChangeNode(
                    **common, node_id=node_id, incarnation=incarnation, next_state=state
                )
            case _:
                return await self._report(op, common, task_id)

    async def open_account(self, budget_minor: int) -> None:
        """Let the tenant have tasks, as far as the budget reaches."""
        await self._read.execute(
            "insert into tenure.tenants (tenant, node_pools, locations, networks, budget_minor,"
            " currency, changed_by) values ($1, '{*}', '{*}', '{*}', $2, 'EUR', 'tests')",
            self.tenant,
            budget_minor,
        )
        await self._read.execute("insert into tenure.accounts (tenant) values ($1)", self.tenant)

    async def limit(self, scope: str, name: str, max_running: int) -> None:
        """Let so many tasks run at once."""
        await self._read.execute(
            "select tenure.set_limit($1, $2, $3, $4, null, null, null, 'tests', 100)",
            scope,
            self.tenant,
            name,
            max_running,
        )

    async def endings(self) -> list[tuple[str, AnyCommand]]:
        """For every task that has not ended a cancellation, with a name."""
        rows = await self._read.fetch(
            "select task_id::text from tenure.tasks where tenant = $1 and ended_at is null",
            self.tenant,
        )
        named = sorted((f"end of {self._names[row['task_id']]}", row["task_id"]) for row in rows)
        return [
            (name, commands.Cancel(CommandId(self.id(name)), b"", self.tenant, "end", TaskId(id_)))
            for name, id_ in named
        ]

    async def expiries(self) -> list[tuple[str, AnyCommand]]:
        """For every attempt that has not ended what the sweeper would ask for, with a name."""
        rows = await self._read.fetch(
            "select task_id::text from tenure.attempts where tenant = $1 and ended_at is null",
            self.tenant,
        )
        named = sorted((f"loss of {self._names[row['task_id']]}", row["task_id"]) for row in rows)
        return [
            (name, commands.Expire(CommandId(self.id(name)), b"", self.tenant, "end", TaskId(id_)))
            for name, id_ in named
        ]

    def _registration(
        self, common: dict[str, Any], node_id: NodeId, incarnation: IncarnationId, op: Op
    ) -> commands.Register:
        runs = declared(TYPE, Effects.UNGUARDED, 2, cost_minor=3)
        return commands.Register(
            **common, node_id=node_id, incarnation=incarnation, queue="q", software="s",
            protocol_version=1, slots=3 - op.node, cpu_millis=None if op.node else 1000,
            memory_bytes=op.content + 2, task_types=(runs,),
        )  # fmt: skip

    async def _report(self, op: Op, common: dict[str, Any], task_id: TaskId) -> AnyCommand | None:
        order = "asc" if op.old else "desc"
        row = await self._read.fetchrow(
            f"select * from tenure.attempts where task_id = $1 order by ordinal {order} limit 1",
            task_id,
        )
        if row is None:
            return None
        more: dict[str, Any] = {}
        match op.kind:
            case "deliver":
                text = str(op.content)
                more = {"output_text": text, "content_digest": text.encode()}
            case "fail":
                more = {"reason": "r", "message": "m", "retryable": op.content > 0}
            case "reject":
                more = {"reason": "node_draining", "message": "m"}
        return REPORTS[op.kind](  # type: ignore[return-value] # only the kinds of the union
            **common,
            task_id=task_id,
            node_id=NodeId(row["node_id"]),
            incarnation=IncarnationId(str(row["incarnation"])),
            attempt_id=AttemptId(str(row["attempt_id"])),
            fencing_token=FencingToken(row["fencing_token"]),
            **more,
        )

    async def _current(self, node_id: NodeId) -> IncarnationId | None:
        value = await self._read.fetchval(
            "select incarnation from tenure.nodes where tenant = $1 and node_id = $2",
            self.tenant,
            node_id,
        )
        return None if value is None else IncarnationId(str(value))

    async def lapse(self, tasks: Sequence[int]) -> None:
        """Let the leases of these tasks run out, as time would."""
        await self._read.execute(
            "update tenure.attempts set expires_at = '2026-01-01'"
            " where ended_at is null and task_id = any($1::uuid[])",
            [self.id(f"task {task}") for task in tasks],
        )

    async def lapse_all(self) -> None:
        """Let every lease run out."""
        await self._read.execute(
            "update tenure.attempts set expires_at = '2026-01-01'"
            " where ended_at is null and tenant = $1",
            self.tenant,
        )

    async def position(self, event_ids: Sequence[EventId]) -> int:
        """Where in the log the first of these events is."""
        value: int = await self._read.fetchval(
            "select min(position) from tenure.log where event_id = any($1::uuid[])", event_ids
        )
        return value

    async def dump(self) -> dict[str, list[str]]:
        """All rows of the tenant as text, with names for ids and no instants."""
        tables = (
            "commands", "tasks", "attempts", "reservations", "nodes", "incarnations", "receipts",
            "renewals", "accounts",
        )  # fmt: skip
        dumped = {}
        for table in tables:
            rows = await self._read.fetch(
                f"select t::text as row from tenure.{table} t where tenant = $1", self.tenant
            )
            dumped[table] = sorted(self.named(row["row"]) for row in rows)
        rows = await self._read.fetch(
            "select row(order_key, entity_type, entity_id, attempt_id, epoch, sequence, event_id,"
            " next_state, copy, exchange, routing_key, required)::text"
            " || convert_from(body, 'UTF8') as row"
            " from tenure.log where tenant = $1 order by position",
            self.tenant,
        )
        dumped["log"] = sorted(self.named(row["row"]) for row in rows)
        return dumped

    def named(self, text: str) -> str:
        """``text`` with names for ids, no instants and no tenant."""
        text = _INSTANT.sub("INSTANT", text.replace(self.tenant, "TENANT"))
        text = _MICROSECONDS.sub(r"\1INSTANT", text)
        return _UUID.sub(lambda found: f"<{self._names[str(UUID(found[0]))]}>", text)

    async def assert_consistent(self) -> None:
        """Counters are what the reservations say, reservations are what open attempts hold, no node
        is oversold, and the streams have no holes."""
        wrong = await self._read.fetch(
            """
            select n.node_id, n.slots_used, n.cpu_used, n.memory_used, r.*
            from tenure.incarnations n
            cross join lateral (
                select coalesce(sum(slots), 0) as slots, coalesce(sum(cpu_millis), 0) as cpu,
                    coalesce(sum(memory_bytes), 0) as memory
                from tenure.reservations r where r.incarnation = n.incarnation
            ) r
            where n.tenant = $1 and (n.slots_used, n.cpu_used, n.memory_used)
                is distinct from (r.slots, r.cpu, r.memory)
            """,
            self.tenant,
        )
        assert [dict(row) for row in wrong] == []
        unbalanced = await self._read.fetch(
            """
            select a.attempt_id, r.attempt_id
            from (select * from tenure.attempts where ended_at is null and tenant = $1) a
            full join (select * from tenure.reservations where tenant = $1) r using (attempt_id)
            where a.attempt_id is null or r.attempt_id is null
            """,
            self.tenant,
        )
        assert [dict(row) for row in unbalanced] == []
        account = await self._read.fetchrow(
            """
            select c.held_minor, c.spent_minor, e.budget_minor,
                (select coalesce(sum(r.cost_minor), 0) from tenure.reservations r
                 where r.tenant = $1) as reserved
            from tenure.accounts c join tenure.tenants e using (tenant) where c.tenant = $1
            """,
            self.tenant,
        )
        assert account is not None
        assert account["held_minor"] == account["reserved"]
        assert account["held_minor"] + account["spent_minor"] <= account["budget_minor"]
        crowds = await self._read.fetch(
            """
            select l.scope, k.key, count(*) from tenure.limits l
            join tenure.reservations r using (tenant)
            cross join lateral (
                select case l.scope when 'each_key' then r.concurrency_key end as key) k
            where tenant = $1 group by l.scope, l.max_running, k.key
            having count(*) > l.max_running
            """,
            self.tenant,
        )
        assert [dict(row) for row in crowds] == []
        holes = await self._read.fetch(
            """
            select entity_type, entity_id, array_agg(sequence order by position)
            from tenure.log where tenant = $1 and not copy group by 1, 2
            having array_agg(sequence order by position)
                <> (select array_agg(n) from generate_series(1, max(sequence)) n)
                or max(sequence) <> count(*)
            """,
            self.tenant,
        )
        assert [dict(row) for row in holes] == []
