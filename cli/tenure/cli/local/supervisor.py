"""Keeps servers and programs running until it is told to end them, in order."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from tenure.contract.errors import TenureError

LOOK_SECONDS = 0.2
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 15.0
STEADY_SECONDS = 60.0
"""After so long a life the next death is a new story: the pause before a restart begins anew."""


class Kept(Protocol):
    """What can be kept running. ``start`` may be called again after a death."""

    @property
    def running(self) -> bool: ...

    async def start(self) -> None: ...


class Supervisor:
    """Watches what was given to ``keep`` and starts it again, with growing jittered pauses.

    ``say(name, words)`` tells people what happened. ``deaths``: how often each has ended.
    """

    def __init__(
        self,
        say: Callable[[str, str], None],
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self.deaths: Counter[str] = Counter()
        self._longest_pause_seconds = longest_pause_seconds
        self._say = say
        self._watchers: dict[str, asyncio.Task[None]] = {}

    def keep(self, name: str, kept: Kept, describe: Callable[[], str] = lambda: "ended") -> None:
        """Watch something that runs. ``describe`` says how it ended."""
        self._watchers[name] = asyncio.create_task(
            self._watch(name, kept, describe), name=f"keep {name}"
        )

    async def let_go(self, name: str) -> None:
        """Stop watching, so that it can be ended. Unknown names are no error."""
        watcher = self._watchers.pop(name, None)
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _watch(self, name: str, kept: Kept, describe: Callable[[], str]) -> None:
        born = time.monotonic()
        deaths = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if kept.running:
                continue
            deaths = 1 if time.monotonic() - born >= STEADY_SECONDS else deaths + 1
            self.deaths[name] += 1
            pause = min(self._longest_pause_seconds, pause_before_restart(deaths, random.random()))
            self._say(name, f"{describe()}; starting it again in {pause:.1f} s")
            await asyncio.sleep(pause)
            try:
                await kept.start()
            except TenureError as error:
                self._say(name, f"{error.code}: {error}")
            born = time.monotonic()


def pause_before_restart(deaths: int, chance: float) -> float:
    """Seconds before the restart after the nth death in a row; ``chance`` (0 … 1) is the jitter."""
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(deaths - 1, 16))
    return longest * (0.5 + chance / 2)
