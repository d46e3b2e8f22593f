"""A real authority over a real database, driven without HTTP: what the integration tests share."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

import asyncpg
from uuid_utils.compat import uuid7

from tenure.contract.ids import (
    AttemptId,
    CommandId,
    FencingToken,
    IncarnationId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import Effects
from tenure.contract.topology import DEFAULT_PREFIX, node_queue
from tenure.coordinator.authority import Authority
from tenure.coordinator.core.commands import (
    AttemptCommand,
    Cancel,
    ConfirmCancel,
    Deliver,
    Executable,
    Expire,
    Fail,
    Hold,
    HoldRejected,
    Register,
    Release,
    Renew,
    Submit,
    Take,
    TryAgain,
)
from tenure.coordinator.core.decisions import Outcome
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.scheduler import Scheduler
from tenure.coordinator.store.postgres import open_pool
from tests.support import leases, services
from tests.support.isolation import FreshDatabase
from tests.support.pgbouncer import routed
from tests.support.rows import declared

TENANT = TenantId("default")


class Noting:
    """An observer that notes what went wrong and how large batches were."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.codes: list[str] = []
        self.evidence: list[str] = []
        self.batches: list[int] = []

    def batch_committed(self, lane: str, items: int, applied: int) -> None:
        self.batches.append(items)

    def refused(self, lane: str, code: str) -> None:
        self.codes.append(code)

    def evidence_kept(self, code: str) -> None:
        self.evidence.append(code)

    def stalled(self, lane: str, error: str) -> None:
        self.errors.append(error)


@dataclass(frozen=True)
class Held:
    """An attempt as its executor knows it."""

    task_id: TaskId
    attempt_id: AttemptId
    node_id: NodeId
    incarnation: IncarnationId
    fencing_token: FencingToken


class Bench:
    """One replica of the authority, an owner's connection to look with, and short words for
    commands."""

    def __init__(
        self,
        authority: Authority,
        pool: asyncpg.Pool,
        owner: asyncpg.Connection,
        observer: Noting,
        admin_url: str,
        prefix: str,
    ) -> None:
        self.observer = observer
        self.authority = authority
        self.pool = pool
        self.owner = owner
        self._admin_url = admin_url
        self._prefix = prefix
        self.scheduler = Scheduler(pool, authority)

    def registration(
        self,
        node_id: str = "node-1",
        *,
        slots: int = 4,
        types: Sequence[str] = ("sha256",),
        effects: Effects = Effects.IDEMPOTENT,
        max_attempts: int = 5,
        cpu_millis: int | None = None,
        memory_bytes: int | None = None,
        incarnation: str | None = None,
        facts: dict[str, Any] | None = None,
        executable: Executable | None = None,
        concurrency: Mapping[str, int] | None = None,
        **profile: Any,
    ) -> Register:
        identity = IncarnationId(incarnation or str(uuid4()))
        return Register(
            command_id=CommandId(identity),
            fingerprint=f"{node_id}/{slots}".encode(),
            tenant=TENANT,
            actor="executor",
            node_id=NodeId(node_id),
            incarnation=identity,
            queue=node_queue(TENANT, identity, self._prefix),
            software="tests 1",
            protocol_version=1,
            slots=slots,
            cpu_millis=cpu_millis,
            memory_bytes=memory_bytes,
            task_types=tuple(declared(name, effects, max_attempts, **profile) for name in types),
            facts_text=json.dumps(facts or {}),
            executable=executable,
            concurrency=tuple((concurrency or {}).items()),
        )

    async def register(self, node_id: str = "node-1", **more: Any) -> IncarnationId:
        command = self.registration(node_id, **more)
        outcome = await self.authority.register(command)
        assert outcome.refused is None, outcome
        return command.incarnation

    def submission(self, **changes: Any) -> Submit:
        content: dict[str, Any] = {
            "tenant": TENANT,
            "actor": "application",
            "type": "sha256",
            "input_text": '{"path":"a"}',
            "priority": 0,
            "not_before": None,
            "deadline": None,
            "resources": None,
        } | changes
        fingerprint = hashlib.sha256(repr(sorted(content.items(), key=str)).encode()).digest()
        return Submit(
            **(
                {
                    "command_id": CommandId(str(uuid4())),
                    "fingerprint": fingerprint,
                    "task_id": TaskId(str(uuid7())),
                }
                | content
            )
        )

    async def submit(self, **changes: Any) -> TaskId:
        command = self.submission(**changes)
        (outcome,) = await self.authority.submit([command])
        assert outcome.reply is not None, outcome
        return command.task_id

    async def assigned(self, task_id: TaskId) -> Held:
        """Give waiting tasks to nodes, then the current attempt of ``task_id``."""
        await self.scheduler.step()
        held = await self.holder(task_id)
        assert held is not None, "no attempt: the scheduler did not allocate"
        return held

    async def holder(self, task_id: TaskId) -> Held | None:
        """The current attempt of ``task_id``, if it has one."""
        row = await self.pool.fetchrow(
            "select a.* from tenure.attempts a join tenure.tasks t"
            " on t.current_attempt_id = a.attempt_id where t.task_id = $1",
            task_id,
        )
        if row is None:
            return None
        return Held(
            task_id,
            AttemptId(str(row["attempt_id"])),
            NodeId(row["node_id"]),
            IncarnationId(str(row["incarnation"])),
            FencingToken(row["fencing_token"]),
        )

    async def running(self, **changes: Any) -> Held:
        """A task that an executor has taken."""
        held = await self.assigned(await self.submit(**changes))
        outcome = await self.report(Take, held)
        assert outcome.reply is not None, outcome
        return held

    def command(
        self, kind: type[AttemptCommand], held: Held, report_id: str | None = None, **more: Any
    ) -> Any:
        identity = report_id or str(uuid7())
        token = more.pop("fencing_token", held.fencing_token)
        fingerprint = hashlib.sha256(repr((kind.__name__, held, token, more)).encode()).digest()
        content: dict[str, Any] = {"tenant": TENANT, "actor": "executor"} | more
        return kind(
            command_id=CommandId(identity),
            fingerprint=fingerprint,
            node_id=held.node_id,
            incarnation=held.incarnation,
            task_id=held.task_id,
            attempt_id=held.attempt_id,
            fencing_token=token,
            **content,
        )

    async def report(
        self, kind: type[AttemptCommand], held: Held, report_id: str | None = None, **more: Any
    ) -> Outcome:
        return (await self.authority.report([self.command(kind, held, report_id, **more)]))[0]

    async def deliver(
        self, held: Held, output: Any = None, report_id: str | None = None, **more: Any
    ) -> Outcome:
        text = json.dumps(output)
        digest = hashlib.sha256(text.encode()).digest()
        return await self.report(
            Deliver, held, report_id, output_text=text, content_digest=digest, **more
        )

    async def cancel(self, task_id: TaskId) -> Outcome:
        return await self.authority.cancel(
            Cancel(CommandId(str(uuid4())), b"cancel", TENANT, "application", task_id)
        )

    async def take(self, held: Held) -> Outcome:
        return await self.report(Take, held)

    async def hold(self, task_id: TaskId, why: str = "because") -> Outcome:
        command = Hold(CommandId(str(uuid4())), b"hold", TENANT, "operator", task_id, why)
        return (await self.authority.intervene([command]))[0]

    async def release(self, task_id: TaskId) -> Outcome:
        command = Release(CommandId(str(uuid4())), b"release", TENANT, "operator", task_id)
        return (await self.authority.intervene([command]))[0]

    async def try_again(self, task_id: TaskId) -> Outcome:
        command = TryAgain(CommandId(str(uuid4())), b"retry", TENANT, "operator", task_id)
        return (await self.authority.intervene([command]))[0]

    async def hold_rejected(self, task_id: TaskId) -> Outcome:
        command = HoldRejected(CommandId(str(uuid4())), b"", TENANT, "sweeper", task_id)
        return (await self.authority.hold_rejected([command]))[0]

    async def fail(
        self, held: Held, report_id: str | None = None, *, retryable: bool = True
    ) -> Outcome:
        return await self.report(
            Fail, held, report_id, reason="handler_failed", message="", retryable=retryable
        )

    async def confirm_cancel(self, held: Held) -> Outcome:
        return await self.report(ConfirmCancel, held)

    async def expire(self, task_id: TaskId) -> Outcome:
        command = Expire(CommandId(str(uuid4())), b"", TENANT, "sweeper", task_id)
        return (await self.authority.expire([command]))[0]

    async def renew(self, held: Held) -> Outcome:
        (outcome,) = await self.authority.renew([self.command(Renew, held)], held.incarnation)
        return outcome

    async def end_lease(self, held: Held) -> None:
        """Let the lease run out, as time would."""
        await leases.end_lease(self.owner, held.attempt_id)

    async def superuser(self, statement: str) -> None:
        """Change what nobody may change."""
        connection = await asyncpg.connect(self._admin_url)
        try:
            await connection.execute(f"set session_replication_role = replica; {statement}")
        finally:
            await connection.close()

    async def now(self) -> datetime:
        """The authority's clock."""
        value: datetime = await self.owner.fetchval("select clock_timestamp()")
        return value

    async def task(self, task_id: TaskId) -> asyncpg.Record:
        row = await self.owner.fetchrow("select * from tenure.tasks where task_id = $1", task_id)
        assert row is not None
        return row

    async def attempt(self, held: Held) -> asyncpg.Record:
        row = await self.owner.fetchrow(
            "select * from tenure.attempts where attempt_id = $1", held.attempt_id
        )
        assert row is not None
        return row

    async def events(self, task_id: TaskId) -> list[asyncpg.Record]:
        """Events of a task and its attempts in the order of the log, copies left out."""
        return await self.owner.fetch(
            "select * from tenure.log where order_key = $1 and not copy order by position", task_id
        )

    async def everything(self) -> dict[str, Any]:
        """All state, to show that something changed nothing."""
        tables = (
            "tasks", "attempts", "reservations", "incarnations", "nodes", "receipts", "commands",
            "renewals", "log",
        )  # fmt: skip
        return {
            table: await self.owner.fetch(f"select * from tenure.{table} t order by t::text")
            for table in tables
        }


@asynccontextmanager
async def replica(
    database: FreshDatabase, policy: LeasePolicy | None = None, *, prefix: str = DEFAULT_PREFIX
) -> AsyncIterator[Bench]:
    """A running replica of the authority."""
    pool = await open_pool(
        routed(database.coordinator_url),
        size=8,
        application_name="test",
        pooled=database.pooled or services.POOLED,
        planned_once=True,
    )
    owner = await asyncpg.connect(database.owner_url)
    observer = Noting()
    authority = Authority(pool, pool, observer, policy=policy, prefix=prefix)
    running = asyncio.create_task(authority.run())
    try:
        yield Bench(authority, pool, owner, observer, database.admin_url, prefix)
    finally:
        authority.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await running
        await owner.close()
        await pool.close()
