"""Ends processes whose attempt may act no longer, or whose time is up, from a thread of its own.

The event loop asks them to end as well. This thread does not wait for it: a loop that a handler has
blocked must not lengthen what another handler's process does (LEASE-09).
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

LOOK_SECONDS: Final = 0.1
"""How long a process may go on after its end: one look."""


@dataclass(slots=True, eq=False)
class Watched:
    """A group of processes. ``may_act``: None where its output is kept aside instead."""

    group: int
    may_act: Callable[[], bool] | None
    ends_at: float | None
    too_long: bool = False

    def overran(self) -> bool:
        """Whether it was ended for its time limit."""
        return self.too_long


class Deadlines:
    """One for the process. Its thread runs while something is watched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[Watched] = set()
        self._thread: threading.Thread | None = None

    def watch(
        self, group: int, *, may_act: Callable[[], bool] | None, seconds: float | None
    ) -> Watched:
        """Kill the group once it may act no longer, or after ``seconds``; until it is forgotten."""
        watched = Watched(group, may_act, None if seconds is None else time.monotonic() + seconds)
        with self._lock:
            self._watched.add(watched)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tenure-deadlines", daemon=True
                )
                self._thread.start()
        return watched

    def forget(self, watched: Watched) -> None:
        """It has ended."""
        with self._lock:
            self._watched.discard(watched)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                for watched in self._watched:
                    self._judge(watched)
            time.sleep(LOOK_SECONDS)

    def _judge(self, watched: Watched) -> None:
        if watched.ends_at is not None and time.monotonic() >= watched.ends_at:
            watched.too_long = True
        if watched.too_long or (watched.may_act is not None and not watched.may_act()):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(watched.group, signal.SIGKILL)
