"""The servers of a test run: a local stack without executors, started when a test first asks.

It lives in a thread with an event loop of its own, since every test may have another loop.
"""

import asyncio
import shutil
import sys
import tempfile
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from tenure.cli.drills.struck_relay import ARM
from tenure.cli.local.programs import Program
from tenure.cli.local.stack import Connection, Stack
from tenure.cli.testing.terms import LEASE_SECONDS, terms

SETTINGS: Final = {
    f"TENURE_{name.upper()}": f"{seconds:g}" for name, seconds in terms(LEASE_SECONDS).items()
}
"""Of a fleet that asks for nothing else."""

ResultT = TypeVar("ResultT")


class StruckStack(Stack):
    """A stack whose relay can be told to be killed."""

    def arm_relay(self) -> None:
        """Kill it when the broker has confirmed something next."""
        (self.directory / ARM).touch()

    def _relay(self) -> Program:
        spec = super()._relay().spec
        command = (sys.executable, "-m", "tenure.cli.drills.struck_relay", str(self.directory))
        return Program(replace(spec, command=command))


class Servers:
    """``await started()`` as often as you like; ``stop`` once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stack: StruckStack | None = None

    @property
    def stack(self) -> StruckStack:
        """The started stack."""
        assert self._stack is not None
        return self._stack

    async def started(self) -> Connection:
        """Where they are. Raises TenureError when they cannot be started."""
        await asyncio.to_thread(self._start)
        return self.stack.connection()

    async def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run it in the servers' loop."""
        return await asyncio.wrap_future(self._submitted(coroutine))

    def stop(self) -> None:
        """End them. Does nothing where none were started."""
        with self._lock:
            if self._stack is not None:
                self._end(self._stack)
            self._stack = None

    def _start(self) -> None:
        with self._lock:
            if self._stack is not None:
                return
            self._loop = asyncio.new_event_loop()
            # Not joined at the interpreter's end: its children end with this process.
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="tenure-servers", daemon=True
            )
            self._thread.start()
            stack = StruckStack(
                Path(tempfile.mkdtemp(prefix="tenure-kit-")),
                say=lambda name, words: None,
                coordinator_settings=SETTINGS,
            )
            try:
                self._submitted(stack.start()).result()
            except BaseException:
                self._end(stack)
                raise
            self._stack = stack

    def _end(self, stack: Stack) -> None:
        assert self._loop is not None
        assert self._thread is not None
        try:
            self._submitted(stack.stop()).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            shutil.rmtree(stack.directory, ignore_errors=True)

    def _submitted(self, coroutine: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
