"""A database and a broker namespace that no other test sees."""

import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from urllib.parse import quote, urlsplit

import asyncpg
import httpx2

from tenure.coordinator.store import migrate
from tenure.coordinator.store.roles import Roles, roles_sql
from tests.support.pgbouncer import Pooler
from tests.support.services import BrokerServer


@dataclass(frozen=True)
class FreshDatabase:
    """A database of the test's own, and the logins to it.

    ``owner_url`` owns the schema and may create roles, but is no superuser; ``coordinator_url`` and
    ``relay_url`` are the roles of the services (they exist in migrated databases); ``admin_url`` is
    the login that made the database, as a rule a superuser. ``pooled``: the services' logins go
    through a pooler in transaction mode.
    """

    name: str
    owner_url: str
    coordinator_url: str
    relay_url: str
    admin_url: str
    pooled: bool = False

    def through(self, pooler: Pooler) -> "FreshDatabase":
        """The same database, with the services' logins through a pooler."""
        return replace(
            self,
            coordinator_url=pooler.through(self.coordinator_url),
            relay_url=pooler.through(self.relay_url),
            pooled=True,
        )


@dataclass(frozen=True)
class BrokerSpace:
    """Where a test declares its exchanges and queues.

    ``url`` leads to a vhost of its own where the backend can make one. ``name_prefix`` is the
    test's own everywhere, and the names a test declares have to begin with it.
    """

    url: str
    name_prefix: str


_OWNER = "tenure_test_owner"
_LOCK = 7_365_001


def with_path(url: str, path: str) -> str:
    """The URL with another database or vhost."""
    return urlsplit(url)._replace(path="/" + quote(path, safe="")).geturl()


def with_login(url: str, user: str, password: str) -> str:
    """The URL with another user."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()


class DatabaseServer:
    """Makes databases on the server that ``url`` logs in to."""

    def __init__(self, url: str) -> None:
        self.url = url
        # The same for every process that shares the server: roles belong to all of it.
        self._password = hashlib.sha256(url.encode()).hexdigest()[:24]

    async def prepare(self) -> None:
        """Make the owner of test databases, who is what `tenure migrate` asks for and no more."""
        await self._execute_locked(
            f"""
            do $$ begin
                create role {_OWNER};
            exception when duplicate_object or unique_violation then null;
            end $$;
            alter role {_OWNER} login nosuperuser createrole password '{self._password}'
            """
        )

    async def create_migrated(self, name: str) -> FreshDatabase:
        """Create a database with the newest schema and the services' roles."""
        roles = Roles()
        services = f"{roles.coordinator}, {roles.relay}"
        await self._execute_locked(
            roles_sql(roles)
            + "".join(f"alter role {one} password '{self._password}';" for one in roles.names())
            + f"grant {services} to {_OWNER} with admin option"
        )
        database = await self.create(name)
        await migrate.up(database.owner_url)
        return database

    async def create(self, name: str, *, template: str = "template0") -> FreshDatabase:
        """Create a database as a copy of ``template``; nobody may be connected to that."""
        await self._execute(f'create database "{name}" template "{template}" owner {_OWNER}')
        url = with_path(self.url, name)
        roles = Roles()
        return FreshDatabase(
            name=name,
            owner_url=with_login(url, _OWNER, self._password),
            coordinator_url=with_login(url, roles.coordinator, self._password),
            relay_url=with_login(url, roles.relay, self._password),
            admin_url=url,
        )

    def logins(self) -> dict[str, str]:
        """Passwords of the accounts of these databases, by user."""
        return dict.fromkeys((*Roles().names(), _OWNER), self._password)

    async def drop(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        await self._execute(f'drop database if exists "{name}" with (force)')

    @asynccontextmanager
    async def fresh(self, *, template: str = "template0") -> AsyncIterator[FreshDatabase]:
        """A database for the length of a block."""
        database = await self.create(f"test_{secrets.token_hex(6)}", template=template)
        try:
            yield database
        finally:
            await self.drop(database.name)

    async def _execute_locked(self, statement: str) -> None:
        """As one transaction, and one process at a time: roles cannot be altered at once."""
        await self._execute(f"select pg_advisory_xact_lock({_LOCK}); {statement}")

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


async def make_patient(database: FreshDatabase) -> None:
    """Let the services' sessions that begin from now on wait for locks and statements as long as
    the test does, so that a busy machine ends none. A pooler may keep older sessions."""
    names = ("lock_timeout", "statement_timeout", "transaction_timeout")
    await _alter_roles_in(database, *(f"set {name} = 0" for name in names))


async def make_impatient(database: FreshDatabase) -> None:
    """Take back ``make_patient``: the limits of the role hold again."""
    await _alter_roles_in(database, "reset all")


async def _alter_roles_in(database: FreshDatabase, *changes: str) -> None:
    connection = await asyncpg.connect(database.admin_url)
    try:
        for role in Roles().names():
            for change in changes:
                await connection.execute(
                    f'alter role {role} in database "{database.name}" {change}'
                )
    finally:
        await connection.close()


_STATE = (
    "commands", "task_types", "tasks", "task_inputs", "task_progress", "attempts", "reservations",
    "nodes", "incarnations", "receipts", "renewals", "intake", "intake_roles", "log", "profiles",
    "executables", "fact_changes", "erasures",
)  # fmt: skip


async def empty_state(database: FreshDatabase) -> None:
    """Delete every row of the authority's state, which only a superuser can."""
    connection = await asyncpg.connect(database.admin_url)
    try:
        await connection.execute(
            "set session_replication_role = replica;"  # no trigger may refuse it
            + "".join(f"delete from tenure.{table};" for table in _STATE)
            + "delete from tenure.pauses; delete from tenure.subscriptions;"
            "delete from tenure.dead_letters;"
            "delete from tenure.limits; delete from tenure.limit_buckets;"
            "delete from tenure.replay_changes; delete from tenure.replays;"
            "delete from tenure.accounts where tenant <> 'default';"
            "delete from tenure.tenants where tenant <> 'default';"
            "update tenure.accounts set held_minor = 0, spent_minor = 0;"
            "update tenure.tenants set version = 1, state = 'authorized', weight = 1,"
            " node_pools = '{*}', locations = '{*}', networks = '{*}', budget_minor = null,"
            " budget_unlimited = true, currency = null, pauses = null, limits = null;"
        )
    finally:
        await connection.close()


@asynccontextmanager
async def fresh_space(server: BrokerServer) -> AsyncIterator[BrokerSpace]:
    """A namespace on the broker for the length of a block.

    Without a management plugin the vhost is shared, and what was declared in it stays.
    """
    prefix = f"test-{secrets.token_hex(6)}"
    if server.management is None:
        yield BrokerSpace(url=server.url, name_prefix=prefix)
        return
    parts = urlsplit(server.management)
    user, password = parts.username or "", parts.password or ""
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def management() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=address, auth=(user, password), timeout=120)

    async with management() as client:
        (await client.put(f"/api/vhosts/{prefix}", json={})).raise_for_status()
    try:
        async with management() as client:
            # The broker gives a vhost's rights to the user who makes it only in some releases.
            rights = {"configure": ".*", "write": ".*", "read": ".*"}
            answer = await client.put(f"/api/permissions/{prefix}/{user}", json=rights)
            answer.raise_for_status()
        yield BrokerSpace(url=with_path(server.url, prefix), name_prefix=prefix)
    finally:
        async with management() as client:  # another: one that is idle is closed after a minute
            (await client.delete(f"/api/vhosts/{prefix}")).raise_for_status()
