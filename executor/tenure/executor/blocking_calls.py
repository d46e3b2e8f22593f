"""Calls that block, each in a thread of its own.

The event loop's own threads (``asyncio.to_thread``) are the handlers' too: they may have taken all
of them and never return. What the executor needs in order to start and to end waits for none.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(function: Callable[[], T]) -> T:
    """What ``function`` gives, or raises. A daemon thread: one that never returns keeps nothing."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return  # nobody waits any more
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type] # it is a T where nothing was raised

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001 - raised again in the waiting task
            error = raised
        with suppress(RuntimeError):  # the loop has ended without us
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="tenure-blocking-call", daemon=True).start()
    return await answer
