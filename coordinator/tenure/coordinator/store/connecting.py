"""Why there is no connection to the database."""

import asyncpg

from tenure.coordinator.store.errors import (
    DatabaseRefused,
    DatabaseUnreachable,
    DatabaseUntrusted,
    SchemaError,
)
from tenure.settings.tls import tls_fault

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
