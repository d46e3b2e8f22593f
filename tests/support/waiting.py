"""Waiting for a condition that no event tells: another process's or a server's state."""

import asyncio
from collections.abc import Awaitable, Callable

Condition = Callable[[], bool] | Callable[[], Awaitable[bool]]


async def eventually(condition: Condition) -> None:
    """Return once ``condition()`` is true. The test's own timeout ends a wait in vain."""
    while not await _holds(condition):  # noqa: ASYNC110 - others' state: no event tells
        await asyncio.sleep(0.01)


async def _holds(condition: Condition) -> bool:
    answer = condition()
    return answer if isinstance(answer, bool) else await answer
