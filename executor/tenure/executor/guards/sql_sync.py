"""The order of steps of a guarded transaction, for drivers that block: handlers in threads.

The same steps as in ``sql_async``. A thread cannot be called back from a read, so no step has a
time limit of its own: the server ends the transaction with the authority, and the system's
keepalive notices a server that is gone.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol

from tenacity import Retrying, retry_if_exception_type, stop_after_delay
from tenacity.wait import wait_random_exponential

from tenure.executor.context import Context
from tenure.executor.errors import GuardUnavailable
from tenure.executor.guards.sql_common import (
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
    prove_arguments,
    said,
    settle_arguments,
    unknown_commit,
)
from tenure.executor.side_effects import SideEffect


class SyncLink(Protocol[ConnectionT_co]):
    """One connection of a driver's, as the steps use it."""

    @property
    def connection(self) -> ConnectionT_co:
        """What the body writes with."""

    def begin(self) -> None:
        """Begin a transaction, read committed."""

    def row(self, statement: str, arguments: tuple[str, ...]) -> tuple[Any, ...]:
        """The one row of a statement."""

    def commit(self) -> None:
        """Commit the transaction."""

    def roll_back(self) -> None:
        """Roll the transaction back."""

    def terminate(self) -> None:
        """Let go of the connection without a word to the server."""

    def failure(self, error: BaseException) -> Failure:
        """What an error of this connection says."""


class SyncDriver(Protocol[ConnectionT_co]):
    """A driver with its pool."""

    @property
    def calls(self) -> Calls:
        """The receiver's functions in the driver's notation."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises when a server refuses or is lost."""

    def acquire(self) -> AbstractContextManager[SyncLink[ConnectionT_co]]:
        """A connection for the length of a block. Raises GuardUnavailable when it is not open, and
        one of ``errors`` when there is none to be had."""

    def failure(self, error: BaseException) -> Failure:
        """What an error without a connection says."""


class SyncGuard(Generic[ConnectionT_co]):
    """A guard over a driver; the drivers' modules have its public names."""

    def __init__(self, driver: SyncDriver[ConnectionT_co]) -> None:
        self._driver = driver

    async def raise_fence(self, context: Context[Any]) -> None:
        """Shut every older attempt of the task out of this database, before the handler begins.

        The runtime awaits it, on its event loop. Raises StaleToken, AuthorityOver,
        GuardNotInstalled, or GuardUnavailable (may be repeated).
        """
        await asyncio.to_thread(self.raise_fence_now, context)

    def raise_fence_now(self, context: Context[Any]) -> None:
        """As ``raise_fence``, in the calling thread."""
        context.check_authority()
        with self._acquire() as link:
            try:
                # A transaction of its own, whatever the connection does by itself.
                link.begin()
                link.row(self._driver.calls.raise_fence, fence_arguments(context))
                link.commit()
            except self._driver.errors as error:
                failure = link.failure(error)
                self._abandon(link)
                raise of_statement(failure, context) from error

    @contextmanager
    def transaction(
        self, context: Context[Any], *, operation: str, key: str = ""
    ) -> Iterator[Effect[ConnectionT_co]]:
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
        with (
            context.side_effect(operation, key=key) as begun,
            self.step(context, inbox_name(operation, key), begun) as effect,
        ):
            yield effect

    @contextmanager
    def step(
        self, context: Context[Any], operation: str, begun: SideEffect
    ) -> Iterator[Effect[ConnectionT_co]]:
        """As ``transaction``, for a part of a side effect that was ``begun`` already: it is judged
        by the receiver, under a name of its own in the inbox, and not kept with the attempt."""
        with alone(self, context, operation), self._step(context, operation, begun) as effect:
            yield effect

    @contextmanager
    def _step(
        self, context: Context[Any], operation: str, begun: SideEffect
    ) -> Iterator[Effect[ConnectionT_co]]:
        context.check_authority()
        unanswered: Exception | None = None
        with self._acquire() as link:
            began_at = time.monotonic()
            try:
                link.begin()
                already_done, limit_milliseconds, number = link.row(
                    self._driver.calls.begin, begin_arguments(context, operation, begun)
                )
            except self._driver.errors as error:
                failure = link.failure(error)
                self._abandon(link)
                raise of_statement(failure, context) from error
            try:
                yield Effect(link.connection, already_done)
                # A body that swallowed an error of a statement has an aborted transaction,
                # whose COMMIT would be answered as a silent rollback: this fails instead.
                (now,) = link.row(self._driver.calls.prove, prove_arguments(context, operation))
            except self._driver.errors as error:
                failure = link.failure(error)
                self._abandon(link)
                late = time.monotonic() >= began_at + limit_milliseconds / 1000
                if failure.says_over or (failure.lost and late):
                    raise over(context) from error
                if failure.sqlstate == OUT_OF_SCOPE:  # a trigger of the application's asked
                    raise out_of_scope(failure) from error
                if failure.lost:
                    raise lost_before_commit() from error
                raise
            except BaseException:
                self._abandon(link)
                raise
            if now != number:
                self._abandon(link)
                raise ended_early(operation)
            unanswered = self._commit(link, context)
        # Nothing was written where it had been done before, so nothing is unknown either.
        if unanswered is not None and not already_done:
            self._settle(context, operation, unanswered)

    def _commit(self, link: SyncLink[ConnectionT_co], context: Context[Any]) -> Exception | None:
        """Commit. Gives back the failure of a commit whose outcome is unknown."""
        try:
            link.commit()
        except self._driver.errors as error:
            failure = link.failure(error)
            if failure.says_over:
                raise over(context) from error
            if failure.sqlstate is not None and not failure.lost:
                raise  # the server answered and rolled back: a deferred constraint, for instance
            return error
        return None

    def _settle(self, context: Context[Any], operation: str, cause: Exception) -> None:
        """Learn the outcome of a commit that was not answered. Raises unless it happened."""
        errors: tuple[type[Exception], ...] = (GuardUnavailable, *self._driver.errors)
        retrying = Retrying(
            retry=retry_if_exception_type(errors),
            wait=wait_random_exponential(multiplier=0.1, max=1.0),
            stop=stop_after_delay(context.remaining_authority_seconds() + SETTLE_SECONDS),
            reraise=True,
        )
        try:
            written: bool = retrying(self._ask_whether_written, context, operation)
        except errors as error:
            raise unknown_commit(operation, said(error)) from cause
        if not written:
            raise lost_at_commit(operation) from cause

    def _ask_whether_written(self, context: Context[Any], operation: str) -> bool:
        with self._acquire() as link:
            try:
                link.begin()
                (written,) = link.row(
                    self._driver.calls.settle, settle_arguments(context, operation)
                )
                link.commit()
            except BaseException:
                self._abandon(link)
                raise
            return written is True

    @contextmanager
    def _acquire(self) -> Iterator[SyncLink[ConnectionT_co]]:
        acquiring = self._driver.acquire()
        try:
            link = acquiring.__enter__()
        except self._driver.errors as error:
            raise no_connection(self._driver.failure(error)) from error
        # What leaves the block is the guard's to judge, not the pool's: connections that are fit
        # for nothing have been let go of before.
        try:
            yield link
        finally:
            acquiring.__exit__(None, None, None)

    def _abandon(self, link: SyncLink[ConnectionT_co]) -> None:
        """Roll back, or let go of a connection that cannot."""
        try:
            link.roll_back()
        except self._driver.errors:
            link.terminate()
