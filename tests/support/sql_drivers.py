"""The SQL guard over each driver, behind one face: what is tried on one is tried on all."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.executor.context import Context
from tenure.executor.guards.psycopg import AsyncPsycopgGuard, PsycopgGuard
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.guards.sql_async import AsyncGuard
from tenure.executor.guards.sql_sync import SyncGuard
from tenure.executor.guards.sqlalchemy import AsyncSqlAlchemyGuard, SqlAlchemyGuard

Hook = Callable[[], Awaitable[None]]
Statement = tuple[str, tuple[str, ...]]

PATIENCE_SECONDS: Final = 60.0
"""How long a pool that knows a limit waits for a connection."""
INSERT: Final = "insert into effects (task_id, value) values (cast({} as uuid), {})"


async def _nothing() -> None:
    """What most bodies do besides writing."""


@dataclass(frozen=True)
class Driver:
    """``run`` executes a statement in a body, in the driver's own way; parameters are ``{}``."""

    name: str
    open: Callable[..., Any]  # (url, schema, wait_seconds) to an async context manager of a guard
    run: Callable[[Any, str, tuple[str, ...]], Any]

    async def write(
        self,
        guard: Any,
        context: Context[None],
        value: str,
        operation: str = "row",
        *,
        within: Hook = _nothing,
        statement: str = INSERT,
        times: int = 1,
        commit: bool = False,
        swallow: bool = False,
        key: str = "",
    ) -> bool:
        """Write a row under the guard; False when the operation had been done before.

        The statement is run ``times`` times. ``within`` is awaited in the body, after it;
        ``commit``: the body ends the transaction by itself; ``swallow``: it goes on after an
        error of its statement.
        """
        parameters = (context.task_id, value)
        if isinstance(guard, SyncGuard):
            loop = asyncio.get_running_loop()
            return await asyncio.to_thread(
                self._write_now, guard, context, operation, within, loop,
                [(statement, parameters)] * times, commit, swallow, key,
            )  # fmt: skip
        assert isinstance(guard, AsyncGuard)
        async with guard.transaction(context, operation=operation, key=key) as effect:
            if not effect.already_done:
                try:
                    for _ in range(times):
                        await self.run(effect.connection, statement, parameters)
                except guard._driver.errors:
                    if not swallow:
                        raise
            await within()
            if commit:
                await self.run(effect.connection, "commit", ())
        return not effect.already_done

    def _write_now(
        self,
        guard: SyncGuard[Any],
        context: Context[None],
        operation: str,
        within: Hook,
        loop: asyncio.AbstractEventLoop,
        statements: list[Statement],
        commit: bool,
        swallow: bool,
        key: str,
    ) -> bool:
        with guard.transaction(context, operation=operation, key=key) as effect:
            if not effect.already_done:
                try:
                    for statement, parameters in statements:
                        self.run(effect.connection, statement, parameters)
                except guard._driver.errors:
                    if not swallow:
                        raise

            async def awaited() -> None:
                await within()

            asyncio.run_coroutine_threadsafe(awaited(), loop).result()
            if commit:
                self.run(effect.connection, "commit", ())
        return not effect.already_done


def _numbered(statement: str, parameters: tuple[str, ...]) -> str:
    return statement.format(*(f"cast(${n} as text)" for n in range(1, len(parameters) + 1)))


def _asyncpg(connection: Any, statement: str, parameters: tuple[str, ...]) -> Any:
    return connection.execute(_numbered(statement, parameters), *parameters)


def _psycopg(connection: Any, statement: str, parameters: tuple[str, ...]) -> Any:
    return connection.execute(statement.format(*("%s" for _ in parameters)), parameters)


def _sqlalchemy(connection: Any, statement: str, parameters: tuple[str, ...]) -> Any:
    names = [f"a{number}" for number in range(len(parameters))]
    text = sqlalchemy.text(statement.format(*(f"cast(:{name} as text)" for name in names)))
    return connection.execute(text, dict(zip(names, parameters, strict=True)))


@asynccontextmanager
async def _open_asyncpg(
    url: str, schema: str = "public", wait_seconds: float = PATIENCE_SECONDS
) -> AsyncIterator[SqlGuard]:
    async with SqlGuard(url, schema=schema, pool_size=1) as guard:
        yield guard


@asynccontextmanager
async def _open_psycopg(
    url: str, schema: str = "public", wait_seconds: float = PATIENCE_SECONDS
) -> AsyncIterator[PsycopgGuard]:
    guard = PsycopgGuard(url, schema=schema, pool_size=1, acquire_timeout_seconds=wait_seconds)
    await asyncio.to_thread(guard.__enter__)
    try:
        yield guard
    finally:
        await asyncio.to_thread(guard.__exit__, None, None, None)


@asynccontextmanager
async def _open_async_psycopg(
    url: str, schema: str = "public", wait_seconds: float = PATIENCE_SECONDS
) -> AsyncIterator[AsyncPsycopgGuard]:
    async with AsyncPsycopgGuard(
        url, schema=schema, pool_size=1, acquire_timeout_seconds=wait_seconds
    ) as guard:
        yield guard


@asynccontextmanager
async def _open_sqlalchemy(
    url: str, schema: str = "public", wait_seconds: float = PATIENCE_SECONDS
) -> AsyncIterator[SqlAlchemyGuard]:
    engine = sqlalchemy.create_engine(_dialect(url, "psycopg"), pool_size=1, max_overflow=0)
    try:
        yield SqlAlchemyGuard(engine, schema=schema)
    finally:
        await asyncio.to_thread(engine.dispose)


def _open_async_sqlalchemy(dialect: str) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(
        url: str, schema: str = "public", wait_seconds: float = PATIENCE_SECONDS
    ) -> AsyncIterator[AsyncSqlAlchemyGuard]:
        engine = create_async_engine(_dialect(url, dialect), pool_size=1, max_overflow=0)
        try:
            yield AsyncSqlAlchemyGuard(engine, schema=schema)
        finally:
            await engine.dispose()

    return opened


def _dialect(url: str, driver: str) -> str:
    changed = url.replace("postgresql://", f"postgresql+{driver}://", 1)
    return changed.replace("sslmode=disable", "ssl=disable") if driver == "asyncpg" else changed


DRIVERS: Final = (
    Driver("asyncpg", _open_asyncpg, _asyncpg),
    Driver("psycopg in threads", _open_psycopg, _psycopg),
    Driver("psycopg", _open_async_psycopg, _psycopg),
    Driver("SQLAlchemy in threads", _open_sqlalchemy, _sqlalchemy),
    Driver("SQLAlchemy over psycopg", _open_async_sqlalchemy("psycopg"), _sqlalchemy),
    Driver("SQLAlchemy over asyncpg", _open_async_sqlalchemy("asyncpg"), _sqlalchemy),
)
