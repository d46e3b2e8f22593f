"""A drain: asked for, and when it has to be over."""

import asyncio
from typing import Final

SHORT_DRAIN_SECONDS: Final = 3.0
"""What is left of a drain that was hurried."""


class Stopping:
    """Asked to drain, and when the drain has to be over."""

    def __init__(self, drain_seconds: float) -> None:
        self._drain_seconds = drain_seconds
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    def ask(self) -> None:
        """Drain; asked again: soon."""
        if self._asked.is_set():
            self._hurried.set()
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether the process is to end."""
        return self._asked.is_set()

    async def wait(self) -> None:
        """Until asked."""
        await self._asked.wait()

    async def limit(self) -> None:
        """Until the drain limit is reached, counted from now."""
        hurried = asyncio.create_task(self._hurried.wait())
        try:
            await asyncio.wait({hurried}, timeout=self._drain_seconds)
            if self._hurried.is_set():
                await asyncio.sleep(min(SHORT_DRAIN_SECONDS, self._drain_seconds))
        finally:
            hurried.cancel()
