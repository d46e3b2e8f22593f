"""The order of steps of a guarded transaction, for drivers that are awaited.

check the authority → begin, lock the fence, be judged, take the inbox row → the body → commit
→ when the commit was not answered: ask whether it happened
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, Protocol

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay
from tenacity.wait import wait_random_exponential

from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.executor.context import Context
from tenure.executor.errors import GuardUnavailable
from tenure.executor.guards.sql_common import (
    LAST_WAIT_SECONDS,
    OUT_OF_SCOPE,
    SETTLE_SECONDS,
    Calls,
    ConnectionT_co,
    Effect,
    Failure,
    alone,
    begin_arguments,
    ended_early,
    fence_arguments,
    inbox_name,
    lost_at_commit,
    lost_before_commit,
    no_connection,
    of_statement,
    out_of_scope,
    over,
    patience,
    prove_arguments,
    said,
    settle_arguments,
    unknown_commit,
)
from tenure.executor.side_effects import SideEffect


class AsyncLink(Protocol[ConnectionT_co]):
    """One connection of a driver's, as the steps use it."""

    @property
    def connection(self) -> ConnectionT_co:
        """What the body writes with."""

    async def begin(self) -> None:
        """Begin a transaction, read committed."""

    async def row(
        self, statement: str, arguments: tuple[str, ...], timeout_seconds: float
    ) -> tuple[Any, ...]:
        """The one row of a statement."""

    async def once(
        self, statement: str, arguments: tuple[str, ...], timeout_seconds: float
    ) -> tuple[Any, ...]:
        """The same as a transaction of its own, which is not begun."""

    async def commit(self) -> None:
        """Commit the transaction."""

    async def roll_back(self) -> None:
        """Roll the transaction back."""

    async def terminate(self) -> None:
        """Let go of the connection without a word to the server."""

    def failure(self, error: BaseException) -> Failure:
        """What an error of this connection says."""


class AsyncDriver(Protocol[ConnectionT_co]):
    """A driver with its pool."""

    @property
    def calls(self) -> Calls:
        """The receiver's functions in the driver's notation."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises when a server refuses or is lost."""

    def acquire(self) -> AbstractAsyncContextManager[AsyncLink[ConnectionT_co]]:
        """A connection for the length of a block. Raises GuardUnavailable when it is not open, and
        one of ``errors`` when there is none to be had."""

    def failure(self, error: BaseException) -> Failure:
        """What an error without a connection says."""


class AsyncGuard(Generic[ConnectionT_co]):
    """A guard over a driver; the drivers' modules have its public names."""

    def __init__(
        self,
        driver: AsyncDriver[ConnectionT_co],
        *,
        statement_timeout_seconds: float = 30.0,
        faults: FaultPoints = NO_FAULTS,
    ) -> None:
        """``faults``: for crash tests only."""
        self._driver = driver
        self._statement_timeout_seconds = statement_timeout_seconds
        self._faults = faults

    async def raise_fence(self, context: Context[Any]) -> None:
        """Shut every older attempt of the task out of this database, before the handler begins.

        Raises StaleToken, AuthorityOver, GuardNotInstalled, or GuardUnavailable (may be repeated).
        """
        context.check_authority()
        async with self._acquire() as link:
            try:
                await link.once(
                    self._driver.calls.raise_fence,
                    fence_arguments(context),
                    self._patience(context),
                )
            except self._driver.errors as error:
                failure = link.failure(error)
                await self._abandon(link)
                raise of_statement(failure, context) from error
            except BaseException:
                await self._abandon(link)
                raise

    @asynccontextmanager
    async def transaction(
        self, context: Context[Any], *, operation: str, key: str = ""
    ) -> AsyncIterator[Effect[ConnectionT_co]]:
        """One guarded transaction. ``operation`` names the effect within the task: the same in
        every attempt, another for another effect. ``key`` is what it is done to, where one
        operation has several, or where the lease's scope names objects.

        Raises StaleToken or AuthorityOver when the receiver refuses, before the body or at the
        commit; OutOfScope; EffectNotWritten when the transaction was lost and nothing was written;
        CommitUnknown when that could not be learned, and repeating it under the same ``operation``
        tells; TransactionNested; GuardNotInstalled; GuardUnavailable; ValueError for an operation
        that is empty, and for both above 200 characters or with a NUL. Errors of the body's
        statements pass through.
        """
        with context.side_effect(operation, key=key) as begun:
            async with self.step(context, inbox_name(operation, key), begun) as effect:
                yield effect

    @asynccontextmanager
    async def step(
        self, context: Context[Any], operation: str, begun: SideEffect
    ) -> AsyncIterator[Effect[ConnectionT_co]]:
        """As ``transaction``, for a part of a side effect that was ``begun`` already: it is judged
        by the receiver, under a name of its own in the inbox, and not kept with the attempt."""
        with alone(self, context, operation):
            async with self._step(context, operation, begun) as effect:
                yield effect

    @asynccontextmanager
    async def _step(
        self, context: Context[Any], operation: str, begun: SideEffect
    ) -> AsyncIterator[Effect[ConnectionT_co]]:
        context.check_authority()
        clock = asyncio.get_running_loop().time
        unanswered: Exception | None = None
        async with self._acquire() as link:
            try:
                await self._points(context).reach(FaultPoint.BEFORE_EFFECT, context.attempt_id)
                began_at = clock()
                await link.begin()
                already_done, limit_milliseconds, number = await link.row(
                    self._driver.calls.begin,
                    begin_arguments(context, operation, begun),
                    self._patience(context),
                )
            except self._driver.errors as error:
                failure = link.failure(error)
                await self._abandon(link)
                raise of_statement(failure, context) from error
            except BaseException:
                await self._abandon(link)
                raise
            try:
                yield Effect(link.connection, already_done)
                # A body that swallowed an error of a statement has an aborted transaction,
                # whose COMMIT would be answered as a silent rollback: this fails instead.
                (now,) = await link.row(
                    self._driver.calls.prove,
                    prove_arguments(context, operation),
                    self._patience(context),
                )
            except self._driver.errors as error:
                failure = link.failure(error)
                await self._abandon(link)
                late = clock() >= began_at + limit_milliseconds / 1000
                if failure.says_over or (failure.lost and late):
                    raise over(context) from error
                if failure.sqlstate == OUT_OF_SCOPE:  # a trigger of the application's asked
                    raise out_of_scope(failure) from error
                if failure.lost:
                    raise lost_before_commit() from error
                raise
            except BaseException:
                await self._abandon(link)
                raise
            if now != number:
                await self._abandon(link)
                raise ended_early(operation)
            unanswered = await self._commit(link, context)
            await self._points(context).reach(FaultPoint.AFTER_EFFECT, context.attempt_id)
        # Nothing was written where it had been done before, so nothing is unknown either.
        if unanswered is not None and not already_done:
            await self._settle(context, operation, unanswered)

    def _points(self, context: Context[Any]) -> FaultPoints:
        """Those that it was given, else the executor's own."""
        return context.faults if self._faults is NO_FAULTS else self._faults

    async def _commit(
        self, link: AsyncLink[ConnectionT_co], context: Context[Any]
    ) -> Exception | None:
        """Commit. Gives back the failure of a commit whose outcome is unknown."""
        # A commit under way is not called back: its outcome would be unknown for nothing.
        commit = asyncio.ensure_future(link.commit())
        try:
            await asyncio.wait({commit}, timeout=self._statement_timeout_seconds)
        finally:  # also when the handler is cancelled meanwhile
            if not commit.done():
                await asyncio.wait({commit}, timeout=LAST_WAIT_SECONDS)
            if not commit.done():
                await link.terminate()
                commit.cancel()  # where the driver does not notice that its connection is gone
                await asyncio.wait({commit})
            if not commit.cancelled():
                commit.exception()  # heard: whoever is cancelled here asks no more
        if commit.cancelled():
            return TimeoutError("the commit was not answered in time")
        error = commit.exception()
        if error is None:
            return None
        if not isinstance(error, self._driver.errors):
            raise error
        failure = link.failure(error)
        if failure.says_over:
            raise over(context) from error
        if failure.sqlstate is not None and not failure.lost:
            raise error  # the server answered and rolled back: a deferred constraint, for instance
        return error

    async def _settle(self, context: Context[Any], operation: str, cause: Exception) -> None:
        """Learn the outcome of a commit that was not answered. Raises unless it happened."""
        errors: tuple[type[Exception], ...] = (GuardUnavailable, *self._driver.errors)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(errors),
            wait=wait_random_exponential(multiplier=0.1, max=1.0),
            stop=stop_after_delay(context.remaining_authority_seconds() + SETTLE_SECONDS),
            reraise=True,
        )
        try:
            written: bool = await retrying(self._ask_whether_written, context, operation)
        except errors as error:
            raise unknown_commit(operation, said(error)) from cause
        if not written:
            raise lost_at_commit(operation) from cause

    async def _ask_whether_written(self, context: Context[Any], operation: str) -> bool:
        async with self._acquire() as link:
            try:
                (written,) = await link.once(
                    self._driver.calls.settle, settle_arguments(context, operation), SETTLE_SECONDS
                )
            except BaseException:
                await self._abandon(link)
                raise
            return written is True

    @asynccontextmanager
    async def _acquire(self) -> AsyncIterator[AsyncLink[ConnectionT_co]]:
        acquiring = self._driver.acquire()
        try:
            link = await acquiring.__aenter__()
        except self._driver.errors as error:
            raise no_connection(self._driver.failure(error)) from error
        # What leaves the block is the guard's to judge, not the pool's: connections that are fit
        # for nothing have been let go of before.
        try:
            yield link
        finally:
            await acquiring.__aexit__(None, None, None)

    async def _abandon(self, link: AsyncLink[ConnectionT_co]) -> None:
        """Roll back, or let go of a connection that cannot."""
        try:
            async with asyncio.timeout(LAST_WAIT_SECONDS):
                await link.roll_back()
        except self._driver.errors:
            await link.terminate()

    def _patience(self, context: Context[Any]) -> float:
        return patience(context, self._statement_timeout_seconds)
