"""What somebody has to look at in a downstream PostgreSQL: requests that were interrupted with
their process, and payments that were intended and never settled."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from tenure.executor.errors import GuardUnavailable
from tenure.executor.guards.http_store import Unsettled
from tenure.executor.guards.sql_common import said
from tenure.executor.guards.sql_install import quoted

# $1: the key, or null for all. A payment of the last ten minutes may be under way.
_REQUESTS: Final = """
    from {schema}.tenure_http_request t where t.state = 'running'
    and t.claimed_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
    and t.key = coalesce($1, t.key) and t.scope = coalesce($2, t.scope)
"""
_PAYMENTS: Final = """
    from {schema}.tenure_payment t where t.known = 'intended'
    and t.intended_at < clock_timestamp() - interval '10 minutes'
    and t.payment_id::text = coalesce($1, t.payment_id::text) and coalesce($2, '') = ''
"""


async def unsettled(url: str, *, schema: str = "public") -> list[Unsettled]:
    """All of them, the oldest first. Raises GuardUnavailable."""
    async with _connected(url) as connection:
        found: list[Unsettled] = []
        name = quoted(schema)
        if await _is_there(connection, f"{name}.tenure_http_request"):
            rows = await connection.fetch(
                "select t.key, t.scope, t.resource, to_timestamp(t.touched_at / 1000000.0) as since"
                + _REQUESTS.format(schema=name),
                None,
                None,
            )
            found += [
                Unsettled("request", row["key"], row["scope"], row["resource"], row["since"])
                for row in rows
            ]
        if await _is_there(connection, f"{name}.tenure_payment"):
            rows = await connection.fetch(
                "select t.payment_id::text as key, t.task_id::text as task, t.intended_at as since"
                + _PAYMENTS.format(schema=name),
                None,
                None,
            )
            found += [
                Unsettled("payment", row["key"], "", row["task"], row["since"]) for row in rows
            ]
        return sorted(found, key=lambda each: each.since)


async def forget(url: str, key: str, *, scope: str | None = None, schema: str = "public") -> int:
    """Somebody has seen that it did nothing: the next attempt does it. How many there were under
    that key. Raises GuardUnavailable."""
    async with _connected(url) as connection, connection.transaction():
        name, gone = quoted(schema), 0
        for table, rule in (("tenure_http_request", _REQUESTS), ("tenure_payment", _PAYMENTS)):
            if await _is_there(connection, f"{name}.{table}"):
                deleted = await connection.fetch(
                    f"delete {rule.format(schema=name)} returning 1", key, scope
                )
                gone += len(deleted)
        return gone


async def _is_there(connection: "asyncpg.Connection[asyncpg.Record]", table: str) -> bool:
    return await connection.fetchval("select to_regclass($1) is not null", table) is True


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    try:
        connection = await asyncpg.connect(url, timeout=10.0, command_timeout=30.0)
        try:
            yield connection
        finally:
            await connection.close(timeout=10.0)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise GuardUnavailable(
            f"the downstream database cannot be asked: {said(error)}.",
            next_step="Use the login that owns the guard's tables.",
        ) from error
