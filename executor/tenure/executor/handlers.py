"""Calling user code: coroutines on the event loop, plain functions in a thread each.

What runs in a process of its own is called by ``isolation.sandbox``.
"""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from tenure.contract.codes import Reason
from tenure.executor.context import Context
from tenure.executor.declare import HandlerDeclaration
from tenure.executor.errors import RunEnded


async def call(declaration: HandlerDeclaration, input: object, context: Context[Any]) -> object:
    """Run the handler and give back what it returns. Raises what it raises.

    A cancelled coroutine ends at its next await. A thread cannot be ended: it is told by
    ``context.cancelled`` and waited for, however long it takes. Raises RunEnded for a coroutine
    that was cancelled at its time limit.
    """
    try:
        if declaration.is_async:
            return await _limited(declaration, declaration.handler(input, context))
        return await _in_thread(lambda: declaration.handler(input, context))
    except SystemExit as error:
        raise RuntimeError(f"the handler called sys.exit({error.code!r})") from error
    except KeyboardInterrupt as error:  # not ours: signals do not arrive as exceptions here
        raise RuntimeError("the handler raised KeyboardInterrupt") from error


def within_handler(found: TracebackType | None) -> TracebackType | None:
    """The part of an error's traceback that is the handler's own: what is above it is this file."""
    while found is not None and found.tb_frame.f_code.co_filename == __file__:
        found = found.tb_next
    return found


async def _limited(declaration: HandlerDeclaration, coroutine: Awaitable[object]) -> object:
    limit = asyncio.timeout(declaration.time_limit_seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError as error:
        if not limit.expired():
            raise  # the handler's own
        message = f"it ran longer than {declaration.time_limit_seconds:g} s"
        raise RunEnded(Reason.TIME_LIMIT, message) from error


async def _in_thread(function: Callable[[], object]) -> object:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    outcome: list[tuple[object, BaseException | None]] = []
    variables = contextvars.copy_context()

    def tell() -> None:
        if not ended.done():
            ended.set_result(None)

    def run() -> None:
        try:
            outcome.append((variables.run(function), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting task
            outcome.append((None, error))
        with suppress(RuntimeError):  # the loop has ended without us
            loop.call_soon_threadsafe(tell)

    # A daemon: a function that never returns must not keep a drained process from ending.
    threading.Thread(target=run, name="tenure-handler", daemon=True).start()
    while not ended.done():
        with suppress(asyncio.CancelledError):  # ``context.cancelled`` has told the thread
            await asyncio.shield(ended)
    value, error = outcome[0]
    if error is not None:
        raise error
    return value
