"""Signals as events: the first asks to drain, the second to hurry. Nothing is raised anywhere."""

import asyncio
import signal
from types import TracebackType
from typing import Self

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While this context is entered, Ctrl-C, SIGTERM and a closed terminal set events.

    ``first``: end in order. ``second``: end soon.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for which in _ASKING:
            loop.add_signal_handler(which, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for which in _ASKING:
            loop.remove_signal_handler(which)

    def _note(self) -> None:
        if self.first.is_set():
            self.second.set()
        self.first.set()


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event. False when it was not set in that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
