"""One process of Tenure as a child: started in a session of its own, drained, ended for certain."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import httpx2

from tenure.cli.local import processes
from tenure.cli.local.errors import LocalProcessFailedError, LocalProcessNotReadyError

LOG_LIMIT_BYTES = 10 * 1024 * 1024
HURRIED_SECONDS = 10.0
_PROBE_SECONDS = 0.1


@dataclass(frozen=True)
class ProgramSpec:
    """How to start a process, and how to see that it serves.

    ``ready_url`` answers 200 once it does. ``drain_seconds`` is what it may take to end after
    SIGTERM. All of its output goes to ``log``.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    log: Path
    ready_url: str
    drain_seconds: float

    @property
    def metrics_url(self) -> str:
        """Where it tells its metrics, beside ``ready_url``."""
        return urljoin(self.ready_url, "/metrics")


class Program:
    """A child process. It gets SIGKILL when this process ends without ending it first: nothing
    here depends on a clean end."""

    def __init__(self, spec: ProgramSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begins = 0

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> str:
        """How it ended, for people."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "is running" if self.running else "was not started"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with status {code}"

    @property
    def pid(self) -> int | None:
        """Its pid while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    async def start(self) -> None:
        """Start the process, unless it runs. It need not serve yet when this returns."""
        if self.running:
            return
        self._log_begins = _turn_over(self.spec.log)
        self._process = processes.spawn(
            [*processes.ended_with_parent(signal.SIGKILL), *self.spec.command],
            log=self.spec.log,
            environment=self.spec.environment,
            directory=self.spec.directory,
        )

    async def ready(self, *, within_seconds: float) -> None:
        """Wait until it serves.

        Raises LocalProcessFailedError when it ends instead, LocalProcessNotReadyError after
        that time.
        """
        last = "nothing listens yet"
        async with httpx2.AsyncClient(trust_env=False, timeout=5.0) as probe:
            for _ in range(max(1, round(within_seconds / _PROBE_SECONDS))):
                if not self.running:
                    raise LocalProcessFailedError(
                        f"{self.name} {self.status} while starting; the end of its log is above.\n"
                        f"{processes.tail(self.spec.log, since=self._log_begins)}",
                        advice=f"Mend what it names, then start again ({self.spec.log}).",
                    )
                try:
                    answer = await probe.get(self.spec.ready_url)
                except httpx2.TransportError:
                    pass  # not listening yet
                else:
                    if answer.is_success:
                        return
                    last = answer.text.strip()[:500]
                await asyncio.sleep(_PROBE_SECONDS)
        raise LocalProcessNotReadyError(
            f"{self.name} is not ready after {within_seconds:g} seconds ({last}).",
            advice=f"Look into {self.spec.log}.",
        )

    async def stop(self, hurry: asyncio.Event) -> None:
        """Drain it with SIGTERM, then end its whole session.

        Once ``hurry`` is set it gets a second SIGTERM and a few seconds.
        """
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            processes.send(process.pid, signal.SIGTERM)
            if not await _ended_or(process, hurry, self.spec.drain_seconds):
                processes.send(process.pid, signal.SIGTERM)
                await processes.ended(process, within_seconds=HURRIED_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it and everything it started in its session, at once."""
        if self._process is None:
            return
        # The session outlives its leader where a handler left a process of its own behind.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


async def _ended_or(
    process: subprocess.Popen[bytes], hurry: asyncio.Event, within_seconds: float
) -> bool:
    """Wait until the process has ended; False when ``hurry`` or the time came first."""
    waiting = asyncio.create_task(processes.ended(process, within_seconds=within_seconds))
    hurrying = asyncio.create_task(hurry.wait())
    try:
        await asyncio.wait({waiting, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        return process.poll() is not None
    finally:
        waiting.cancel()
        hurrying.cancel()


def _turn_over(log: Path) -> int:
    """Put a log aside that has become large; one older one is kept. Returns where it goes on."""
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return 0  # the first start
    if size <= LOG_LIMIT_BYTES:
        return size
    log.replace(log.with_name(log.name + ".1"))
    return 0
