"""Connections for a moment, and why there is none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from tenure.coordinator.store.errors import (
    DatabaseRefused,
    DatabaseUnreachable,
    DatabaseUntrusted,
    SchemaError,
)
from tenure.settings.pooler import is_pooled, share_a_server
from tenure.settings.tls import tls_fault

CONNECT_TIMEOUT_SECONDS: Final = 10.0

NotConnected = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.ClientConfigurationError,
    ValueError,
)
"""What the driver raises when it does not connect."""


def connection_error(error: BaseException) -> SchemaError:
    """The error of ours that says it."""
    if fault := tls_fault(error, "database"):
        return DatabaseUntrusted(fault.message, next_step=fault.next_step)
    reason = str(error) or type(error).__name__
    passing = (
        OSError,
        TimeoutError,
        asyncpg.CannotConnectNowError,
        asyncpg.TooManyConnectionsError,
    )
    if isinstance(error, passing):
        return DatabaseUnreachable(
            f"No connection to the database: {reason}.",
            next_step="Check the address, and that the server runs.",
        )
    return DatabaseRefused(
        f"The database refuses the connection: {reason}.",
        next_step="Check user, password and database name of TENURE_DATABASE_URL.",
    )


@asynccontextmanager
async def session(url: str) -> AsyncIterator[asyncpg.Connection]:
    """One connection, which works through any pooler too, since nothing is prepared by name.

    Raises DatabaseUnreachable, DatabaseRefused, DatabaseUntrusted.
    """
    try:
        connection = await asyncpg.connect(
            url, timeout=CONNECT_TIMEOUT_SECONDS, statement_cache_size=0
        )
    except NotConnected as error:
        raise connection_error(error) from error
    try:
        yield connection
    except BaseException:
        connection.terminate()  # it may be one that answers no farewell either
        raise
    await connection.close(timeout=CONNECT_TIMEOUT_SECONDS)


async def by_transaction(connection: asyncpg.Connection, url: str) -> bool:
    """Whether ``connection`` to ``url`` was seen to go through a pooler in transaction mode."""
    if not await is_pooled(connection):
        return False
    async with session(url) as other:
        return await share_a_server(connection, other)
