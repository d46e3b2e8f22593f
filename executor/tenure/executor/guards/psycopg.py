"""The SQL guard for psycopg 3: ``PsycopgGuard`` for handlers in threads, ``AsyncPsycopgGuard`` for
handlers on the event loop (LEASE-10).

What the receiver refuses, and what becomes of a commit that was not answered, is said in
``tenure.executor.guards.sql``. Needs the extra ``psycopg``.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import psycopg
import psycopg_pool
from psycopg.rows import tuple_row

from tenure.contract.faultpoints import NO_FAULTS, FaultPoints
from tenure.executor.guards.sql_async import AsyncGuard
from tenure.executor.guards.sql_common import Calls, Failure, not_open, said
from tenure.executor.guards.sql_sync import SyncGuard

Connection: TypeAlias = psycopg.Connection[Any]
AsyncConnection: TypeAlias = psycopg.AsyncConnection[Any]
Pool: TypeAlias = psycopg_pool.ConnectionPool[Connection]
AsyncPool: TypeAlias = psycopg_pool.AsyncConnectionPool[AsyncConnection]

_ERRORS: Final[tuple[type[Exception], ...]] = (psycopg.Error, OSError, TimeoutError)
# A thread cannot be called back from a read: the system has to notice that nobody answers.
_KEEPALIVE: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class PsycopgGuard(SyncGuard[Connection]):
    """For plain ``def`` handlers, over a ``psycopg_pool.ConnectionPool`` of the application's or
    one of its own.

    ``PsycopgGuard(pool)`` uses that pool and leaves it open; ``with PsycopgGuard(dsn) as guard``
    makes one and closes it. ``schema`` is where the receiver's half was installed.
    """

    def __init__(
        self,
        source: "Pool | str",
        *,
        schema: str = "public",
        pool_size: int = 10,
        acquire_timeout_seconds: float = 10.0,
    ) -> None:
        self._own = _Driver(source, schema, pool_size, acquire_timeout_seconds)
        super().__init__(self._own)

    def __enter__(self) -> Self:
        self._own.open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._own.close()


class AsyncPsycopgGuard(AsyncGuard[AsyncConnection]):
    """For ``async def`` handlers, over a ``psycopg_pool.AsyncConnectionPool`` of the application's
    or one of its own.

    ``AsyncPsycopgGuard(pool)`` uses that pool and leaves it open; ``async with
    AsyncPsycopgGuard(dsn) as guard`` makes one and closes it. ``faults``: for crash tests only.
    """

    def __init__(
        self,
        source: "AsyncPool | str",
        *,
        schema: str = "public",
        pool_size: int = 10,
        acquire_timeout_seconds: float = 10.0,
        statement_timeout_seconds: float = 30.0,
        faults: FaultPoints = NO_FAULTS,
    ) -> None:
        self._own = _AsyncDriver(source, schema, pool_size, acquire_timeout_seconds)
        super().__init__(
            self._own, statement_timeout_seconds=statement_timeout_seconds, faults=faults
        )

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


def _failure(error: BaseException, *, lost: bool) -> Failure:
    if not isinstance(error, psycopg.Error):
        return Failure(said(error), lost=lost)
    message = error.diag.message_primary or said(error).strip()
    return Failure(message, error.diag.sqlstate, error.diag.message_detail, lost)


def _begin(autocommit: bool) -> bytes:
    """Otherwise psycopg sends a BEGIN of its own before the first statement."""
    text = "isolation level read committed"
    return (f"begin {text}" if autocommit else f"set transaction {text}").encode()


class _Driver:
    """psycopg in threads, and its pool."""

    errors = _ERRORS

    def __init__(
        self, source: "Pool | str", schema: str, pool_size: int, acquire_timeout_seconds: float
    ) -> None:
        self._dsn = source if isinstance(source, str) else None
        self._pool: Pool | None = None if isinstance(source, str) else source
        self._pool_size = pool_size
        self._acquire_timeout_seconds = acquire_timeout_seconds
        self.calls = Calls.of(schema, lambda _: "%s")

    def open(self) -> None:
        if self._dsn is not None:
            self._pool = psycopg_pool.ConnectionPool(
                self._dsn, kwargs=_KEEPALIVE, min_size=0, max_size=self._pool_size, open=True
            )

    def close(self) -> None:
        if self._dsn is not None and self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()

    @contextmanager
    def acquire(self) -> Iterator["_Link"]:
        """A connection of the pool."""
        if self._pool is None:
            raise not_open("with PsycopgGuard(dsn) as guard")
        connection = self._pool.getconn(timeout=self._acquire_timeout_seconds)
        try:
            yield _Link(connection)
        finally:
            self._pool.putconn(connection)

    def failure(self, error: BaseException) -> Failure:
        """What an error without a connection says."""
        return _failure(error, lost=True)


class _Link:
    """A connection of psycopg with at most one transaction of the guard's."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def begin(self) -> None:
        self.connection.execute(_begin(self.connection.autocommit))

    def row(self, statement: str, arguments: tuple[str, ...]) -> tuple[Any, ...]:
        with self.connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(statement.encode(), arguments).fetchone()
        assert row is not None  # a function without a set of rows gives exactly one
        return row

    def commit(self) -> None:
        self.connection.commit()

    def roll_back(self) -> None:
        if not self.connection.closed:
            self.connection.rollback()

    def terminate(self) -> None:
        self.connection.close()

    def failure(self, error: BaseException) -> Failure:
        return _failure(error, lost=self.connection.closed)


class _AsyncDriver:
    """psycopg on the event loop, and its pool."""

    errors = _ERRORS

    def __init__(
        self, source: "AsyncPool | str", schema: str, pool_size: int, acquire_timeout_seconds: float
    ) -> None:
        self._dsn = source if isinstance(source, str) else None
        self._pool: AsyncPool | None = None if isinstance(source, str) else source
        self._pool_size = pool_size
        self._acquire_timeout_seconds = acquire_timeout_seconds
        self.calls = Calls.of(schema, lambda _: "%s")

    async def open(self) -> None:
        if self._dsn is not None:
            self._pool = psycopg_pool.AsyncConnectionPool(
                self._dsn, kwargs=_KEEPALIVE, min_size=0, max_size=self._pool_size, open=False
            )
            await self._pool.open()

    async def close(self) -> None:
        if self._dsn is not None and self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator["_AsyncLink"]:
        """A connection of the pool."""
        if self._pool is None:
            raise not_open("async with AsyncPsycopgGuard(dsn) as guard")
        connection = await self._pool.getconn(timeout=self._acquire_timeout_seconds)
        try:
            yield _AsyncLink(connection)
        finally:
            await self._pool.putconn(connection)

    def failure(self, error: BaseException) -> Failure:
        """What an error without a connection says."""
        return _failure(error, lost=True)


class _AsyncLink:
    """An asynchronous connection of psycopg with at most one transaction of the guard's."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    async def begin(self) -> None:
        await self.connection.execute(_begin(self.connection.autocommit))

    async def row(
        self, statement: str, arguments: tuple[str, ...], timeout_seconds: float
    ) -> tuple[Any, ...]:
        async with (
            asyncio.timeout(timeout_seconds),
            self.connection.cursor(row_factory=tuple_row) as cursor,
        ):
            row = await (await cursor.execute(statement.encode(), arguments)).fetchone()
        assert row is not None  # a function without a set of rows gives exactly one
        return row

    async def once(
        self, statement: str, arguments: tuple[str, ...], timeout_seconds: float
    ) -> tuple[Any, ...]:
        row = await self.row(statement, arguments, timeout_seconds)
        await self.commit()
        return row

    async def commit(self) -> None:
        await self.connection.commit()

    async def roll_back(self) -> None:
        if not self.connection.closed:
            await self.connection.rollback()

    async def terminate(self) -> None:
        await self.connection.close()

    def failure(self, error: BaseException) -> Failure:
        return _failure(error, lost=self.connection.closed)
