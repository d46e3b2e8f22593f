"""What a downstream database is like for an executor's login: for ``tenure doctor``."""

import time
from dataclasses import dataclass
from typing import Final

import asyncpg

from tenure.executor.errors import GuardUnavailable
from tenure.executor.guards.sql_common import said
from tenure.executor.guards.sql_install import FUNCTIONS, quoted

_READINGS: Final = 5
_SECONDS: Final = 10.0
_TABLES: Final = ("tenure_fence", "tenure_inbox")


@dataclass(frozen=True, slots=True)
class DownstreamFacts:
    """What was found. ``lacking``: functions that are missing or that this login may not execute;
    ``writable``: tables of the guard that it may write to by itself; ``ahead_seconds``: of this
    machine's clock, give or take ``uncertainty_seconds``."""

    name: str
    server_version: str
    version_number: int
    user_name: str
    lacking: tuple[str, ...]
    writable: tuple[str, ...]
    ahead_seconds: float
    uncertainty_seconds: float

    @property
    def ends_transactions(self) -> bool:
        """Whether the server has one limit for a whole transaction (PostgreSQL 17)."""
        return self.version_number >= 170_000


async def inspect(url: str, *, schema: str = "public") -> DownstreamFacts:
    """Look at it, and change nothing. Raises GuardUnavailable when it cannot be asked."""
    try:
        connection = await asyncpg.connect(url, timeout=_SECONDS, command_timeout=_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise GuardUnavailable(
            f"the downstream database cannot be asked: {said(error)}.",
            next_step="Check its address and the login.",
        ) from error
    try:
        row = await connection.fetchrow(
            "select current_database() as name, current_user as user_name,"
            " current_setting('server_version') as server_version,"
            " current_setting('server_version_num')::integer as version_number"
        )
        assert row is not None  # everybody is in some database
        lacking = [
            function.partition("(")[0]
            for function in FUNCTIONS
            if not await connection.fetchval(
                "select coalesce(has_schema_privilege(to_regnamespace($1), 'usage')"
                " and has_function_privilege(to_regprocedure($2), 'execute'), false)",
                quoted(schema),
                f"{quoted(schema)}.{function}",
            )
        ]
        writable = [
            table
            for table in _TABLES
            if await connection.fetchval(
                "select coalesce(has_table_privilege(to_regclass($1),"
                " 'insert, update, delete, truncate'), false)",
                f"{quoted(schema)}.{table}",
            )
        ]
        ahead, uncertainty = await _clock(connection)
        return DownstreamFacts(
            **dict(row),
            lacking=tuple(lacking),
            writable=tuple(writable),
            ahead_seconds=ahead,
            uncertainty_seconds=uncertainty,
        )
    finally:
        await connection.close(timeout=_SECONDS)


async def _clock(connection: "asyncpg.Connection[asyncpg.Record]") -> tuple[float, float]:
    """The reading with the shortest round trip."""
    readings = []
    for _ in range(_READINGS):
        before = time.time()
        now = await connection.fetchval("select clock_timestamp()")
        half = (time.time() - before) / 2
        readings.append((now.timestamp() - before - half, half))
    return min(readings, key=lambda reading: reading[1])
