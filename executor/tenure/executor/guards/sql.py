"""Effects in a PostgreSQL database that refuses stale attempts by itself, through asyncpg
(LEASE-10).

``sql_install.sql`` is the receiver's half: one fence row for each task, one inbox row for each
operation, and the functions that judge. This is the sender's half. What a handler writes goes into
one transaction with the fence check and the inbox row::

    async with ledger.transaction(context, operation="row") as effect:
        if not effect.already_done:
            await effect.connection.execute("insert …")

The receiver refuses an older token (also where the successor has written nothing yet, since its
fence was raised before its handler had control), an equal token once its clock is past the lease's
end plus the policy's tolerance, and a transaction whose holder was paused between check and commit.

``psycopg`` and ``sqlalchemy`` beside this are the same guard for other drivers.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import asyncpg

from tenure.contract.faultpoints import NO_FAULTS, FaultPoints
from tenure.executor.guards import sql_common
from tenure.executor.guards.sql_async import AsyncGuard
from tenure.executor.guards.sql_common import Calls, Failure, not_open, said
from tenure.executor.guards.sql_install import install_statements

if TYPE_CHECKING:
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    Connection: TypeAlias = (
        asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    )
    Effect: TypeAlias = sql_common.Effect[Connection]
else:  # handlers may name them: they have parameters for type checkers alone
    Pool, Connection, Effect = asyncpg.Pool, asyncpg.Connection, sql_common.Effect

_LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)
# InternalClientError: the server's farewell to an idle session arrives, and the next statement
# meets the driver in a state of its own before it has noticed that the connection is closed.
_DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


class SqlGuard(AsyncGuard["Connection"]):
    """The sender's half, over an asyncpg pool of the application's or one of its own.

    ``SqlGuard(pool)`` uses that pool and leaves it open; ``async with SqlGuard(dsn) as guard``
    makes one and closes it. ``schema`` is where the receiver's half was installed. ``faults``: for
    crash tests only.
    """

    def __init__(
        self,
        source: "Pool | str",
        *,
        schema: str = "public",
        pool_size: int = 10,
        acquire_timeout_seconds: float = 10.0,
        statement_timeout_seconds: float = 30.0,
        faults: FaultPoints = NO_FAULTS,
    ) -> None:
        self._own = _Driver(
            source, schema, pool_size, acquire_timeout_seconds, statement_timeout_seconds
        )
        super().__init__(
            self._own, statement_timeout_seconds=statement_timeout_seconds, faults=faults
        )

    @staticmethod
    async def install(
        connection: "Connection", *, schema: str = "public", roles: Sequence[str] = ()
    ) -> None:
        """Install or renew the receiver's half, as its owner; repeatable."""
        async with connection.transaction():
            # Two installers at once would collide over the same catalogue rows.
            await connection.execute("select pg_advisory_xact_lock(hashtext('tenure_guard'))")
            await connection.execute(install_statements(schema=schema, roles=roles))

    async def __aenter__(self) -> Self:
        await self._own.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._own.close()


class _Driver:
    """asyncpg, and its pool."""

    errors: tuple[type[Exception], ...] = _DRIVER_ERRORS

    def __init__(
        self,
        source: "Pool | str",
        schema: str,
        pool_size: int,
        acquire_timeout_seconds: float,
        statement_timeout_seconds: float,
    ) -> None:
        self._dsn = source if isinstance(source, str) else None
        self._pool: Pool | None = None if isinstance(source, str) else source
        self._pool_size = pool_size
        self._acquire_timeout_seconds = acquire_timeout_seconds
        self._statement_timeout_seconds = statement_timeout_seconds
        self.calls = Calls.of(schema, "${}".format)

    async def open(self) -> None:
        if self._dsn is not None:
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=0,
                max_size=self._pool_size,
                command_timeout=self._statement_timeout_seconds,
            )

    async def close(self) -> None:
        if self._dsn is not None and self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator["_Link"]:
        """A connection of the pool."""
        if self._pool is None:
            raise not_open("async with SqlGuard(dsn) as guard")
        connection = await self._pool.acquire(timeout=self._acquire_timeout_seconds)
        try:
            yield _Link(connection)
        finally:
            await self._pool.release(connection)

    def failure(self, error: BaseException) -> Failure:
        """What an error without a connection says."""
        return Failure(said(error))


class _Link:
    """A connection of asyncpg with at most one transaction of the guard's."""

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self._transaction = connection.transaction(isolation="read_committed")

    async def begin(self) -> None:
        await self._transaction.start()

    async def row(
        self, statement: str, arguments: tuple[str, ...], timeout_seconds: float
    ) -> tuple[Any, ...]:
        row = await self.connection.fetchrow(statement, *arguments, timeout=timeout_seconds)
        assert row is not None  # a function without a set of rows gives exactly one
        return tuple(row)

    async def once(
        self, statement: str, arguments: tuple[str, ...], timeout_seconds: float
    ) -> tuple[Any, ...]:
        return await self.row(statement, arguments, timeout_seconds)

    async def commit(self) -> None:
        await self._transaction.commit()

    async def roll_back(self) -> None:
        if not self._is_lost():
            await self._transaction.rollback()

    async def terminate(self) -> None:
        with suppress(asyncpg.InterfaceError):  # taken back by the pool meanwhile
            self.connection.terminate()

    def failure(self, error: BaseException) -> Failure:
        return Failure(
            said(error),
            getattr(error, "sqlstate", None) if isinstance(error, asyncpg.PostgresError) else None,
            getattr(error, "detail", None),
            isinstance(error, asyncpg.InternalClientError)
            or (isinstance(error, _LOST) and self._is_lost()),
        )

    def _is_lost(self) -> bool:
        try:
            return self.connection.is_closed()
        except asyncpg.InterfaceError:  # the pool has taken it back already
            return True
