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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from tenure.executor.context import Context
from tenure.executor.core.paying import Known
from tenure.executor.errors import AuthorityOver, GuardUnavailable, StaleToken
from tenure.executor.guards.http_store import Unsettled
from tenure.executor.guards.payment_course import Entry
from tenure.executor.side_effects import SideEffect

T = TypeVar("T")
UNDER_WAY_SECONDS: Final = 600.0
"""So long a payment that is not settled may be under way."""
_TABLES: Final = """
pragma journal_mode = wal;
pragma synchronous = full;
create table if not exists tenure_payment (
    payment_id text primary key,
    task_id text not null,
    operation text not null,
    digest text not null,
    known text not null,
    content text not null,
    fencing_token integer not null,
    touched_at integer not null
) without rowid;
create table if not exists tenure_payment_fence (
    task_id text primary key,
    fencing_token integer not null,
    raised_at integer not null
) without rowid;
"""
# Instants are microseconds since 1970, by the record's clock.
_INSTANTS: Final = (("tenure_payment", "touched_at"), ("tenure_payment_fence", "raised_at"))


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
        self._transaction(self._renew)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    async def raise_fence(self, context: Context[Any]) -> None:
        """Shut every older attempt of the task out, before the handler begins.

        Raises StaleToken, AuthorityOver, GuardUnavailable.
        """
        await asyncio.to_thread(self._transaction, lambda cursor, now: _judge(cursor, now, context))

    async def intend(self, context: Context[Any], begun: SideEffect, digest: str) -> Entry:
        """As PaymentRecord says."""
        return await asyncio.to_thread(self.intend_now, context, begun, digest)

    def intend_now(self, context: Context[Any], begun: SideEffect, digest: str) -> Entry:
        """As ``intend``, in the calling thread."""

        def work(cursor: sqlite3.Cursor, now: int) -> Entry:
            _judge(cursor, now, context)
            context.scope.check(begun.name, begun.key)
            row = cursor.execute(
                "select known, digest, content from tenure_payment where payment_id = ?",
                (begun.id,),
            ).fetchone()
            if row is not None:
                return Entry(Known(row[0]), row[1], row[2])
            cursor.execute(
                "insert into tenure_payment (payment_id, task_id, operation, digest, known,"
                " content, fencing_token, touched_at) values (?, ?, ?, ?, 'intended', '', ?, ?)",
                (begun.id, context.task_id, begun.name, digest, context.fencing_token, now),
            )
            return Entry(Known.NEW, digest)

        return self._transaction(work)

    async def settle(self, context: Context[Any], begun: SideEffect, entry: Entry) -> None:
        """As PaymentRecord says. What has happened is written down whoever says it."""
        await asyncio.to_thread(self.settle_now, context, begun, entry)

    def settle_now(self, context: Context[Any], begun: SideEffect, entry: Entry) -> None:
        """As ``settle``, in the calling thread."""

        def work(cursor: sqlite3.Cursor, now: int) -> None:
            cursor.execute(
                "update tenure_payment set known = ?, content = ?, fencing_token = ?,"
                " touched_at = ? where payment_id = ? and known = 'intended'",
                (entry.known, entry.content, context.fencing_token, now, begun.id),
            )

        self._transaction(work)

    async def prune(self, older_than_seconds: float) -> int:
        """Forget settled payments, and fences without any, that were last touched so long ago; how
        many. What is not settled stays. A payment that is repeated after that is a new one.

        Raises GuardUnavailable.
        """

        def work(cursor: sqlite3.Cursor, now: int) -> int:
            before = now - int(older_than_seconds * 1_000_000)
            gone = cursor.execute(
                "delete from tenure_payment where known <> 'intended' and touched_at < ?",
                (before,),
            ).rowcount
            return gone + (
                cursor.execute(
                    "delete from tenure_payment_fence as f where raised_at < ? and not exists"
                    " (select 1 from tenure_payment p where p.task_id = f.task_id)",
                    (before,),
                ).rowcount
            )

        return await asyncio.to_thread(self._transaction, work)

    async def unsettled(self) -> list[Unsettled]:
        """Payments that were intended more than ten minutes ago and never settled, the oldest
        first. Raises GuardUnavailable."""

        def work(cursor: sqlite3.Cursor, now: int) -> list[Unsettled]:
            rows = cursor.execute(
                "select payment_id, task_id, touched_at from tenure_payment"
                " where known = 'intended' and touched_at < ? order by touched_at",
                (now - int(UNDER_WAY_SECONDS * 1_000_000),),
            )
            return [
                Unsettled("payment", key, "", task, datetime.fromtimestamp(at / 1_000_000, UTC))
                for key, task, at in rows
            ]

        return await asyncio.to_thread(self._transaction, work)

    async def forget(self, payment_id: str) -> bool:
        """Forget an unsettled payment, since somebody has seen that the gateway did nothing: the
        next attempt sends it. Raises GuardUnavailable."""

        def work(cursor: sqlite3.Cursor, now: int) -> bool:
            return (
                cursor.execute(
                    "delete from tenure_payment"
                    " where payment_id = ? and known = 'intended' and touched_at < ?",
                    (payment_id, now - int(UNDER_WAY_SECONDS * 1_000_000)),
                ).rowcount
                == 1
            )

        return await asyncio.to_thread(self._transaction, work)

    @staticmethod
    def _renew(cursor: sqlite3.Cursor, now: int) -> None:
        """A file of an earlier version has no instants: what is in it counts as touched now."""
        for table, column in _INSTANTS:
            columns = {row[1] for row in cursor.execute(f"pragma table_info({table})")}
            if column not in columns:
                cursor.execute(
                    f"alter table {table} add column {column} integer not null default {now}"
                )

    def _transaction(self, work: Callable[[sqlite3.Cursor, int], T]) -> T:
        try:
            with self._lock, closing(self._connection.cursor()) as cursor:
                cursor.execute("begin immediate")
                try:
                    # After the lock: whoever waited for it is judged at the end of the wait.
                    result = work(cursor, int(self._clock() * 1_000_000))
                    cursor.execute("commit")
                except BaseException:
                    if self._connection.in_transaction:
                        cursor.execute("rollback")
                    raise
                return result
        except sqlite3.Error as error:
            raise GuardUnavailable(f"the record of payments cannot be used: {error}.") from error


def _judge(cursor: sqlite3.Cursor, now: int, context: Context[Any]) -> None:
    """Raise the fence, or refuse."""
    row = cursor.execute(
        "select fencing_token from tenure_payment_fence where task_id = ?", (context.task_id,)
    ).fetchone()
    if row is not None and context.fencing_token < row[0]:
        raise StaleToken(
            f"attempt {context.attempt_id} of task {context.task_id} is too late with its"
            f" payment: a later attempt holds {row[0]}.",
            seen_token=row[0],
        )
    until = context.expires_at.timestamp() + context.clock_tolerance_seconds
    if now >= until * 1_000_000:
        raise AuthorityOver(
            f"the lease of attempt {context.attempt_id} of task {context.task_id} is over by"
            " the clock of its record of payments."
        )
    cursor.execute(
        "insert into tenure_payment_fence (task_id, fencing_token, raised_at) values (?, ?, ?)"
        " on conflict (task_id) do update"
        " set fencing_token = excluded.fencing_token, raised_at = excluded.raised_at",
        (context.task_id, context.fencing_token, now),
    )
