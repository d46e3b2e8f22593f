"""An application with a login of its own, which may enqueue and nothing else."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from tenure.contract.ids import TenantId
from tenure.contract.tasks import DEFAULT_PAYLOAD_LIMIT_BYTES
from tenure.coordinator.intake import Intake
from tenure.coordinator.store import applications
from tests.support.authority import Bench, replica
from tests.support.isolation import FreshDatabase, with_login
from tests.support.sessions import session

OPTIONS = {
    "idempotency_key": "text", "priority": "integer", "not_before": "timestamptz",
    "deadline": "timestamptz", "cpu_millis": "integer", "memory_bytes": "bigint", "tenant": "text",
    "concurrency_key": "text", "scope": "json", "traceparent": "text",
}  # fmt: skip


@dataclass(frozen=True)
class Login:
    """A role of the server, and how to log in as it."""

    role: str
    url: str


@asynccontextmanager
async def login(database: FreshDatabase) -> AsyncIterator[Login]:
    """A role without any rights for the length of a block."""
    role, password = f"test_shop_{secrets.token_hex(6)}", secrets.token_hex(12)
    async with session(database.admin_url) as admin:
        await admin.execute(f"create role {role} login password '{password}'")
        try:
            yield Login(role, with_login(database.admin_url, role, password))
        finally:
            await admin.execute(f"drop owned by {role}; drop role {role}")
            await admin.execute("delete from tenure.intake_roles where role_name = $1", role)


@asynccontextmanager
async def application(
    database: FreshDatabase, tenants: Sequence[str] = ("default",)
) -> AsyncIterator[Login]:
    """A login that may enqueue for ``tenants``, and owns a schema for its own tables."""
    async with login(database) as shop:
        async with session(database.admin_url) as admin:
            await admin.execute(f"create schema {shop.role} authorization {shop.role}")
        for tenant in tenants:
            await applications.allow(database.owner_url, shop.role, TenantId(tenant))
        yield shop


async def enqueue(
    connection: asyncpg.Connection, type_name: str = "sha256", input: str = "1", **options: Any
) -> str:
    """Call the function as any language would. ``input`` is JSON."""
    words = "".join(
        f", {name} => ${number}::{OPTIONS[name]}" for number, name in enumerate(options, start=3)
    )
    return str(
        await connection.fetchval(
            f"select tenure.enqueue(type => $1::text, input => $2::text::json{words})",
            type_name,
            input,
            *options.values(),
        )
    )


@dataclass
class Shop:
    """An application, a replica that takes in what it enqueues, and the owner's look at it."""

    login: Login
    connection: asyncpg.Connection
    bench: Bench
    intake: Intake

    async def rows(self) -> list[asyncpg.Record]:
        return await self.bench.owner.fetch("select * from tenure.intake order by intake_id")

    async def tasks(self) -> list[str]:
        rows = await self.bench.owner.fetch(
            "select task_id::text as id from tenure.tasks order by 1"
        )
        return [row["id"] for row in rows]

    async def take_in(self) -> None:
        """Until nothing waits."""
        while await self.intake.step():
            pass

    async def refused(self) -> tuple[str, str]:
        """Code and message of the last row, which has to be refused."""
        row = (await self.rows())[-1]
        assert row["state"] == "refused"
        return row["code"], row["message"]

    async def recorded(self) -> list[str]:
        """Tasks by their first events."""
        rows = await self.bench.owner.fetch(
            "select entity_id::text as id from tenure.log where entity_type = 'task' order by 1"
        )
        return [row["id"] for row in rows]


def loop(bench: Bench, payload_limit_bytes: int = DEFAULT_PAYLOAD_LIMIT_BYTES) -> Intake:
    """The loop of a replica, to be stepped by hand."""
    return Intake(bench.pool, bench.authority, payload_limit_bytes=payload_limit_bytes)


@asynccontextmanager
async def open_shop(database: FreshDatabase) -> AsyncIterator[Shop]:
    """An application beside a replica that knows the type ``sha256``."""
    async with (
        replica(database) as bench,
        application(database) as login,
        session(login.url) as connection,
    ):
        await bench.register()
        yield Shop(login, connection, bench, loop(bench))
