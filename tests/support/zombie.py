"""A worker that stops its own process in front of its effect, and goes on when it is continued.

``python -m tests.support.zombie JSON``. Its own checks are switched off by what is handed in: the
clock of its lease stands still, so that it believes in its authority for ever. What comes of its
effect is printed: what the guard raised, or that it was done.
"""

import asyncio
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import asyncpg
import httpx2
from obstore.store import LocalStore

from tenure.contract.ids import AttemptId, FencingToken, TaskId
from tenure.executor.context import Context
from tenure.executor.guards.http import BlockingHttpGuard, HttpGuard
from tenure.executor.guards.objects import ObjectGuard
from tenure.executor.guards.payment import PaymentGuard, SqlitePayments
from tenure.executor.guards.payment_postgres import PostgresPayments
from tenure.executor.guards.psycopg import AsyncPsycopgGuard, PsycopgGuard
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.lease import Lease
from tests.support.gateway import Charge, Http, Order
from tests.support.s3 import S3Server

Stop = Callable[[], None]
Worker = Callable[["Told", Context[None], Stop], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Told:
    """What the process is told. ``where`` is the receiver's: a URL, a folder, an S3 server."""

    kind: str
    where: str
    task_id: str
    attempt_id: str
    token: int
    lease_seconds: float = 60.0
    record: str = ""
    stops: bool = True

    def context(self, expires_at: datetime) -> Context[None]:
        """The attempt, by a clock that stands still."""
        lease = Lease(
            task_id=TaskId(self.task_id),
            attempt_id=AttemptId(self.attempt_id),
            fencing_token=FencingToken(self.token),
            clock=lambda: 0,
            tolerance_seconds=0.2,
            renewal_interval_seconds=10.0,
            sent_at=0,
            remaining_seconds=3600.0,
            expires_at=expires_at,
        )
        return Context(lease=lease, task_type="effect", resources=None, ordinal=1)


INSERT = "insert into effects (task_id, value) values"


async def sql_before(told: Told, context: Context[None], stop: Stop) -> None:
    """Stopped before its transaction."""
    async with SqlGuard(told.where) as guard:
        await guard.raise_fence(context)
        stop()
        async with guard.transaction(context, operation="row") as effect:
            await effect.connection.execute(
                f"{INSERT} ($1, $2)", context.task_id, context.attempt_id
            )


async def sql_within(told: Told, context: Context[None], stop: Stop) -> None:
    """Stopped between the check and the commit."""
    async with SqlGuard(told.where) as guard:
        await guard.raise_fence(context)
        async with guard.transaction(context, operation="row") as effect:
            await effect.connection.execute(
                f"{INSERT} ($1, $2)", context.task_id, context.attempt_id
            )
            stop()


async def psycopg_within(told: Told, context: Context[None], stop: Stop) -> None:
    """The same in a thread, over psycopg."""

    def handler() -> None:
        with PsycopgGuard(told.where) as guard:
            guard.raise_fence_now(context)
            with guard.transaction(context, operation="row") as effect:
                effect.connection.execute(
                    f"{INSERT} (%s, %s)", (context.task_id, context.attempt_id)
                )
                stop()

    await asyncio.to_thread(handler)


async def async_psycopg_within(told: Told, context: Context[None], stop: Stop) -> None:
    """The same on the event loop, over psycopg."""
    async with AsyncPsycopgGuard(told.where) as guard:
        await guard.raise_fence(context)
        async with guard.transaction(context, operation="row") as effect:
            await effect.connection.execute(
                f"{INSERT} (%s, %s)", (context.task_id, context.attempt_id)
            )
            stop()


async def sqlalchemy_within(told: Told, context: Context[None], stop: Stop) -> None:
    """The same over SQLAlchemy."""
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    from tenure.executor.guards.sqlalchemy import AsyncSqlAlchemyGuard

    engine = create_async_engine(told.where.replace("postgresql:", "postgresql+asyncpg:"))
    guard = AsyncSqlAlchemyGuard(engine)
    await guard.raise_fence(context)
    async with guard.transaction(context, operation="row") as effect:
        values = {"task": context.task_id, "value": context.attempt_id}
        await effect.connection.execute(
            sqlalchemy.text(f"{INSERT} (cast(cast(:task as text) as uuid), :value)"), values
        )
        stop()


async def blocking_sqlalchemy_within(told: Told, context: Context[None], stop: Stop) -> None:
    """The same in a thread, over SQLAlchemy."""
    import sqlalchemy

    from tenure.executor.guards.sqlalchemy import SqlAlchemyGuard

    def handler() -> None:
        engine = sqlalchemy.create_engine(told.where.replace("postgresql:", "postgresql+psycopg:"))
        guard = SqlAlchemyGuard(engine)
        guard.raise_fence_now(context)
        with guard.transaction(context, operation="row") as effect:
            effect.connection.execute(
                sqlalchemy.text(f"{INSERT} (cast(cast(:task as text) as uuid), :value)"),
                {"task": context.task_id, "value": context.attempt_id},
            )
            stop()

    await asyncio.to_thread(handler)


async def plain_sql_within(told: Told, context: Context[None], stop: Stop) -> None:
    """The same without a guard of ours: the functions, as any language calls them."""
    connection = await asyncpg.connect(told.where)
    fence = (context.task_id, context.fencing_token, context.expires_at, timedelta(seconds=0.2))
    await connection.execute("select tenure_raise_fence($1, $2, $3, $4)", *fence)
    async with connection.transaction():
        await connection.execute(
            "select tenure_guard($1, $2, 'row', $3, $4, $5, 60000)",
            context.task_id, context.attempt_id, *fence[1:],
        )  # fmt: skip
        await connection.execute(f"{INSERT} ($1, $2)", context.task_id, context.attempt_id)
        stop()


async def http(told: Told, context: Context[None], stop: Stop) -> None:
    """Stopped before its request."""
    async with httpx2.AsyncClient(base_url=told.where, timeout=60) as client:
        guard = HttpGuard(client)
        await guard.raise_fence(context)
        stop()
        await guard.post(context, "/orders", operation="order", content=context.attempt_id)


async def blocking_http(told: Told, context: Context[None], stop: Stop) -> None:
    """The same in a thread."""

    def handler() -> None:
        with httpx2.Client(base_url=told.where, timeout=60) as client:
            guard = BlockingHttpGuard(client)
            guard.raise_fence_now(context)
            stop()
            guard.post(context, "/orders", operation="order", content=context.attempt_id)

    await asyncio.to_thread(handler)


async def objects(told: Told, context: Context[None], stop: Stop) -> None:
    """Stopped before its commit."""
    server = json.loads(told.where)
    store: Any = LocalStore(server) if isinstance(server, str) else S3Server(**server).store()
    guard = ObjectGuard(store)
    await guard.raise_fence(context)
    async with guard.outputs(context) as outputs:
        await outputs.put("a.bin", context.attempt_id.encode())
        stop()


async def payment(told: Told, context: Context[None], stop: Stop) -> None:
    """Stopped after it has written its intention down, in front of its order."""

    class Stopping(Http):
        async def act(self, payment_id: str, request: Order) -> Charge:
            stop()
            return await super().act(payment_id, request)

    async with httpx2.AsyncClient(base_url=told.where, timeout=60) as client:
        record = SqlitePayments(told.record)
        guard = PaymentGuard(Stopping(client), record, receipt=Charge, gateway_deduplicates=True)
        await guard.pay(context, operation="charge", request=Order(cents=100))


async def payment_before(told: Told, context: Context[None], stop: Stop) -> None:
    """Stopped before it has written anything down; the record is a file, or in PostgreSQL."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=told.where, timeout=60)
        )
        record: SqlitePayments | PostgresPayments = (
            PostgresPayments(await stack.enter_async_context(SqlGuard(told.record)))
            if told.record.startswith("postgresql:")
            else SqlitePayments(told.record)
        )
        await record.raise_fence(context)
        stop()
        guard = PaymentGuard(Http(client), record, receipt=Charge, gateway_deduplicates=False)
        await guard.pay(context, operation="charge", request=Order(cents=100))


WORKERS: dict[str, Worker] = {
    worker.__name__: worker
    for worker in (
        sql_before,
        sql_within,
        psycopg_within,
        async_psycopg_within,
        sqlalchemy_within,
        blocking_sqlalchemy_within,
        plain_sql_within,
        http,
        blocking_http,
        objects,
        payment,
        payment_before,
    )
}


@asynccontextmanager
async def process_of(told: Told) -> Any:
    """Such a process for the length of a block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.zombie", json.dumps(told.__dict__),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def end_of_lease(process: asyncio.subprocess.Process) -> datetime:
    """When its lease ends: counted from when its program was loaded, however long that took."""
    assert process.stdout is not None
    return datetime.fromisoformat((await process.stdout.readline()).decode().strip())


async def outcome_of(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """What the guard raised, "done" where it raised nothing, and the SQLSTATE behind it."""
    assert process.stdout is not None
    said = json.loads(await process.stdout.readline())
    return said["raised"], said["sqlstate"]


def _stop() -> None:
    # To this thread: told to the process, another thread may take it, and this one would go on.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _go_on() -> None:
    """For the successor: it is not stopped."""


def _load(kind: str) -> None:
    """What is large and of use to some only, before their lease begins: it takes seconds on a busy
    machine."""
    if "sqlalchemy" in kind:
        for name in ("asyncpg", "psycopg"):
            import_module(f"sqlalchemy.dialects.postgresql.{name}")
        import_module("tenure.executor.guards.sqlalchemy")


async def _main(told: Told) -> None:
    raised = sqlstate = ""
    _load(told.kind)
    expires_at = datetime.now(UTC) + timedelta(seconds=told.lease_seconds)
    sys.stdout.write(f"{expires_at.isoformat()}\n")
    sys.stdout.flush()
    try:
        context = told.context(expires_at)
        await WORKERS[told.kind](told, context, _stop if told.stops else _go_on)
        raised = "done"
    except Exception as error:  # noqa: BLE001 - it is what the test asks for
        raised = type(error).__name__
        cause = error.__cause__
        found = getattr(cause, "sqlstate", None)
        sqlstate = found if isinstance(found, str) else ""
        if isinstance(cause, asyncpg.PostgresError):
            sqlstate = cause.sqlstate or ""
    sys.stdout.write(json.dumps({"raised": raised, "sqlstate": sqlstate}) + "\n")


if __name__ == "__main__":
    asyncio.run(_main(Told(**json.loads(sys.argv[1]))))
