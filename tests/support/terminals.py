"""Terminals as a reader of the documentation has them: bash, some folder, and what was exported."""

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tenure.cli.local import processes

_STATE = "folder-and-environment"


def fresh_environment(home: Path) -> dict[str, str]:
    """What a new terminal of somebody has who never heard of Tenure."""
    ours = Path(sys.prefix, "bin")
    path = [
        entry for entry in os.environ["PATH"].split(os.pathsep) if entry and Path(entry) != ours
    ]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TENURE_", "PYTEST", "PYTHON", "VIRTUAL_ENV", "COV"))
    }
    return kept | {
        "PATH": os.pathsep.join(path),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "COLUMNS": "100",
        "PS1": "$ ",
    }


class CommandFailed(AssertionError):
    """A command ended with another status than 0; says what it printed."""


class Running:
    """A command that the reader leaves running."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._news = asyncio.Event()
        self.output = ""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.output += line.decode()
            self._news.set()
        self._news.set()

    async def prints(self, expected: re.Pattern[str]) -> None:
        """Return once the output holds it. Raises CommandFailed when the command ends first."""
        while expected.search(self.output) is None:
            if self._reading.done():
                raise CommandFailed(f"it ended without printing {expected.pattern}:\n{self.output}")
            self._news.clear()
            await self._news.wait()

    async def interrupt(self) -> int:
        """Ctrl-C; its exit status."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)
        code = await self._process.wait()
        await self._reading
        return code

    async def kill(self) -> None:
        """End it in any case."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


class Terminal:
    """Commands typed into one terminal: each finds the folder and exports of the last one."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = dict(environment)

    async def run(self, commands: str) -> str:
        """Run commands until the first that fails; what they printed.

        Raises CommandFailed.
        """
        state = Path(self.environment["HOME"]) / _STATE
        script = f"trap {shlex.quote(f'{{ pwd; env -0; }} > {shlex.quote(str(state))}')} EXIT\n"
        process = await self._start(f"{script}set -e -o pipefail\n{commands}")
        output = (await process.communicate())[0].decode()
        if process.returncode != 0:
            raise CommandFailed(f"exit status {process.returncode}:\n{commands}\n{output}")
        folder, _, variables = state.read_text(encoding="utf-8").partition("\n")
        self.folder = Path(folder)
        self.environment = dict(
            entry.split("=", 1) for entry in variables.split("\0") if "=" in entry
        )
        return output

    async def leave_running(self, commands: str) -> Running:
        """Run commands of which the last does not end by itself."""
        *first, last = commands.strip().splitlines()
        return Running(await self._start("\n".join(["set -e", *first, f"exec {last}"])))

    async def _start(self, script: str) -> asyncio.subprocess.Process:
        # Ends with the tests, also when those are killed.
        guard = processes.ended_with_parent(signal.SIGTERM)
        return await asyncio.create_subprocess_exec(
            *(*guard, "bash", "--norc", "-c", script),
            cwd=self.folder,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
