"""What handlers share, opened and closed by the application's lifespan around a process's work.

Neither may keep a process that is asked to end: a database that is waited for at the start, or a
pool that waits at the end for what a handler never gives back.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar

import structlog

from tenure.contract.errors import TenureError
from tenure.executor.errors import LifespanFailed
from tenure.executor.stopping import Stopping

T = TypeVar("T")
CLOSING_SECONDS: Final = 5.0

log = structlog.get_logger("tenure.executor")


class NotOpened(Exception):
    """The process was asked to end before everything was open."""


@asynccontextmanager
async def opened(
    lifespan: AbstractAsyncContextManager[Any], stopping: Stopping, *, whose: str
) -> AsyncIterator[Any]:
    """What the lifespan yields; ``whose`` it is, in words. Enters and leaves it in the calling
    task.

    Raises LifespanFailed when it does not come to that, and NotOpened.
    """
    try:
        resources = await _unless_asked(lifespan.__aenter__(), stopping)
    except (TenureError, NotOpened):
        raise
    except Exception as error:
        raise LifespanFailed(
            f"the lifespan of {whose} failed: {type(error).__name__}: {error}"
        ) from error
    try:
        yield resources
    except BaseException as error:
        if not await _closed(lifespan, error):
            raise
    else:
        await _closed(lifespan, None)


async def _unless_asked(entering: Awaitable[T], stopping: Stopping) -> T:
    task = asyncio.current_task()
    assert task is not None
    asked = False

    async def cancel_when_asked() -> None:
        nonlocal asked
        await stopping.wait()
        asked = True
        task.cancel()

    watching = asyncio.create_task(cancel_when_asked())
    try:
        return await entering
    except asyncio.CancelledError:
        if asked and task.cancelling() == 1:
            raise NotOpened from None
        raise
    finally:
        watching.cancel()
        if asked:
            task.uncancel()


async def _closed(lifespan: AbstractAsyncContextManager[Any], error: BaseException | None) -> bool:
    """Whether the lifespan has taken the error for its own."""
    limit = asyncio.timeout(CLOSING_SECONDS)
    kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
    try:
        async with limit:
            return bool(await lifespan.__aexit__(kind, error, traceback))
    except TimeoutError:
        if not limit.expired():
            raise  # the lifespan's own
        log.warning("the lifespan was not left in time", closing_seconds=CLOSING_SECONDS)
        return False
