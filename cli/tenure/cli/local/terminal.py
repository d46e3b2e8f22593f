"""What a stack says: its own words and the logs of its processes, each line with its origin."""

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import TextIO

FOLLOW_SECONDS = 0.15
_CHUNK_BYTES = 64 * 1024
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class LogFollower:
    """Prints what is appended to log files.

    Processes write into their files themselves: a terminal that stands still (Ctrl-S) can stop
    this printing, never a coordinator.
    """

    def __init__(self, stream: TextIO | None = None, *, width: int = 11) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._width = width
        self._colours = self._stream.isatty() and not os.environ.get("NO_COLOR")
        self._files: dict[str, _Followed] = {}
        self._task: asyncio.Task[None] | None = None

    def say(self, name: str, words: str) -> None:
        """Print words of our own under a name."""
        for line in words.splitlines() or [""]:
            self._print(name, line)

    def follow(self, name: str, log: Path) -> None:
        """Print what is appended to this file from now on."""
        self._files[name] = _Followed(log)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="follow logs")

    async def close(self) -> None:
        """Print what is there and end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._look()
        self._files.clear()

    async def _run(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(FOLLOW_SECONDS)

    def _look(self) -> None:
        for name, followed in self._files.items():
            for line in followed.new_lines():
                self._print(name, line)

    def _print(self, name: str, line: str) -> None:
        if self._colours:
            colour = _COLOURS[sum(name.encode()) % len(_COLOURS)]
            text = f"\x1b[{colour}m{name:<{self._width}}\x1b[0m | {line}\n"
        else:
            text = f"{name:<{self._width}} | {_ESCAPES.sub('', line)}\n"
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # the terminal is gone: the log files have it all


class _Followed:
    """Reads a file from its end on, also when another one takes its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        try:
            state = path.stat()
            self._identity, self._position = state.st_ino, state.st_size
        except FileNotFoundError:
            self._identity, self._position = 0, 0

    def new_lines(self) -> list[str]:
        """Complete lines since the last call."""
        try:
            with self._path.open("rb") as file:
                state = os.fstat(file.fileno())
                if state.st_ino != self._identity or state.st_size < self._position:
                    self._identity, self._position, self._rest = state.st_ino, 0, b""
                file.seek(self._position)
                read = file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            return []
        self._position += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        return [line.decode(errors="replace") for line in lines]
