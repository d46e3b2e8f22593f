"""Facts about a database and a login to it, for `tenure doctor`.

Nothing is judged here, and nothing is changed there.
"""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Final, Literal

import asyncpg

from tenure.contract.errors import TenureError
from tenure.coordinator.store import migrate, named_queries
from tenure.coordinator.store.connecting import by_transaction, session
from tenure.settings.pooler import is_pooled

_QUERIES: Final = named_queries.load("inspection.sql")
_AUTHORITY: Final = named_queries.load("authority.sql")["standing"]
_CLOCK_READINGS: Final = 5

Service = Literal["coordinator", "relay"]


class Pooling(StrEnum):
    """What stands between us and the server."""

    NONE = "none"
    SESSION = "session"  # or in a mode that hides it
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class Clock:
    """By how many seconds the database's clock is ahead of this machine's, give or take
    ``uncertainty_seconds``."""

    ahead_seconds: float
    uncertainty_seconds: float


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """What was found.

    ``schema_fault``: why this program cannot use the schema. ``lacking``: functions and tables that
    the service needs and this login may not use. ``writable``: tables that it may change by itself.
    ``limits`` in milliseconds, 0 for none. ``authority_confirmed``: None where it cannot be asked.
    """

    server_version: str
    user_name: str
    superuser: bool
    owner: bool
    pooling: Pooling
    schema_fault: TenureError | None
    lacking: tuple[str, ...]
    writable: tuple[str, ...]
    limits: Mapping[str, int]
    free_connections: int
    clock: Clock
    authority_confirmed: bool | None


@dataclass(frozen=True, slots=True)
class LeftUndone:
    """What waits for a person in a database: rows of the log that are parked, replays that are
    paused by why, by kind for how many seconds the oldest row has been due for removal, and by type
    how many tasks wait although no node runs the type (of 100,000 waiting tasks)."""

    parked: int
    paused_replays: Mapping[str, int]
    overdue_seconds: Mapping[str, float]
    waiting_for_a_type: Mapping[str, int]


async def left_undone(url: str) -> LeftUndone:
    """What waits for a person, of a database with this release's schema, as a coordinator may ask.

    Raises DatabaseUnreachable, DatabaseRefused, DatabaseUntrusted.
    """
    async with session(url) as connection:
        row = await connection.fetchrow(_QUERIES["left_undone"])
        assert row is not None  # it has no condition
        return LeftUndone(
            parked=row["parked"],
            paused_replays=json.loads(row["paused_replays"]),
            overdue_seconds=json.loads(row["overdue_seconds"]),
            waiting_for_a_type=json.loads(row["waiting_for_a_type"]),
        )


async def inspect(url: str, service: Service) -> DatabaseFacts:
    """Look at the database as ``service`` would use it.

    Raises DatabaseUnreachable, DatabaseRefused, DatabaseUntrusted.
    """
    async with session(url) as connection:
        row = await connection.fetchrow(_QUERIES["session"])
        assert row is not None  # everybody has a role
        room = row["max_connections"] - row["reserved_connections"] - row["open_connections"]
        if row["connection_limit"] >= 0:
            room = min(room, row["connection_limit"])
        functions, tables = needed(service)
        fault = await _schema_fault(connection)
        lacking = await connection.fetch(_QUERIES["lacking"], sorted(functions), sorted(tables))
        writable = await connection.fetch(_QUERIES["writable"])
        return DatabaseFacts(
            server_version=row["server_version"],
            user_name=row["user_name"],
            superuser=row["superuser"],
            owner=row["owner"],
            pooling=await _pooling(connection, url),
            schema_fault=fault,
            lacking=tuple(one["name"] for one in lacking),
            writable=tuple(one["name"] for one in writable),
            limits={name: int(value) for name, value in json.loads(row["limits"]).items()},
            free_connections=room,
            clock=await _clock(connection),
            authority_confirmed=None if fault else await _authority_confirmed(connection),
        )


def needed(service: Service) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the functions and tables that the service may use, as granted by migrations."""
    text = (resources.files("tenure.coordinator.store") / "grants.sql").read_text("utf-8")
    functions: set[str] = set()
    tables: set[str] = set()
    for right, objects in re.findall(
        rf'grant (execute on function|select on)\s([^;]*?)to :"{service}";', text
    ):
        found = functions if right.startswith("execute") else tables
        pattern = r"tenure\.(\w+)\(" if right.startswith("execute") else r"tenure\.(\w+)"
        found.update(re.findall(pattern, objects))
    return frozenset(functions), frozenset(tables)


async def _schema_fault(connection: asyncpg.Connection) -> TenureError | None:
    try:
        migrate.check_server(connection)
        (await migrate.read_status(connection)).check()
    except TenureError as error:
        return error
    return None


async def _pooling(connection: asyncpg.Connection, url: str) -> Pooling:
    if not await is_pooled(connection):
        return Pooling.NONE
    return Pooling.TRANSACTION if await by_transaction(connection, url) else Pooling.SESSION


async def _clock(connection: asyncpg.Connection) -> Clock:
    """The reading with the shortest round trip."""
    readings = []
    for _ in range(_CLOCK_READINGS):
        before = time.time()
        now = await connection.fetchval(_QUERIES["clock"])
        after = time.time()
        half = (after - before) / 2
        readings.append(Clock(now.timestamp() - before - half, half))
    return min(readings, key=lambda reading: reading.uncertainty_seconds)


async def _authority_confirmed(connection: asyncpg.Connection) -> bool | None:
    try:
        return await connection.fetchval(_AUTHORITY) is not None
    except asyncpg.InsufficientPrivilegeError:
        return None  # the relay may not ask
