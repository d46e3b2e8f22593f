"""An inbox in PostgreSQL: what a handler writes through the connection that it is given, and that
the event was seen, are one transaction. Any number of processes may share it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg

from tenure.executor.errors import DeclarationError, InboxUnavailable
from tenure.executor.event_inbox import CREATE, EventInbox, Fetcher, InboxTransaction, Stream

_SECONDS: Final = 10.0
_MORE_CONNECTIONS: Final = 2
"""Besides one for each stream under way: for what is not about one."""
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_LOCK: Final = 0x74_65_6E_75_72_65_69
"""Held while the tables are made, so that two processes do not make them at once."""
_LOST_CLASSES: Final = ("08", "53", "57")
_REFUSED: Final = (
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)


class PostgresInbox(EventInbox):
    """``PostgresInbox("postgresql://…", schema="billing")``: in the database that is written to.

    ``url`` may be a function, asked for each new connection. The login needs to create tables in
    the schema once; later it needs to read and write these only.
    """

    def __init__(self, url: str | Callable[[], str], *, schema: str = "public") -> None:
        if not _SCHEMA.fullmatch(schema):
            raise DeclarationError(f"{schema!r} is no name of a schema in lower case.")
        self._url = url if callable(url) else lambda: url
        self._tables = {"events": f"{schema}.tenure_events", "streams": f"{schema}.tenure_streams"}
        self._schema = schema
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def open(self, concurrency: int) -> None:
        """Connect, and make the tables where they are missing. Raises InboxUnavailable."""
        self.concurrency = concurrency
        if self._pool is None:
            with _translated():
                self._pool = await asyncpg.create_pool(
                    self._url(),
                    min_size=1,
                    max_size=concurrency + _MORE_CONNECTIONS,
                    timeout=_SECONDS,
                    command_timeout=None,
                )
        await self._make()

    async def close(self) -> None:
        """Let go of it."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), _SECONDS)
            except TimeoutError:
                pool.terminate()

    @asynccontextmanager
    async def transaction(self, consumer: str, stream: Stream) -> AsyncIterator[InboxTransaction]:
        """The stream's lock is held until the end: by its name, for a stream that has no row yet
        has one as well."""
        async with self._connection() as connection:
            transaction = connection.transaction()
            with _translated():
                await transaction.start()
                await connection.execute(
                    "select pg_advisory_xact_lock(hashtextextended($1, 0))",
                    f"{self._schema}/{consumer}/{stream.entity_type}/{stream.entity_id}",
                )
            try:
                yield InboxTransaction(self._fetcher(connection), consumer, stream, connection)
            except BaseException as error:
                if _is_lost(connection):
                    # Whatever a handler saw of it: it is not the handler's fault.
                    raise _unavailable(error) from error
                await transaction.rollback()
                raise
            with _translated():
                await transaction.commit()

    async def fetch(self, statement: str, *arguments: Any) -> list[Mapping[str, Any]]:
        """A statement of its own. Raises InboxUnavailable."""
        async with self._connection() as connection:
            return await self._fetcher(connection).fetch(statement, *arguments)

    def _fetcher(self, connection: Any) -> "_Fetcher":
        return _Fetcher(connection, self._tables)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        pool = self._pool
        if pool is None:
            raise InboxUnavailable("the inbox is not open.")
        with _translated():
            connection = await pool.acquire(timeout=_SECONDS)
        try:
            yield connection
        finally:
            await pool.release(connection)

    async def _make(self) -> None:
        async with self._connection() as connection:
            with _translated():
                if await connection.fetchval(
                    "select to_regclass($1) is not null", self._tables["streams"]
                ):
                    return
                async with connection.transaction():
                    await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
                    for statement in CREATE:
                        await connection.execute(statement.format(**self._tables))


class _Fetcher(Fetcher):
    def __init__(self, connection: Any, tables: Mapping[str, str]) -> None:
        self._connection = connection
        self._tables = tables

    async def fetch(self, statement: str, *arguments: Any) -> list[Mapping[str, Any]]:
        with _translated():
            return list(
                await self._connection.fetch(
                    statement.format(**self._tables), *arguments, timeout=_SECONDS
                )
            )

    async def write(self, statement: str, *arguments: Any) -> None:
        await self.fetch(statement, *arguments)


def _is_lost(connection: Any) -> bool:
    """Whether the connection has ended; the pool takes one back that has."""
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the driver that say that the database is away or closed to us, as one of ours."""
    try:
        yield
    except (OSError, TimeoutError, asyncpg.InterfaceError, *_REFUSED) as error:
        raise _unavailable(error) from error
    except asyncpg.PostgresError as error:
        if not (error.sqlstate or "").startswith(_LOST_CLASSES):
            raise
        raise _unavailable(error) from error


def _unavailable(error: BaseException) -> InboxUnavailable:
    return InboxUnavailable(
        f"the inbox's database cannot be used: {str(error) or type(error).__name__}.",
        next_step="Check its address, login and rights on the schema, and that it runs.",
    )
