"""Signals as events: the first asks to drain, the second to hurry. Nothing is raised anywhere."""

import asyncio
import signal
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

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

    async def unless_first(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run something until it is done, or cancel it at the first signal. True when it is done.

        Raises what the work raises.
        """
        working = asyncio.create_task(work)
        asked = asyncio.create_task(self.first.wait())
        try:
            await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            if not working.done():
                working.cancel()
            await asyncio.gather(working, asked, return_exceptions=True)
        if working.cancelled():
            return False
        working.result()
        return True

    def _note(self) -> None:
        if self.first.is_set():
            self.second.set()
        self.first.set()
