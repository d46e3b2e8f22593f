"""The SQL guard for SQLAlchemy 2: ``SqlAlchemyGuard`` for handlers in threads,
``AsyncSqlAlchemyGuard`` for handlers on the event loop (LEASE-10).

The engine is the application's, over psycopg or asyncpg. The body writes through
``effect.connection``; a ``Session(effect.connection)`` takes part in its transaction, and has to be
flushed or committed before the block ends. What the receiver refuses, and what becomes of a commit
that was not answered, is said in ``tenure.executor.guards.sql``. Needs the extra ``sqlalchemy``.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tenure.contract.faultpoints import NO_FAULTS, FaultPoints
from tenure.executor.guards.sql_async import AsyncGuard
from tenure.executor.guards.sql_common import Calls, Failure, named, said
from tenure.executor.guards.sql_sync import SyncGuard

_ERRORS: Final[tuple[type[Exception], ...]] = (SQLAlchemyError, OSError, TimeoutError)
_OPTIONS: Final = {"isolation_level": "READ COMMITTED"}


class SqlAlchemyGuard(SyncGuard[Connection]):
    """For plain ``def`` handlers, over an ``Engine`` of the application's, which stays open.

    ``schema`` is where the receiver's half was installed.
    """

    def __init__(self, engine: Engine, *, schema: str = "public") -> None:
        super().__init__(_Driver(engine, schema))


class AsyncSqlAlchemyGuard(AsyncGuard[AsyncConnection]):
    """For ``async def`` handlers, over an ``AsyncEngine`` of the application's, which stays open.

    ``schema`` is where the receiver's half was installed. ``faults``: for crash tests only.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        schema: str = "public",
        statement_timeout_seconds: float = 30.0,
        faults: FaultPoints = NO_FAULTS,
    ) -> None:
        super().__init__(
            _AsyncDriver(engine, schema),
            statement_timeout_seconds=statement_timeout_seconds,
            faults=faults,
        )


def _calls(schema: str) -> Calls:
    # A colon in a schema's name would read as a parameter.
    name = schema.replace(":", "\\:")
    return Calls.of(name, ":p{}".format)


def _failure(error: BaseException, *, lost: bool) -> Failure:
    """Drivers are told apart by what their errors carry."""
    if not isinstance(error, DBAPIError) or error.orig is None:
        return Failure(said(error), lost=lost)
    driver = error.orig
    diagnosis = getattr(driver, "diag", None) or driver.__cause__ or driver
    return Failure(
        str(getattr(diagnosis, "message_primary", None) or driver).strip(),
        getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None),
        getattr(diagnosis, "message_detail", None) or getattr(diagnosis, "detail", None),
        lost or error.connection_invalidated,
    )


class _Driver:
    """An engine that blocks."""

    errors = _ERRORS

    def __init__(self, engine: Engine, schema: str) -> None:
        self._engine = engine
        self.calls = _calls(schema)

    @contextmanager
    def acquire(self) -> Iterator["_Link"]:
        """A connection of the engine's pool."""
        with self._engine.connect() as connection:
            yield _Link(connection)

    def failure(self, error: BaseException) -> Failure:
        """What an error without a connection says."""
        return _failure(error, lost=True)


class _Link:
    """A connection with at most one transaction of the guard's."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection.execution_options(**_OPTIONS)

    def begin(self) -> None:
        self.connection.begin()

    def row(self, statement: str, arguments: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple(self.connection.execute(text(statement), named(arguments)).one())

    def commit(self) -> None:
        self.connection.commit()

    def roll_back(self) -> None:
        self.connection.rollback()

    def terminate(self) -> None:
        with suppress(SQLAlchemyError):  # closed already
            self.connection.invalidate()

    def failure(self, error: BaseException) -> Failure:
        return _failure(error, lost=self.connection.closed or self.connection.invalidated)


class _AsyncDriver:
    """An engine that is awaited."""

    errors = _ERRORS

    def __init__(self, engine: AsyncEngine, schema: str) -> None:
        self._engine = engine
        self.calls = _calls(schema)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator["_AsyncLink"]:
        """A connection of the engine's pool."""
        async with self._engine.connect() as connection:
            yield _AsyncLink(await connection.execution_options(**_OPTIONS))

    def failure(self, error: BaseException) -> Failure:
        """What an error without a connection says."""
        return _failure(error, lost=True)


class _AsyncLink:
    """An asynchronous connection with at most one transaction of the guard's."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    async def begin(self) -> None:
        await self.connection.begin()

    async def row(
        self, statement: str, arguments: tuple[str, ...], timeout_seconds: float
    ) -> tuple[Any, ...]:
        async with asyncio.timeout(timeout_seconds):
            result = await self.connection.execute(text(statement), named(arguments))
        return tuple(result.one())

    async def once(
        self, statement: str, arguments: tuple[str, ...], timeout_seconds: float
    ) -> tuple[Any, ...]:
        row = await self.row(statement, arguments, timeout_seconds)
        await self.commit()
        return row

    async def commit(self) -> None:
        await self.connection.commit()

    async def roll_back(self) -> None:
        await self.connection.rollback()

    async def terminate(self) -> None:
        with suppress(SQLAlchemyError):  # closed already
            await self.connection.invalidate()

    def failure(self, error: BaseException) -> Failure:
        return _failure(error, lost=self.connection.closed or self.connection.invalidated)
