"""Processes that are killed and started again, again and again."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tenure.cli.local import processes
from tests.support.repository import REPOSITORY
from tests.support.waiting import eventually

COORDINATOR = ("-m", "tests.support.armed", "coordinator", "")
RELAY = ("-m", "tests.support.armed", "relay", "")
EXECUTOR = ("-m", "tests.trials.program")


@dataclass(eq=False)
class Program:
    """A program that always runs, but for the moments after a kill. ``surprises``: ends that
    nobody brought about."""

    name: str
    words: Sequence[str]
    settings: Mapping[str, str]
    log: Path
    kills: int = 0
    suspended: bool = False
    started_at: float = 0.0
    surprises: list[str] = field(default_factory=list)
    _process: asyncio.subprocess.Process | None = None
    _killed: asyncio.subprocess.Process | None = None
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def runs(self) -> bool:
        """It was started, and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """Of the process that was started last; None before."""
        return None if self._process is None else self._process.pid

    async def keep(self) -> None:
        """Start it, and start it again whenever it has ended, until it is to stop."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        while not self._over.is_set():
            self.started_at = asyncio.get_running_loop().time()
            with self.log.open("ab") as log:
                self._process = process = await asyncio.create_subprocess_exec(
                    *processes.ended_with_parent(signal.SIGKILL),
                    sys.executable,
                    *self.words,
                    cwd=REPOSITORY,
                    env={**kept, "TENURE_LOG_FORMAT": "json", **self.settings},
                    stdout=log,
                    stderr=log,
                )
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
            if process is not self._killed and not self._over.is_set():
                self.surprises.append(f"{self.name} ended by itself with {status}: {self.log}")

    def kill(self) -> None:
        """SIGKILL, whatever it is doing; ``keep`` starts it again."""
        assert self._process is not None
        self._killed = self._process
        self._process.kill()
        self.kills += 1

    def end_by(self, number: signal.Signals) -> None:
        """Send a signal that ends it, perhaps not at once."""
        assert self._process is not None
        self._killed = self._process
        self._process.send_signal(number)

    async def suspend(self) -> None:
        """SIGSTOP; returns once it stands still, or has ended meanwhile."""
        process = self._process
        assert process is not None
        self.suspended = True
        process.send_signal(signal.SIGSTOP)
        await eventually(
            lambda: process.returncode is not None or processes.is_stopped(process.pid)
        )

    def resume(self) -> None:
        """SIGCONT."""
        self.suspended = False
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)

    async def stop(self, seconds: float = 30) -> None:
        """SIGTERM, and its end."""
        self._over.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(seconds):
                status = await process.wait()
        except TimeoutError:
            process.kill()
            self.surprises.append(f"{self.name} did not end within {seconds:.0f} s")
        else:
            # One that was started a moment ago does not listen to signals yet.
            if status not in (0, -signal.SIGTERM):
                self.surprises.append(f"{self.name} ended with {status} when asked to")


def logged_errors(programs: Sequence[Program]) -> list[str]:
    """What the processes themselves call an error, or did not catch."""
    found: list[str] = []
    for program in programs:
        for line in program.log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                found.append(f"{program.name} said: {line[:200]}")
                continue
            if entry.get("level") in ("error", "critical"):
                found.append(f"{program.name} logged: {line[:500]}")
    return found[:20]
