"""The receiver's store in PostgreSQL: for receivers of several processes or machines, and for those
that write their effects there, which then happen exactly once.

``tenure guard http --print`` prints its tables. The login needs the rights to read and write them.
Needs the extra ``sql``.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from tenure.executor.core.receiving import (
    Entry,
    Presented,
    State,
    Verdict,
    claims,
    judge,
    raises_fence,
)
from tenure.executor.errors import AuthorityOver, GuardUnavailable, StaleToken
from tenure.executor.guards.http_store import (
    Answer,
    Begun,
    StoreUnavailable,
    answer_columns,
    stored_answer,
)
from tenure.executor.guards.sql_install import quoted

if TYPE_CHECKING:
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    Connection: TypeAlias = (
        asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    )

_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
_LIMIT_SECONDS: Final = 5.0
_MICROSECONDS: Final = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"


class PostgresRequests:
    """Over an asyncpg pool of the application's. ``schema`` is where the tables are."""

    def __init__(self, pool: "Pool", *, schema: str = "public") -> None:
        self._pool = pool
        self._fences = f"{quoted(schema)}.tenure_http_fence"
        self._requests = f"{quoted(schema)}.tenure_http_request"

    async def begin(
        self, presented: Presented, *, claim: str, claim_seconds: float, repeat_abandoned: bool
    ) -> Begun:
        """As RequestStore says."""
        async with self._transaction() as connection:
            seen, now = await self._locked_fence(connection, presented)
            while True:
                row = await self._entry(connection, presented)
                verdict = judge(
                    presented,
                    seen_token=seen,
                    entry=None
                    if row is None
                    else Entry(
                        State(row["state"]),
                        row["fingerprint"],
                        row["claimed_until"],
                        row["status"] is not None,
                    ),
                    now=now,
                    repeat_abandoned=repeat_abandoned,
                )
                if not claims(verdict) or await self._claim(
                    connection, presented, claim, now, claim_seconds
                ):
                    break
                # Somebody had the key under another task's fence meanwhile: look again.
            if raises_fence(verdict):
                await connection.execute(
                    f"update {self._fences} set fencing_token = $2, raised_at = $3"
                    " where resource = $1",
                    presented.resource,
                    presented.token,
                    now,
                )
        if row is None or verdict is not Verdict.REPLAY:
            return Begun(verdict, seen)
        return Begun(verdict, seen, stored_answer(row["status"], row["headers"], row["body"]))

    async def _entry(
        self, connection: "Connection", presented: Presented
    ) -> "asyncpg.Record | None":
        return await connection.fetchrow(
            "select state, fingerprint, claimed_until, status, headers, body"
            f" from {self._requests} where scope = $1 and key = $2 for update",
            presented.scope,
            presented.key,
        )

    async def _claim(
        self,
        connection: "Connection",
        presented: Presented,
        claim: str,
        now: int,
        claim_seconds: float,
    ) -> bool:
        """Whether the key is ours: it was free, or its owner is gone."""
        taken = await connection.fetchval(
            f"insert into {self._requests} as r (scope, key, resource, fingerprint, state,"
            " claim, claimed_until, touched_at)"
            " values ($1, $2, $3, $4, 'running', $5, $6, $7)"
            " on conflict (scope, key) do update set claim = excluded.claim,"
            " claimed_until = excluded.claimed_until, touched_at = excluded.touched_at"
            " where r.state = 'running' and r.claimed_until <= $7 and r.fingerprint = $4"
            " returning true",
            presented.scope,
            presented.key,
            presented.resource,
            presented.fingerprint,
            claim,
            now + int(claim_seconds * 1_000_000),
            now,
        )
        return taken is True

    async def _locked_fence(
        self, connection: "Connection", presented: Presented
    ) -> tuple[int | None, int]:
        """The highest token seen, under a lock, and the clock after it."""
        await connection.execute(
            f"insert into {self._fences} (resource, fencing_token, raised_at)"
            f" values ($1, -1, {_MICROSECONDS}) on conflict (resource) do nothing",
            presented.resource,
        )
        seen = await connection.fetchval(
            f"select fencing_token from {self._fences} where resource = $1 for update",
            presented.resource,
        )
        now = await connection.fetchval(f"select {_MICROSECONDS}")
        return (None if seen is None or seen < 0 else seen), now

    async def confirm(self, connection: "Connection", presented: Presented, claim: str) -> None:
        """Within the transaction that writes the effect, as its last statement or before: judge the
        authority again, and note the effect with it. The transaction commits only what this request
        may still do, and a repeated one knows that it was done.

        Raises StaleToken, AuthorityOver, or GuardUnavailable when the request has been taken over.
        """
        seen, now = await self._locked_fence(connection, presented)
        if seen is not None and presented.token < seen:
            raise StaleToken(f"a later attempt holds {seen}.", seen_token=seen)
        if now >= presented.until:
            raise AuthorityOver("the authority of the attempt is over.")
        noted = await connection.fetchval(
            f"update {self._requests} set state = 'acted', touched_at = $2"
            " where claim = $1 and state in ('running', 'acted') returning true",
            claim,
            now,
        )
        if noted is None:
            raise GuardUnavailable("the request was taken over by a later one of its key.")

    async def keep(self, claim: str, claim_seconds: float) -> bool:
        """As RequestStore says."""
        change = f"claimed_until = {_MICROSECONDS} + $2"
        return await self._claimed(claim, change, int(claim_seconds * 1_000_000))

    async def finish(self, claim: str, answer: Answer | None) -> bool:
        """As RequestStore says."""
        columns = (None, None, None) if answer is None else answer_columns(answer)
        change = "state = 'done', status = $2, headers = $3, body = $4"
        return await self._claimed(claim, change, *columns)

    async def release(self, claim: str) -> bool:
        """As RequestStore says."""
        return await self._changed(
            f"delete from {self._requests} where claim = $1 and state = 'running'", claim
        )

    async def prune(self, older_than_seconds: float) -> int:
        """As RequestStore says."""
        before = f"{_MICROSECONDS} - $1::bigint"
        microseconds = int(older_than_seconds * 1_000_000)
        async with self._transaction() as connection:
            gone = await connection.execute(
                f"delete from {self._requests} where state = 'done' and touched_at < {before}",
                microseconds,
            )
            fences = await connection.execute(
                f"delete from {self._fences} f where raised_at < {before} and not exists"
                f" (select from {self._requests} r where r.resource = f.resource)",
                microseconds,
            )
        return _count(gone) + _count(fences)

    async def forget(self, scope: str, key: str) -> bool:
        """As RequestStore says."""
        return await self._changed(
            f"delete from {self._requests} where scope = $1 and key = $2 and state = 'running'"
            f" and claimed_until <= {_MICROSECONDS}",
            scope,
            key,
        )

    async def _claimed(self, claim: str, change: str, *values: Any) -> bool:
        return await self._changed(
            f"update {self._requests} set touched_at = {_MICROSECONDS}, {change}"
            " where claim = $1 and state <> 'done'",
            claim,
            *values,
        )

    async def _changed(self, statement: str, *values: Any) -> bool:
        async with self._transaction() as connection:
            return _count(await connection.execute(statement, *values)) == 1

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator["Connection"]:
        """Limited: a process that is stopped in the middle keeps others out for a moment only."""
        limit = f"{int(_LIMIT_SECONDS * 1000)}"
        try:
            async with (
                self._pool.acquire(timeout=_LIMIT_SECONDS) as connection,
                connection.transaction(isolation="read_committed"),
            ):
                await connection.execute(
                    f"set local idle_in_transaction_session_timeout = {limit};"
                    f" set local statement_timeout = {limit}"
                )
                yield connection
        except _ERRORS as error:
            raise StoreUnavailable(str(error) or type(error).__name__) from error


def _count(tag: str) -> int:
    return int(tag.rpartition(" ")[2])
