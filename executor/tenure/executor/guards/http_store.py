"""Where a receiver keeps what it was asked: the interface, and the store in a SQLite file."""

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from tenure.executor.core.receiving import (
    Entry,
    Presented,
    State,
    Verdict,
    claims,
    judge,
    raises_fence,
)

T = TypeVar("T")
_BUSY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the application's, as it is stored and sent again."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Begun:
    """What a store made of a request. ``answer`` comes with REPLAY."""

    verdict: Verdict
    seen_token: int | None = None
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Something whose outcome nobody knows: a person has to look. ``kind`` is ``request`` or
    ``payment``; ``task`` is what its token is compared for."""

    kind: str
    key: str
    scope: str
    task: str
    since: datetime


class StoreUnavailable(Exception):
    """The store cannot be reached: nothing was done."""


class RequestStore(Protocol):
    """Fences and requests. Each method is one transaction, durable when it returns, and raises
    StoreUnavailable where it is none. Its clock judges."""

    async def begin(
        self, presented: Presented, *, claim: str, claim_seconds: float, repeat_abandoned: bool
    ) -> Begun:
        """Judge a request, raise the fence, and claim the key for ``claim`` where it may start."""

    async def keep(self, claim: str, claim_seconds: float) -> bool:
        """The owner of a claim is alive. False: the claim is not its any more."""

    async def finish(self, claim: str, answer: Answer | None) -> bool:
        """The request is done; None for an answer that is not kept. False as for ``keep``."""

    async def release(self, claim: str) -> bool:
        """The request was not begun after all: forget it. False as for ``keep``."""

    async def prune(self, older_than_seconds: float) -> int:
        """Forget done requests, and fences without any, that were last touched so long ago; how
        many. A request that is repeated after that is a new one."""

    async def forget(self, scope: str, key: str) -> bool:
        """Forget a lost request, since somebody has seen that it did nothing."""


_TABLES: Final = """
create table if not exists tenure_http_fence (
    resource text primary key,
    fencing_token integer not null,
    raised_at integer not null
) without rowid;
create table if not exists tenure_http_request (
    scope text not null,
    key text not null,
    resource text not null,
    fingerprint text not null,
    state text not null,
    claim text not null,
    claimed_until integer not null,
    status integer,
    headers text,
    body blob,
    touched_at integer not null,
    primary key (scope, key)
) without rowid;
create index if not exists tenure_http_request_claim on tenure_http_request (claim);
create index if not exists tenure_http_request_resource on tenure_http_request (resource);
"""


class SqliteRequests:
    """In a file that the processes of one machine share. ``clock`` gives seconds since 1970."""

    def __init__(self, path: Path | str, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # one connection, used from whichever thread
        self._connection = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._connection.executescript(
            "pragma journal_mode = wal; pragma synchronous = full;" + _TABLES
        )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    async def begin(
        self, presented: Presented, *, claim: str, claim_seconds: float, repeat_abandoned: bool
    ) -> Begun:
        """As RequestStore says."""

        def work(cursor: sqlite3.Cursor, now: int) -> Begun:
            return self._begin(cursor, now, presented, claim, claim_seconds, repeat_abandoned)

        return await self._transaction(work)

    def _begin(
        self,
        cursor: sqlite3.Cursor,
        now: int,
        presented: Presented,
        claim: str,
        claim_seconds: float,
        repeat_abandoned: bool,
    ) -> Begun:
        fence = cursor.execute(
            "select fencing_token from tenure_http_fence where resource = ?", (presented.resource,)
        ).fetchone()
        seen: int | None = None if fence is None else fence[0]
        row = cursor.execute(
            "select state, fingerprint, claimed_until, status, headers, body"
            " from tenure_http_request where scope = ? and key = ?",
            (presented.scope, presented.key),
        ).fetchone()
        verdict = judge(
            presented,
            seen_token=seen,
            entry=None if row is None else Entry(State(row[0]), row[1], row[2], row[3] is not None),
            now=now,
            repeat_abandoned=repeat_abandoned,
        )
        if raises_fence(verdict):
            cursor.execute(
                "insert into tenure_http_fence values (?, ?, ?)"
                " on conflict (resource) do update set fencing_token = excluded.fencing_token,"
                " raised_at = excluded.raised_at",
                (presented.resource, presented.token, now),
            )
        if claims(verdict):
            cursor.execute(
                "insert or replace into tenure_http_request values"
                " (?, ?, ?, ?, ?, ?, ?, null, null, null, ?)",
                (
                    presented.scope,
                    presented.key,
                    presented.resource,
                    presented.fingerprint,
                    State.RUNNING,
                    claim,
                    now + int(claim_seconds * 1_000_000),
                    now,
                ),
            )
        answer = stored_answer(*row[3:]) if verdict is Verdict.REPLAY else None
        return Begun(verdict, seen, answer)

    async def keep(self, claim: str, claim_seconds: float) -> bool:
        """As RequestStore says."""
        return await self._claimed(claim, "claimed_until = ?2 + ?3", int(claim_seconds * 1_000_000))

    async def finish(self, claim: str, answer: Answer | None) -> bool:
        """As RequestStore says."""
        status, headers, body = (None, None, None) if answer is None else answer_columns(answer)
        return await self._claimed(
            claim, "state = 'done', status = ?3, headers = ?4, body = ?5", status, headers, body
        )

    async def release(self, claim: str) -> bool:
        """As RequestStore says."""

        def work(cursor: sqlite3.Cursor, now: int) -> bool:
            return (
                cursor.execute(
                    "delete from tenure_http_request where claim = ? and state = 'running'",
                    (claim,),
                ).rowcount
                == 1
            )

        return await self._transaction(work)

    async def prune(self, older_than_seconds: float) -> int:
        """As RequestStore says."""

        def work(cursor: sqlite3.Cursor, now: int) -> int:
            before = now - int(older_than_seconds * 1_000_000)
            gone = cursor.execute(
                "delete from tenure_http_request where state = 'done' and touched_at < ?",
                (before,),
            ).rowcount
            return gone + (
                cursor.execute(
                    "delete from tenure_http_fence as f where raised_at < ? and not exists"
                    " (select 1 from tenure_http_request r where r.resource = f.resource)",
                    (before,),
                ).rowcount
            )

        return await self._transaction(work)

    async def forget(self, scope: str, key: str) -> bool:
        """As RequestStore says."""

        def work(cursor: sqlite3.Cursor, now: int) -> bool:
            return (
                cursor.execute(
                    "delete from tenure_http_request where scope = ? and key = ?"
                    " and state = 'running' and claimed_until <= ?",
                    (scope, key, now),
                ).rowcount
                == 1
            )

        return await self._transaction(work)

    async def interrupted(self) -> list[Unsettled]:
        """Requests whose process was lost in their middle, the oldest first."""

        def work(cursor: sqlite3.Cursor, now: int) -> list[Unsettled]:
            rows = cursor.execute(
                "select key, scope, resource, touched_at from tenure_http_request"
                " where state = 'running' and claimed_until <= ? order by touched_at",
                (now,),
            )
            return [
                Unsettled("request", key, scope, task, datetime.fromtimestamp(at / 1_000_000, UTC))
                for key, scope, task, at in rows
            ]

        return await self._transaction(work)

    async def _claimed(self, claim: str, change: str, *values: Any) -> bool:
        def work(cursor: sqlite3.Cursor, now: int) -> bool:
            return (
                cursor.execute(
                    f"update tenure_http_request set touched_at = ?2, {change}"
                    " where claim = ?1 and state <> 'done'",
                    (claim, now, *values),
                ).rowcount
                == 1
            )

        return await self._transaction(work)

    async def _transaction(self, work: Callable[[sqlite3.Cursor, int], T]) -> T:
        return await asyncio.to_thread(self._transaction_now, work)

    def _transaction_now(self, work: Callable[[sqlite3.Cursor, int], T]) -> T:
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
            raise StoreUnavailable(str(error)) from error


def answer_columns(answer: Answer) -> tuple[int, str, bytes]:
    """Status, headers and body as stores keep them."""
    return answer.status, json.dumps(answer.headers), answer.body


def stored_answer(status: int, headers: str, body: bytes) -> Answer:
    """The inverse of ``answer_columns``."""
    return Answer(status, tuple((name, value) for name, value in json.loads(headers)), bytes(body))
