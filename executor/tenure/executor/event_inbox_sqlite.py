"""An inbox in a file of the consumer's own: for one process, whose handlers write elsewhere.

What a handler wrote and what is remembered of it are two commits: after a crash between them the
event is handled again. Handlers have to bear that; where they cannot, use PostgreSQL.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tenure.executor.errors import InboxUnavailable
from tenure.executor.event_inbox import CREATE, EventInbox, Fetcher, InboxTransaction, Stream

_BUSY_SECONDS: Final = 5.0


class SqliteInbox(EventInbox):
    """``SqliteInbox("billing.sqlite3")``. The file is made where it is missing."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self, concurrency: int) -> None:
        """Connect, and make the tables where they are missing. Raises InboxUnavailable."""
        self.concurrency = concurrency
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "tenure-event-inbox")
        await self._run(self._connect)

    async def close(self) -> None:
        """Let go of it."""
        if self._thread is not None:
            await self._run(self._disconnect)
            self._thread.shutdown(wait=False)
            self._thread = None

    @asynccontextmanager
    async def transaction(self, consumer: str, stream: Stream) -> AsyncIterator[InboxTransaction]:
        """What is written is written at the end, at once. The process works on a stream in one
        place only, and no other process has the file."""
        buffer = _Buffer(self)
        yield InboxTransaction(buffer, consumer, stream, None)
        await self._run(self._commit, buffer.writes)

    async def fetch(self, statement: str, *arguments: Any) -> list[Mapping[str, Any]]:
        """A statement of its own. Raises InboxUnavailable."""
        rows: list[Mapping[str, Any]] = await self._run(self._execute, statement, arguments)
        return rows

    async def _run(self, work: Any, *arguments: Any) -> Any:
        if self._thread is None:
            raise InboxUnavailable(f"the inbox {self._path} is not open.")
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, work, *arguments)
        except (sqlite3.Error, OSError) as error:
            raise InboxUnavailable(
                f"the inbox {self._path} cannot be used: {error}.",
                next_step="Check the disk, the rights on it, and that no other process has it.",
            ) from error

    # Everything below runs in the thread

    def _connect(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        for statement in CREATE:
            connection.execute(_named(statement))
        self._connection = connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _execute(self, statement: str, arguments: Sequence[Any]) -> list[Mapping[str, Any]]:
        if self._connection is None:
            raise sqlite3.OperationalError("it is not open")
        rows = self._connection.execute(_named(statement), arguments).fetchall()
        return [dict(row) for row in rows]

    def _commit(self, writes: Sequence[tuple[str, Sequence[Any]]]) -> None:
        if not writes:
            return
        self._execute("begin immediate", ())
        try:
            for statement, arguments in writes:
                self._execute(statement, arguments)
            self._execute("commit", ())
        except BaseException:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.rollback()
            raise


class _Buffer(Fetcher):
    """Reads at once, writes at the end of the transaction."""

    def __init__(self, inbox: SqliteInbox) -> None:
        self._inbox = inbox
        self.writes: list[tuple[str, Sequence[Any]]] = []

    async def fetch(self, statement: str, *arguments: Any) -> list[Mapping[str, Any]]:
        return await self._inbox.fetch(statement, *arguments)

    async def write(self, statement: str, *arguments: Any) -> None:
        self.writes.append((statement, arguments))


def _named(statement: str) -> str:
    """With the tables' names, and parameters as SQLite writes them."""
    return statement.format(events="tenure_events", streams="tenure_streams").replace("$", "?")
