"""A database that executors write to under the SQL guard, and attempts with authority over it."""

import secrets
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import asyncpg

from tenure.contract.ids import AttemptId, FencingToken, TaskId, fencing_token
from tenure.contract.scope import UNLIMITED, Scope
from tenure.executor.clock import system_clock
from tenure.executor.context import Context
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.guards.sql_install import grant_statements, install_statements, quoted
from tenure.executor.lease import Lease
from tests.support.isolation import with_login
from tests.support.waiting import eventually

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@dataclass(frozen=True)
class Downstream:
    """``owner`` owns the guard; ``writer`` is what an executor logs in as: it may call the guard's
    functions and write to its own table ``effects``, nothing else."""

    owner: "Connection"
    writer_url: str
    role: str

    async def effects(self, task: str) -> list[str]:
        """What was written for a task, in order."""
        rows = await self.owner.fetch(
            "select value from effects where task_id = $1 order by position", task
        )
        return [row["value"] for row in rows]


@asynccontextmanager
async def downstream(
    admin_url: str, *, install: str | None = None, schema: str = "public"
) -> AsyncIterator[Downstream]:
    """A downstream for the length of a block, in the database that ``admin_url`` logs in to.

    ``install`` replaces the guard's own statements (placeholders filled in): for tests that take
    one guard out. ``schema`` is made where it is another one.
    """
    role = f"writer_{secrets.token_hex(4)}"
    password = secrets.token_hex(8)
    owner = await asyncpg.connect(admin_url)
    try:
        await owner.execute(f"create role {role} login password '{password}'")
        try:
            await owner.execute(f"create schema if not exists {quoted(schema)}")
            await owner.execute(install or install_statements(schema=schema))
            await owner.execute(grant_statements(schema=schema, roles=[role]))
            await owner.execute(
                f"""
                create table effects (
                    position bigint generated always as identity, task_id uuid, value text,
                    fencing_token bigint
                );
                grant select, insert, update, delete on effects to {role}
                """
            )
            yield Downstream(owner, with_login(admin_url, role, password), role)
        finally:
            await owner.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", role
            )
            await owner.execute(f"drop owned by {role}; drop role {role}")
    finally:
        await owner.close()


async def attempt(
    observer: "Connection",
    *,
    task: str | None = None,
    generation: int = 1,
    expires_in_seconds: float = 60.0,
    remaining_seconds: float = 60.0,
    tolerance_seconds: float = 0.2,
    scope: Scope = UNLIMITED,
    input: Mapping[str, object] | None = None,
) -> Context[None]:
    """An attempt whose lease ends ``expires_in_seconds`` from now on the server's clock, and which
    believes by its own clock that it has ``remaining_seconds`` (a paused holder believes too long).
    """
    now = await observer.fetchval("select clock_timestamp()")
    clock = system_clock()
    lease = Lease(
        task_id=TaskId(task or str(uuid.uuid4())),
        attempt_id=AttemptId(str(uuid.uuid4())),
        fencing_token=FencingToken(fencing_token(1, generation)),
        clock=clock,
        tolerance_seconds=tolerance_seconds,
        renewal_interval_seconds=10.0,
        sent_at=clock(),
        remaining_seconds=remaining_seconds + tolerance_seconds,
        expires_at=now + timedelta(seconds=expires_in_seconds),
    )
    return Context(lease=lease, task_type="effect", resources=None, scope=scope, input=input)


async def write(
    guard: SqlGuard, context: Context[None], value: str, operation: str = "row"
) -> bool:
    """Write ``value`` under the guard; False when the operation had been done before."""
    async with guard.transaction(context, operation=operation) as effect:
        if not effect.already_done:
            await effect.connection.execute(
                "insert into effects (task_id, value) values ($1, $2)", context.task_id, value
            )
    return not effect.already_done


async def server_says(observer: Connection, question: str, *arguments: object) -> None:
    """Wait until the server answers the question with true."""

    async def answer() -> bool:
        return await observer.fetchval(question, *arguments) is True

    await eventually(answer)


async def gone(observer: Connection, pid: int) -> None:
    """Wait until the server has ended a session."""
    await server_says(
        observer, "select not exists (select from pg_stat_activity where pid = $1)", pid
    )
