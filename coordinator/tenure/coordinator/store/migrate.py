"""Forward-only migrations: ``migrations/NNNN_name.sql``, each applied once, in order, and recorded.

Every file runs in one transaction with its record, unless its first line is ``-- no-transaction``:
then its statements run one by one, each must bear repetition, and none may hold a semicolon at the
end of an inner line. The files of a release never change afterwards; their SHA-256 is stored and
compared. After the files the grants are applied anew.

A session lock keeps two migrations of one database apart. It is polled: a session that waits for a
lock holds a snapshot, and an index build without a transaction would wait for that for ever. So
``up`` needs a direct connection, or a pooler in session mode.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Final

import asyncpg

from tenure.coordinator.store.connecting import by_transaction, session
from tenure.coordinator.store.errors import (
    DatabaseRefused,
    MigrationBusy,
    MigrationEdited,
    MigrationFailed,
    MigrationThroughPooler,
    NotMigrated,
    RolesNeeded,
    SchemaTooNew,
    ServerTooOld,
)
from tenure.coordinator.store.roles import Roles, ensure_roles, missing_roles, quote_identifier
from tenure.settings.pooler import PoolerNotDeclared

MINIMUM_SERVER_MAJOR: Final = 17
LOCK_WAIT_SECONDS: Final = 120.0
_ADVISORY_KEY: Final = int.from_bytes(b"tenure", "big")
_NO_TRANSACTION: Final = "-- no-transaction"
_SESSION: Final = """
    set search_path = tenure, pg_temp;
    set client_min_messages = warning;
    set lock_timeout = '3s';
    set statement_timeout = 0;
    set transaction_timeout = 0;
    set idle_in_transaction_session_timeout = '60s';
"""
_BOOKKEEPING: Final = """
    create table if not exists tenure.schema_migrations (
        version integer primary key,
        name text not null,
        sha256 text not null,
        applied_at timestamptz not null default clock_timestamp(),
        applied_by text not null default current_user
    )
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file. ``sql`` is its text; ``transactional`` is False after ``-- no-transaction``."""

    version: int
    name: str
    sha256: str
    sql: str
    transactional: bool


@dataclass(frozen=True, slots=True)
class Applied:
    """One row of ``tenure.schema_migrations``."""

    version: int
    name: str
    sha256: str
    applied_at: datetime
    applied_by: str


@dataclass(frozen=True, slots=True)
class Status:
    """The database's migrations against this program's; ``unknown`` are not known here."""

    applied: tuple[Applied, ...]
    pending: tuple[Migration, ...]
    edited: tuple[Applied, ...]
    unknown: tuple[Applied, ...]

    def check(self) -> None:
        """Raises SchemaTooNew, MigrationEdited or NotMigrated, in this order, when it is so."""
        self.check_history()
        if self.pending:
            raise NotMigrated(
                f"The database lacks {_names(self.pending)}.",
                next_step="Run `tenure migrate up` with the login that owns the schema.",
            )

    def check_history(self) -> None:
        """Raises SchemaTooNew or MigrationEdited, when it is so."""
        if self.unknown:
            raise SchemaTooNew(
                f"The database has {_names(self.unknown)}, which this program does not know.",
                next_step="Upgrade this program; migrations are never undone.",
            )
        if self.edited:
            raise MigrationEdited(
                f"The database was migrated with other content of {_names(self.edited)}.",
                next_step="Use the release it was migrated with, or restore the files as released.",
            )


def migrations() -> tuple[Migration, ...]:
    """All files of this program by version. Raises ValueError for two files with one number."""
    folder = resources.files("tenure.coordinator.store") / "migrations"
    found = []
    for entry in folder.iterdir():
        if not entry.name.endswith(".sql"):
            continue
        number, _, name = entry.name.removesuffix(".sql").partition("_")
        content = entry.read_bytes()
        sql = content.decode()
        found.append(
            Migration(
                version=int(number),
                name=name,
                sha256=hashlib.sha256(content).hexdigest(),
                sql=sql,
                transactional=sql.partition("\n")[0].strip() != _NO_TRANSACTION,
            )
        )
    found.sort(key=lambda migration: migration.version)
    versions = [migration.version for migration in found]
    if len(set(versions)) != len(versions):
        raise ValueError(f"two migrations have one number: {versions}")
    return tuple(found)


async def up(
    url: str,
    progress: Callable[[Applied], None] | None = None,
    *,
    roles: Roles | None = None,
    files: tuple[Migration, ...] | None = None,
    lock_wait_seconds: float = LOCK_WAIT_SECONDS,
) -> list[Applied]:
    """Bring the database to this program's schema; returns what was applied, after each the call of
    ``progress``. Nothing pending: the roles and grants are still put right.

    The login owns the schema; it needs ``create`` on the database for the first run, and
    ``createrole`` unless the roles exist. No superuser, no extension.

    Raises any SchemaError.
    """
    async with connected(url) as connection:
        if await by_transaction(connection, url):
            raise MigrationThroughPooler(
                "The database is reached through a connection pooler in transaction mode, where a"
                " migration's lock and settings would reach other people's sessions.",
                next_step="Give `tenure migrate` a direct connection, or one in session mode.",
            )
        return await _up(connection, progress, roles or Roles(), files, lock_wait_seconds)


async def _up(
    connection: asyncpg.Connection,
    progress: Callable[[Applied], None] | None,
    roles: Roles,
    files: tuple[Migration, ...] | None,
    lock_wait_seconds: float,
) -> list[Applied]:
    async with _lock(connection, lock_wait_seconds):
        await connection.execute(_SESSION)
        known = migrations() if files is None else files
        (await _read_status(connection, known)).check_history()
        await ensure_roles(connection, roles)
        done = []
        try:
            if not await _schema_exists(connection):
                await connection.execute("create schema tenure")
            await connection.execute(_BOOKKEEPING)
            for migration in (await _read_status(connection, known)).pending:
                applied = await _apply(connection, migration, lock_wait_seconds)
                done.append(applied)
                if progress is not None:
                    progress(applied)
            await connection.execute(_grants(roles))
        except asyncpg.InsufficientPrivilegeError as error:
            raise DatabaseRefused(
                f"This login may not migrate: {error}.",
                next_step="Migrate with the login that owns the schema, and may create in the"
                " database.",
            ) from error
        return done


async def status(url: str) -> Status:
    """What is applied and what is not.

    Raises ServerTooOld, DatabaseUnreachable, DatabaseRefused.
    """
    async with connected(url) as connection:
        return await _read_status(connection, migrations())


async def verify(url: str, *, roles: Roles | None = None) -> Status:
    """The status of a database that this program can use.

    Raises SchemaTooNew, MigrationEdited, NotMigrated, RolesNeeded, and what ``status`` raises.
    """
    async with connected(url) as connection:
        found = await _read_status(connection, migrations())
        found.check()
        faults = await missing_roles(connection, roles or Roles())
    if faults:
        raise RolesNeeded(
            f"{'; '.join(faults)}.",
            next_step="Run `tenure migrate up`, or let an administrator run what"
            " `tenure migrate roles --print` prints.",
        )
    return found


async def read_status(connection: asyncpg.Connection) -> Status:
    """As ``status``, over a connection of the caller's, of any role that may use the schema."""
    return await _read_status(connection, migrations())


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A session on a server that is new enough.

    Raises ServerTooOld, DatabaseUnreachable, DatabaseRefused, DatabaseUntrusted.
    """
    async with session(url) as connection:
        check_server(connection)
        yield connection


def check_server(connection: asyncpg.Connection) -> None:
    """Raises ServerTooOld."""
    version = connection.get_server_version()
    if version.major < MINIMUM_SERVER_MAJOR:
        raise ServerTooOld(
            f"The server is PostgreSQL {version.major}.{version.minor}; Tenure's state needs"
            f" {MINIMUM_SERVER_MAJOR} or newer.",
            next_step="Use a newer server; downstream databases may stay older.",
        )


async def check_pooler(url: str) -> None:
    """Raises PoolerNotDeclared where a pooler in transaction mode was seen, and what ``connected``
    raises."""
    async with connected(url) as connection:
        if await by_transaction(connection, url):
            raise PoolerNotDeclared


@asynccontextmanager
async def _lock(connection: asyncpg.Connection, wait_seconds: float) -> AsyncIterator[None]:
    deadline = time.monotonic() + wait_seconds
    while not await connection.fetchval("select pg_try_advisory_lock($1)", _ADVISORY_KEY):
        if time.monotonic() > deadline:
            raise MigrationBusy(
                f"Another process has been migrating this database for {wait_seconds:.0f} s.",
                next_step="Wait for it, or end its session.",
            )
        await asyncio.sleep(random.uniform(0.05, 0.15))
    try:
        yield
    finally:
        if not connection.is_closed():
            await connection.execute("select pg_advisory_unlock($1)", _ADVISORY_KEY)


async def _schema_exists(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval("select true from pg_namespace where nspname = 'tenure'"))


async def _read_status(connection: asyncpg.Connection, known: tuple[Migration, ...]) -> Status:
    # From the catalogue, since a name that may not be looked up is an error and not an absence.
    exists = await connection.fetchval(
        "select true from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = 'tenure' and c.relname = 'schema_migrations'"
    )
    rows = []
    if exists:
        try:
            rows = await connection.fetch(
                "select version, name, sha256, applied_at, applied_by"
                " from tenure.schema_migrations order by version"
            )
        except asyncpg.InsufficientPrivilegeError as error:
            raise DatabaseRefused(
                f"This login may not read the schema: {error}.",
                next_step="Use one of the services' roles, or the owner's.",
            ) from error
    applied = tuple(Applied(**row) for row in rows)
    files = {migration.version: migration for migration in known}
    recorded = {row.version for row in applied}
    return Status(
        applied=applied,
        pending=tuple(migration for migration in known if migration.version not in recorded),
        edited=tuple(
            row
            for row in applied
            if row.version in files and files[row.version].sha256 != row.sha256
        ),
        unknown=tuple(row for row in applied if row.version not in files),
    )


async def _apply(
    connection: asyncpg.Connection, migration: Migration, wait_seconds: float
) -> Applied:
    """Apply one file; waits for locks in short turns, so that nobody queues behind it for long."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return await _apply_once(connection, migration)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if time.monotonic() > deadline:
                raise MigrationBusy(
                    f"{_label(migration)} gets no lock: {error}.",
                    next_step="Repeat when the database is less busy.",
                ) from error
            await asyncio.sleep(random.uniform(0.1, 1.0))
        except asyncpg.InsufficientPrivilegeError:
            raise
        except asyncpg.PostgresError as error:
            position = getattr(error, "position", None)
            line = migration.sql.count("\n", 0, int(position)) + 1 if position else None
            where = f" (line {line})" if line and migration.transactional else ""
            raise MigrationFailed(
                f"{_label(migration)} was refused{where}: {error}.",
                next_step="Nothing of it was applied." if migration.transactional else "",
            ) from error


async def _apply_once(connection: asyncpg.Connection, migration: Migration) -> Applied:
    record = (migration.version, migration.name, migration.sha256)
    if migration.transactional:
        async with connection.transaction():
            await connection.execute(migration.sql)
            # What the file made is closed to everybody before anybody can see it.
            await connection.execute("revoke all on all functions in schema tenure from public")
            return await _record(connection, *record)
    for statement in migration.sql.split(";\n"):
        if statement.strip():
            await connection.execute(statement)
    return await _record(connection, *record)


async def _record(connection: asyncpg.Connection, version: int, name: str, sha256: str) -> Applied:
    (row,) = await connection.fetch(
        "insert into tenure.schema_migrations (version, name, sha256) values ($1, $2, $3)"
        " returning version, name, sha256, applied_at, applied_by",
        version,
        name,
        sha256,
    )
    return Applied(**row)


def _grants(roles: Roles) -> str:
    text = (resources.files("tenure.coordinator.store") / "grants.sql").read_text("utf-8")
    coordinator, relay = (quote_identifier(name) for name in roles.names())
    return text.replace(':"coordinator"', coordinator).replace(':"relay"', relay)


def _label(migration: Migration | Applied) -> str:
    return f"{migration.version:04}_{migration.name}"


def _names(found: tuple[Migration, ...] | tuple[Applied, ...]) -> str:
    return ", ".join(_label(entry) for entry in found)
