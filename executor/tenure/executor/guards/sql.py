"""Effects in a PostgreSQL database that refuses stale attempts by itself (LEASE-10).

``sql_install.sql`` is the receiver's half: one fence row for each task, one inbox row for each
operation, and the functions that judge. This is the sender's half. What a handler writes goes into
one transaction with the fence check and the inbox row::

    async with ledger.transaction(context, operation="row") as effect:
        if not effect.already_done:
            await effect.connection.execute("insert …")

The receiver refuses an older token (also where the successor has written nothing yet, since its
fence was raised before its handler had control), an equal token once its clock is past the lease's
end plus the policy's tolerance, and a transaction whose holder was paused between check and commit.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import asyncpg
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay
from tenacity.wait import wait_random_exponential

from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.executor.context import Context
from tenure.executor.errors import (
    AuthorityOver,
    CommitUnknown,
    EffectNotWritten,
    GuardNotInstalled,
    GuardUnavailable,
    StaleToken,
)

if TYPE_CHECKING:
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    Connection: TypeAlias = (
        asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    )

STALE_TOKEN = "TN001"
AUTHORITY_OVER = "TN002"
_TRANSACTION_TIMEOUT = "25P04"
_NOT_INSTALLED = {"42883", "42P01", "3F000", "42501"}  # function, table, schema, privilege
_SETTLE_SECONDS = 5.0
_LAST_WAIT_SECONDS = 5.0
_REFUSAL_SECONDS = 1.0  # a statement that was sent is given so long to be refused by its receiver
_REPEAT = "Repeat it under the same operation name."
_LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)
# InternalClientError: the server's farewell to an idle session arrives, and the next statement
# meets the driver in a state of its own before it has noticed that the connection is closed.
_DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


@dataclass(frozen=True, slots=True)
class Effect:
    """An open guarded transaction. ``already_done``: an earlier transaction wrote this operation of
    the task, so there is nothing to write."""

    connection: "Connection"
    already_done: bool


def install_statements(*, schema: str = "public", roles: Sequence[str] = ()) -> str:
    """The receiver's half as SQL, for whoever owns the downstream database; repeatable.

    ``roles`` are accounts that executors log in with: see ``grant_statements``.
    """
    text = resources.files("tenure.executor.guards").joinpath("sql_install.sql").read_text("utf-8")
    quoted = _quoted(schema)
    statements = text.replace("'@schema@.", "'" + quoted.replace("'", "''") + ".")
    return statements.replace("@schema@", quoted) + grant_statements(schema=schema, roles=roles)


def grant_statements(*, schema: str = "public", roles: Sequence[str]) -> str:
    """What accounts of executors need: to call the functions, and no more."""
    if not roles:
        return ""
    quoted, named = _quoted(schema), ", ".join(_quoted(role) for role in roles)
    return (
        f"grant usage on schema {quoted} to {named};\n"
        "grant execute on function\n"
        f"    {quoted}.tenure_raise_fence(uuid, bigint, timestamptz, interval),\n"
        f"    {quoted}.tenure_guard(uuid, uuid, text, bigint, timestamptz, interval, bigint),\n"
        f"    {quoted}.tenure_settle(uuid, uuid, text, bigint)\n"
        f"to {named};\n"
    )


class SqlGuard:
    """The sender's half, over an asyncpg pool of the application's or one of its own.

    ``SqlGuard(pool)`` uses that pool and leaves it open; ``async with SqlGuard(dsn) as guard``
    makes one and closes it. ``schema`` is where the receiver's half was installed. ``faults``: for
    crash tests only.
    """

    def __init__(
        self,
        source: "Pool | str",
        *,
        schema: str = "public",
        pool_size: int = 10,
        acquire_timeout_seconds: float = 10.0,
        statement_timeout_seconds: float = 30.0,
        faults: FaultPoints = NO_FAULTS,
    ) -> None:
        self._dsn = source if isinstance(source, str) else None
        self._pool: Pool | None = None if isinstance(source, str) else source
        self._schema = _quoted(schema)
        self._pool_size = pool_size
        self._acquire_timeout_seconds = acquire_timeout_seconds
        self._statement_timeout_seconds = statement_timeout_seconds
        self._faults = faults

    @staticmethod
    async def install(
        connection: "Connection", *, schema: str = "public", roles: Sequence[str] = ()
    ) -> None:
        """Install or renew the receiver's half, as its owner; repeatable."""
        async with connection.transaction():
            # Two installers at once would collide over the same catalogue rows.
            await connection.execute("select pg_advisory_xact_lock(hashtext('tenure_guard'))")
            await connection.execute(install_statements(schema=schema, roles=roles))

    async def __aenter__(self) -> Self:
        if self._dsn is not None:
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=0,
                max_size=self._pool_size,
                command_timeout=self._statement_timeout_seconds,
            )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._dsn is not None and self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    async def raise_fence(self, context: Context[Any]) -> None:
        """Shut every older attempt of the task out of this database, before the handler begins.

        Raises StaleToken, AuthorityOver, GuardNotInstalled, or GuardUnavailable (may be repeated).
        """
        context.check_authority()
        async with self._acquire(context) as connection:
            try:
                await connection.execute(
                    f"select {self._schema}.tenure_raise_fence($1, $2, $3, $4)",
                    context.task_id,
                    context.fencing_token,
                    context.expires_at,
                    timedelta(seconds=context.clock_tolerance_seconds),
                    timeout=self._patience(context),
                )
            except _DRIVER_ERRORS as error:
                raise _translated(error, context) from error

    @asynccontextmanager
    async def transaction(self, context: Context[Any], *, operation: str) -> AsyncIterator[Effect]:
        """One guarded transaction. ``operation`` names the effect within the task: the same in
        every attempt, another for another effect.

        Raises StaleToken or AuthorityOver when the receiver refuses, before the body or at the
        commit; EffectNotWritten when the transaction was lost and nothing was written;
        CommitUnknown when that could not be learned, and repeating it under the same ``operation``
        tells; GuardNotInstalled; GuardUnavailable. Errors of the body's statements pass through.
        """
        context.check_authority()
        clock = asyncio.get_running_loop().time
        unanswered: Exception | None = None
        async with self._acquire(context) as connection:
            transaction = connection.transaction(isolation="read_committed")
            try:
                await self._faults.reach(FaultPoint.BEFORE_EFFECT, context.attempt_id)
                began_at = clock()
                await transaction.start()
                already_done, limit_seconds = await self._begin(connection, context, operation)
            except _DRIVER_ERRORS as error:
                await _abandon(connection, transaction)
                raise _translated(error, context) from error
            except BaseException:
                await _abandon(connection, transaction)
                raise
            try:
                yield Effect(connection, already_done)
                # A body that swallowed an error of a statement has an aborted transaction, whose
                # COMMIT would be answered as a silent rollback: this statement fails instead.
                await connection.execute("select", timeout=self._patience(context))
            except _DRIVER_ERRORS as error:
                await _abandon(connection, transaction)
                lost = isinstance(error, asyncpg.InternalClientError) or (
                    isinstance(error, _LOST) and _is_lost(connection)
                )
                if _says_over(error) or (lost and clock() >= began_at + limit_seconds):
                    raise _over(context) from error
                if lost:
                    raise EffectNotWritten(
                        "the connection was lost before the commit; nothing was written.",
                        next_step=_REPEAT,
                    ) from error
                raise
            except BaseException:
                await _abandon(connection, transaction)
                raise
            unanswered = await self._commit(connection, transaction, context)
            await self._faults.reach(FaultPoint.AFTER_EFFECT, context.attempt_id)
        # Nothing was written where it had been done before, so nothing is unknown either.
        if unanswered is not None and not already_done:
            await self._settle(context, operation, unanswered)

    async def _begin(
        self, connection: "Connection", context: Context[Any], operation: str
    ) -> tuple[bool, float]:
        """Whether it was done before, and seconds until the server ends the transaction."""
        row = await connection.fetchrow(
            f"select * from {self._schema}.tenure_guard($1, $2, $3, $4, $5, $6, $7)",
            context.task_id,
            context.attempt_id,
            operation,
            context.fencing_token,
            context.expires_at,
            timedelta(seconds=context.clock_tolerance_seconds),
            int(context.remaining_authority_seconds() * 1000),
            timeout=self._patience(context),
        )
        assert row is not None  # a function with out parameters gives exactly one
        return row["already_done"], row["limit_milliseconds"] / 1000

    async def _commit(
        self,
        connection: "Connection",
        transaction: asyncpg.transaction.Transaction,
        context: Context[Any],
    ) -> Exception | None:
        """Commit. Gives back the failure of a commit whose outcome is unknown."""
        # A commit under way is not called back: its outcome would be unknown for nothing.
        commit = asyncio.ensure_future(transaction.commit())
        try:
            await asyncio.wait({commit}, timeout=self._statement_timeout_seconds)
        finally:  # also when the handler is cancelled meanwhile
            if not commit.done():
                await asyncio.wait({commit}, timeout=_LAST_WAIT_SECONDS)
            if not commit.done():
                with suppress(asyncpg.InterfaceError):
                    connection.terminate()
                await asyncio.wait({commit})
        error = commit.exception()
        if error is None:
            return None
        if not isinstance(error, _DRIVER_ERRORS):
            raise error
        if _says_over(error):
            raise _over(context) from error
        if isinstance(error, asyncpg.PostgresError) and not _is_lost(connection):
            raise error  # the server answered and rolled back: a deferred constraint, for instance
        return error

    async def _settle(self, context: Context[Any], operation: str, cause: Exception) -> None:
        """Learn the outcome of a commit that was not answered. Raises unless it happened."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((GuardUnavailable, *_DRIVER_ERRORS)),
            wait=wait_random_exponential(multiplier=0.1, max=1.0),
            stop=stop_after_delay(context.remaining_authority_seconds() + _SETTLE_SECONDS),
            reraise=True,
        )
        try:
            written: bool = await retrying(self._ask_whether_written, context, operation)
        except (GuardUnavailable, *_DRIVER_ERRORS) as error:
            raise CommitUnknown(
                f"the connection was lost at the commit of {operation!r} and its outcome could not"
                f" be learned: {_said(error)}.",
                next_step=_REPEAT,
            ) from cause
        if not written:
            raise EffectNotWritten(
                f"the connection was lost at the commit of {operation!r}; nothing was written.",
                next_step=_REPEAT,
            ) from cause

    async def _ask_whether_written(self, context: Context[Any], operation: str) -> bool:
        async with self._acquire(context) as connection:
            return (
                await connection.fetchval(
                    f"select {self._schema}.tenure_settle($1, $2, $3, $4)",
                    context.task_id,
                    context.attempt_id,
                    operation,
                    context.fencing_token,
                    timeout=_SETTLE_SECONDS,
                )
                is True
            )

    @asynccontextmanager
    async def _acquire(self, context: Context[Any]) -> AsyncIterator["Connection"]:
        if self._pool is None:
            raise GuardUnavailable(
                "the guard is not open.", next_step="Use it as `async with SqlGuard(dsn) as guard`."
            )
        try:
            connection = await self._pool.acquire(timeout=self._acquire_timeout_seconds)
        except _DRIVER_ERRORS as error:
            raise GuardUnavailable(
                f"no connection to the downstream database: {_said(error)}."
            ) from error
        try:
            yield connection
        finally:
            await self._pool.release(connection)

    def _patience(self, context: Context[Any]) -> float:
        """Seconds that a guard's own statement may take: a grant is useless afterwards, and a
        refusal says more than our own clock does."""
        return max(
            _REFUSAL_SECONDS,
            min(self._statement_timeout_seconds, context.remaining_authority_seconds()),
        )


def _is_lost(connection: "Connection") -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken it back already
        return True


async def _abandon(connection: "Connection", transaction: asyncpg.transaction.Transaction) -> None:
    """Roll back, or let go of a connection that cannot."""
    if _is_lost(connection):
        return
    try:
        async with asyncio.timeout(_LAST_WAIT_SECONDS):
            await transaction.rollback()
    except _DRIVER_ERRORS:
        with suppress(asyncpg.InterfaceError):  # taken back by the pool meanwhile
            connection.terminate()


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _translated(error: BaseException, context: Context[Any]) -> Exception:
    """What a failure of a guard's own statement means."""
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate == STALE_TOKEN:
        seen = getattr(error, "detail", None) or ""
        return StaleToken(f"{error}.", seen_token=int(seen) if seen.isdecimal() else None)
    if sqlstate == AUTHORITY_OVER or context.remaining_authority_seconds() == 0.0:
        return _over(context)
    if sqlstate in _NOT_INSTALLED:
        return GuardNotInstalled(
            f"the downstream database refuses the guard: {error}.",
            next_step="Install it as the database's owner with `tenure guard sql --print`,"
            " naming this account as a role.",
        )
    return GuardUnavailable(f"the downstream database did not answer: {_said(error)}.")


def _says_over(error: BaseException) -> bool:
    return getattr(error, "sqlstate", None) in (_TRANSACTION_TIMEOUT, AUTHORITY_OVER)


def _over(context: Context[Any]) -> AuthorityOver:
    return AuthorityOver(
        f"the downstream database refused attempt {context.attempt_id} of task {context.task_id}:"
        " its authority is over."
    )


def _quoted(name: str) -> str:
    if not name or "\x00" in name:
        raise ValueError(f"{name!r} is no name of a schema or role")
    return '"' + name.replace('"', '""') + '"'
