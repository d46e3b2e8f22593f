"""The inbox: which assignments this node has durably accepted, before their messages go.

A file of the node's own (SQLite), written by one thread in batches, each flushed before its callers
go on. That an attempt has ended is written with the next batch: nobody waits for it, and a row that
is not closed is abandoned by the next start, as all rows of older incarnations are: their work
belongs to nobody here. Safety does not depend on the file: when it is lost or broken a new one is
begun, said loudly, and the coordinator refuses what was taken before.
"""

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

import structlog

from tenure.contract.ids import AttemptId, IncarnationId, NodeId
from tenure.executor.blocking_calls import in_own_thread
from tenure.executor.core.intake import Assignment
from tenure.executor.errors import InboxUnavailable

_SCHEMA: Final = """
create table if not exists inbox (
    event_id text not null primary key,
    task_id text not null,
    attempt_id text not null unique,
    fencing_token integer not null,
    incarnation text not null,
    state text not null check (state in ('received', 'ended', 'abandoned')),
    received_at real not null,
    ended_at real
) without rowid
"""
_STORE: Final = """
insert into inbox (event_id, task_id, attempt_id, fencing_token, incarnation, state, received_at)
values (?, ?, ?, ?, ?, 'received', ?) on conflict do nothing
"""
_CLOSE: Final = "update inbox set state = 'ended', ended_at = ? where attempt_id = ?"
_ABANDON: Final = """
update inbox set state = 'abandoned', ended_at = ? where state = 'received' and incarnation <> ?
"""
_RETIRE: Final = "delete from inbox where ended_at < ?"
FILE_PREFIX: Final = "inbox-"
FILE_SUFFIX: Final = ".sqlite3"
_MAX_BATCH: Final = 256
_RETIRE_EVERY_SECONDS: Final = 3600.0
_BUSY_SECONDS: Final = 5.0
_CLOSED_WITHIN_SECONDS: Final = 5.0
"""When nothing else has to be written, what has ended is."""

log = structlog.get_logger("tenure.executor")

_Job: TypeAlias = "_Store | _Begin | None"


@dataclass(slots=True)
class _Store:
    assignments: Sequence[Assignment]
    incarnation: IncarnationId
    done: Callable[[list[bool] | InboxUnavailable], None]
    new: list[bool] = field(default_factory=list)


@dataclass(slots=True)
class _Begin:
    incarnation: IncarnationId


def inbox_path(state_directory: Path, node_id: NodeId) -> Path:
    """Where a node's inbox is."""
    return state_directory / f"{FILE_PREFIX}{node_id}{FILE_SUFFIX}"


class Inbox:
    """``store`` before a message is acknowledged; ``close_attempt`` when its work has ended."""

    def __init__(
        self,
        path: Path,
        *,
        retention_seconds: float,
        on_replaced: Callable[[], None],
        keep: bool = True,
    ) -> None:
        """``keep``: leave the file when stopped, for the next start under the same name."""
        self._path = path
        self._retention_seconds = retention_seconds
        self._on_replaced = on_replaced
        self._keep = keep
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._ended: deque[AttemptId] = deque()
        self._thread = threading.Thread(target=self._run, name="tenure-inbox", daemon=True)
        self._connection: sqlite3.Connection | None = None
        self._file_id: tuple[int, int] | None = None
        self._retired_at = float("-inf")

    def start(self) -> None:
        """Start the writer."""
        self._thread.start()

    def begin(self, incarnation: IncarnationId) -> None:
        """A new incarnation: what older ones left is abandoned."""
        self._jobs.put(_Begin(incarnation))

    async def store(
        self, assignments: Sequence[Assignment], incarnation: IncarnationId
    ) -> list[bool]:
        """Make the assignments durable; of each whether it was new.

        Raises InboxUnavailable: nothing may be acknowledged then.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[bool]] = loop.create_future()

        def settle(result: list[bool] | InboxUnavailable) -> None:
            if answer.done():
                return
            if isinstance(result, InboxUnavailable):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        def done(result: list[bool] | InboxUnavailable) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(settle, result)

        self._jobs.put(_Store(assignments, incarnation, done))
        return await answer

    def close_attempt(self, attempt_id: AttemptId) -> None:
        """The attempt has ended here. Written with the next batch, nobody waits for it."""
        self._ended.append(attempt_id)

    async def stop(self, timeout_seconds: float) -> None:
        """Write what waits, and close the file."""
        self._jobs.put(None)
        await in_own_thread(lambda: self._thread.join(timeout_seconds))

    # Everything below runs in the writer's thread ------------------------------------------------

    def _run(self) -> None:
        ending = False
        while not ending:
            jobs = self._next_jobs()
            ending = None in jobs
            ended = [self._ended.popleft() for _ in range(len(self._ended))]
            if jobs or ended:
                self._write_answered([job for job in jobs if job is not None], ended)
        self._disconnect()
        if not self._keep:
            self._remove(self._path)

    def _next_jobs(self) -> list[_Job]:
        """What waits; nothing after a while without anything."""
        try:
            jobs = [self._jobs.get(timeout=_CLOSED_WITHIN_SECONDS)]
        except Empty:
            return []
        while not self._jobs.empty() and len(jobs) < _MAX_BATCH:
            jobs.append(self._jobs.get())
        return jobs

    def _write_answered(
        self, jobs: Sequence["_Store | _Begin"], ended: Sequence[AttemptId]
    ) -> None:
        result: InboxUnavailable | None = None
        try:
            self._write(jobs, ended)
        except (sqlite3.Error, OSError) as error:
            result = InboxUnavailable(
                f"the inbox {self._path} cannot be written: {error}.",
                next_step="Check the disk and the rights on TENURE_STATE_DIR.",
            )
        for job in jobs:
            if isinstance(job, _Store):
                job.done(result or job.new)

    def _write(self, jobs: Sequence["_Store | _Begin"], ended: Sequence[AttemptId]) -> None:
        self._check_file()
        try:
            self._commit(jobs, ended)
        except sqlite3.DatabaseError as error:
            self._disconnect()
            if not _broken(error):
                raise
            self._set_aside(str(error))
            self._commit(jobs, ended)

    def _commit(self, jobs: Iterable["_Store | _Begin"], ended: Sequence[AttemptId]) -> None:
        connection = self._connection or self._connect()
        now = time.time()
        connection.execute("begin immediate")
        try:
            if ended:
                connection.executemany(_CLOSE, [(now, attempt_id) for attempt_id in ended])
            for job in jobs:
                match job:
                    case _Store():
                        job.new = [
                            connection.execute(
                                _STORE,
                                (
                                    entry.event_id,
                                    entry.task_id,
                                    entry.attempt_id,
                                    entry.fencing_token,
                                    job.incarnation,
                                    now,
                                ),
                            ).rowcount
                            == 1
                            for entry in job.assignments
                        ]
                    case _Begin():
                        abandoned = connection.execute(_ABANDON, (now, job.incarnation)).rowcount
                        if abandoned:
                            log.info("work of an earlier start is abandoned", attempts=abandoned)
            if now >= self._retired_at + _RETIRE_EVERY_SECONDS:
                connection.execute(_RETIRE, (now - self._retention_seconds,))
                self._retired_at = now
            connection.execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("rollback")
            raise

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():  # a log left behind by a lost file would be played into it
            self._remove(self._path)
            self._sweep()
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            connection.execute(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        status = self._path.stat()
        self._file_id = (status.st_dev, status.st_ino)
        self._connection = connection
        return connection

    def _remove(self, path: Path) -> None:
        for ending in ("", "-wal", "-shm"):
            with suppress(OSError):
                path.with_name(path.name + ending).unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove files that starts under made-up names left when they were killed."""
        oldest = time.time() - self._retention_seconds
        for path in self._path.parent.glob(f"{FILE_PREFIX}*{FILE_SUFFIX}"):
            with suppress(OSError):
                if path.stat().st_mtime < oldest:
                    self._remove(path)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _check_file(self) -> None:
        """An open file that was deleted or replaced would go on being written for nobody."""
        if self._connection is None:
            return
        try:
            status = self._path.stat()
        except FileNotFoundError:
            same = False
        else:
            same = (status.st_dev, status.st_ino) == self._file_id
        if not same:
            self._disconnect()
            self._say_replaced("it was deleted or replaced while in use")

    def _set_aside(self, why: str) -> None:
        """Keep a broken file beside the new one."""
        kept = self._path.with_name(f"{self._path.name}.broken-{time.time_ns()}")
        with suppress(FileNotFoundError):
            self._path.rename(kept)
        self._say_replaced(why)

    def _say_replaced(self, why: str) -> None:
        log.error("the inbox was lost and is begun anew", path=str(self._path), why=why)
        self._on_replaced()


def _broken(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is at fault (broken, or no inbox), and not the disk or a lock."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF  # primary result code
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
