"""A record of payments in a file, for the executors of one machine.

It judges as a receiver does: an attempt that is older than one it has seen, or whose lease is over
by this machine's clock or permits no such payment, writes no intention down, and so sends nothing
(LEASE-10, LEASE-11).
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from tenure.executor.context import Context
from tenure.executor.core.paying import Known
from tenure.executor.errors import AuthorityOver, GuardUnavailable, StaleToken
from tenure.executor.guards.payment_course import Entry
from tenure.executor.side_effects import SideEffect

T = TypeVar("T")
_TABLES = """
pragma journal_mode = wal;
pragma synchronous = full;
create table if not exists tenure_payment (
    payment_id text primary key,
    task_id text not null,
    operation text not null,
    digest text not null,
    known text not null,
    content text not null,
    fencing_token integer not null
) without rowid;
create table if not exists tenure_payment_fence (
    task_id text primary key,
    fencing_token integer not null
) without rowid;
"""


class SqlitePayments:
    """Over a file. ``clock`` gives seconds since 1970.

    Name it in ``guards`` of the handler, so that a successor shuts older attempts out before it
    begins. Its methods with ``_now`` are for handlers in threads.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        shared: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``shared``: no executor of the task type runs anywhere else."""
        self.shared = shared
        self._clock = clock
        self._lock = threading.Lock()  # one connection, used from whichever thread
        self._connection = sqlite3.connect(
            path, timeout=10.0, isolation_level=None, check_same_thread=False
        )
        self._connection.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    async def raise_fence(self, context: Context[Any]) -> None:
        """Shut every older attempt of the task out, before the handler begins.

        Raises StaleToken, AuthorityOver, GuardUnavailable.
        """
        await asyncio.to_thread(self._transaction, lambda cursor: self._judge(cursor, context))

    async def intend(self, context: Context[Any], begun: SideEffect, digest: str) -> Entry:
        """As PaymentRecord says."""
        return await asyncio.to_thread(self.intend_now, context, begun, digest)

    def intend_now(self, context: Context[Any], begun: SideEffect, digest: str) -> Entry:
        """As ``intend``, in the calling thread."""

        def work(cursor: sqlite3.Cursor) -> Entry:
            self._judge(cursor, context)
            context.scope.check(begun.name, begun.key)
            row = cursor.execute(
                "select known, digest, content from tenure_payment where payment_id = ?",
                (begun.id,),
            ).fetchone()
            if row is not None:
                return Entry(Known(row[0]), row[1], row[2])
            cursor.execute(
                "insert into tenure_payment values (?, ?, ?, ?, 'intended', '', ?)",
                (begun.id, context.task_id, begun.name, digest, context.fencing_token),
            )
            return Entry(Known.NEW, digest)

        return self._transaction(work)

    async def settle(self, context: Context[Any], begun: SideEffect, entry: Entry) -> None:
        """As PaymentRecord says. What has happened is written down whoever says it."""
        await asyncio.to_thread(self.settle_now, context, begun, entry)

    def settle_now(self, context: Context[Any], begun: SideEffect, entry: Entry) -> None:
        """As ``settle``, in the calling thread."""

        def work(cursor: sqlite3.Cursor) -> None:
            cursor.execute(
                "update tenure_payment set known = ?, content = ?, fencing_token = ?"
                " where payment_id = ? and known = 'intended'",
                (entry.known, entry.content, context.fencing_token, begun.id),
            )

        self._transaction(work)

    def _judge(self, cursor: sqlite3.Cursor, context: Context[Any]) -> None:
        """Raise the fence, or refuse. The clock is read under the lock of the file."""
        row = cursor.execute(
            "select fencing_token from tenure_payment_fence where task_id = ?", (context.task_id,)
        ).fetchone()
        if row is not None and context.fencing_token < row[0]:
            raise StaleToken(
                f"attempt {context.attempt_id} of task {context.task_id} is too late with its"
                f" payment: a later attempt holds {row[0]}.",
                seen_token=row[0],
            )
        if self._clock() >= context.expires_at.timestamp() + context.clock_tolerance_seconds:
            raise AuthorityOver(
                f"the lease of attempt {context.attempt_id} of task {context.task_id} is over by"
                " the clock of its record of payments."
            )
        cursor.execute(
            "insert into tenure_payment_fence values (?, ?) on conflict (task_id)"
            " do update set fencing_token = excluded.fencing_token",
            (context.task_id, context.fencing_token),
        )

    def _transaction(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        try:
            with self._lock, closing(self._connection.cursor()) as cursor:
                cursor.execute("begin immediate")
                try:
                    result = work(cursor)
                    cursor.execute("commit")
                except BaseException:
                    if self._connection.in_transaction:
                        cursor.execute("rollback")
                    raise
                return result
        except sqlite3.Error as error:
            raise GuardUnavailable(f"the record of payments cannot be used: {error}.") from error
