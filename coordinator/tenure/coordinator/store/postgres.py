"""Connections to the authority's database.

Limits (statement, lock and transaction timeouts) sit on the service's role, so that they hold
behind a pooler too; the client's own deadlines are longer than those.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeAlias

import asyncpg
from asyncpg import Pool, PostgresError, Record
from asyncpg.pool import PoolConnectionProxy
from pydantic_core import to_json

from tenure.settings.addresses import Address, asked

__all__ = [
    "NEVER_CANCELLED",
    "Asked",
    "ConnectionLost",
    "Pool",
    "PostgresError",
    "TryAgain",
    "answering",
    "blames_an_item",
    "json_text",
    "open_pool",
    "warnings_of",
]

COMMAND_TIMEOUT_SECONDS: Final = 5.0
"""Above the limits on the roles, so that the server speaks first; and short enough for a second try
before the deadline of a command."""
CONNECT_TIMEOUT_SECONDS: Final = 5.0

NEVER_CANCELLED: Final = 86_400.0
"""The driver's timeout where ``answering`` has one of its own."""

Asked: TypeAlias = "Pool | PoolConnectionProxy[Record]"
"""Both answer ``fetch`` and ``fetchrow``."""

_TYPES_USED: Final = (
    "uuid", "text", "bytea", "boolean", "smallint", "integer", "bigint", "timestamptz",
)  # fmt: skip

ConnectionLost = (
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.TransactionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.IdleSessionTimeoutError,
    OSError,
    TimeoutError,
)
"""What a lost connection looks like; after a commit was sent, its outcome is unknown."""

TryAgain = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
)
"""40001, 40P01, 55P03, 57014: nothing was applied; the same again, smaller."""

_ITEM_FAULTS: Final = ("22", "23", "54", "P0", "TN")
"""SQLSTATE classes of what is wrong with a value: data, constraints, limits, raised by functions,
and the codes of our own triggers."""


def blames_an_item(error: PostgresError) -> bool:
    """Whether the same statement fails again because of what it carries.

    Everything else is the server's state (full disk, read-only, a function that a migration is
    about to bring): nothing was applied, and the same may succeed later.
    """
    return (error.sqlstate or "").startswith(_ITEM_FAULTS)


_PLANNED_ONCE: Final = (
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
)
"""As the functions of the database have it: plans that were made while the tables were empty, and
for no particular size of a batch, have to be good for good."""


async def open_pool(
    url: Address,
    *,
    size: int,
    application_name: str,
    pooled: bool = False,
    planned_once: bool = False,
) -> Pool:
    """A pool of at most ``size`` connections that resolves names in the schema ``tenure``.

    ``pooled``: the connection goes through a transaction pooler, so nothing is prepared by name.
    ``planned_once``: for statements that come again and again and need one row by its key. A lone
    one costs more to plan than to execute.
    Raises what asyncpg raises when the server cannot be reached.
    """

    async def connect(dsn: str | None = None, **options: Any) -> asyncpg.Connection:
        # Asked now: the password may have been replaced since the last connection.
        return await asyncpg.connect(asked(url), **options)

    return await asyncpg.create_pool(
        connect=connect,
        min_size=0,
        max_size=size,
        command_timeout=COMMAND_TIMEOUT_SECONDS,
        timeout=CONNECT_TIMEOUT_SECONDS,
        statement_cache_size=0 if pooled else 200,
        max_inactive_connection_lifetime=60.0,
        server_settings={"application_name": application_name},
        init=_prepare_to_plan_once if planned_once and not pooled else _prepare_connection,
        reset=_keep_connection,
    )


@asynccontextmanager
async def answering(
    pool: Pool, *, timeout_seconds: float | None = None, answer_seconds: float | None = None
) -> AsyncIterator["PoolConnectionProxy[Record]"]:
    """A connection for one statement. ``timeout_seconds``: how long to wait for a free one;
    ``answer_seconds``: for the answer, ``COMMAND_TIMEOUT_SECONDS`` unless given.

    Raises TimeoutError when the statement is not answered in time: then neither this connection nor
    any other that is open is used again. A server that lives answers sooner, if only by its
    ``statement_timeout``: so the path to it was lost without a word, and with it, as a rule, every
    other connection of the pool. Each would cost a timeout of its own. Or it is a commit that waits
    for a standby. The connection is closed and nothing is cancelled: the driver's own timeout would
    cancel that wait, and leave a commit behind that is on one server only. So it is where the one
    who asks is cancelled: the statement goes on, its connection is closed.
    """
    overdue = False

    def give_up() -> None:
        nonlocal overdue
        overdue = True
        connection.terminate()

    async with pool.acquire(timeout=timeout_seconds) as connection:
        seconds = COMMAND_TIMEOUT_SECONDS if answer_seconds is None else answer_seconds
        timer = asyncio.get_running_loop().call_later(seconds, give_up)
        try:
            yield connection
        except asyncio.CancelledError:
            connection.terminate()
            raise
        except (TimeoutError, *ConnectionLost) as error:
            if not overdue and not isinstance(error, TimeoutError):
                raise
            if not overdue:
                connection.terminate()  # else the pool waits as long again for the statement's end
            await pool.expire_connections()
            raise TimeoutError("the database did not answer in time") from error
        finally:
            timer.cancel()


@contextmanager
def warnings_of(connection: "PoolConnectionProxy[Record]") -> Iterator[list[str]]:
    """What the server warns of meanwhile. Of a commit: that its wait for a standby was ended, for
    nothing else of ours warns."""
    warnings: list[str] = []

    def note(_: object, message: Any) -> None:
        if message.severity_en == "WARNING":
            warnings.append(message.message)

    connection.add_log_listener(note)
    try:
        yield warnings
    finally:
        with suppress(asyncpg.InterfaceError):  # one that was closed belongs to nobody any more
            connection.remove_log_listener(note)


async def _prepare_connection(connection: asyncpg.Connection) -> None:
    """Learn the array types before anybody counts or times statements."""
    arrays = ", ".join(f"null::{name}[]" for name in _TYPES_USED)
    await connection.fetchrow(f"select {arrays}")


async def _prepare_to_plan_once(connection: asyncpg.Connection) -> None:
    """As ``_prepare_connection``, and set the session. Not asked for at login, where poolers refuse
    settings that they do not know."""
    await _prepare_connection(connection)
    settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _PLANNED_ONCE)
    await connection.fetchrow(f"select {settings}")


async def _keep_connection(connection: asyncpg.Connection) -> None:
    """In place of the pool's own reset, a round trip after every use: nothing here changes its
    session."""


def json_text(value: object) -> str:
    """Compact JSON for a ``json`` column."""
    return to_json(value).decode()
