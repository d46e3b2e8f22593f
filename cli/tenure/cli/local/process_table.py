"""What this machine says about its processes: from /proc, or from `ps` where there is none (macOS).

Both give the same answers; /proc is read in microseconds and `ps` is started for each question.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Entry:
    """One process. ``name`` is that of its program, at most 15 characters of it on Linux;
    ``state`` is the letter that both /proc and `ps` use: Z for a zombie, T for a stopped one."""

    name: str
    state: str
    parent: int


class ProcessTable(Protocol):
    """The processes that this process can see."""

    def all(self) -> dict[int, Entry]:
        """Every process by its pid."""

    def entry(self, pid: int) -> Entry | None:
        """One process; None when it is gone."""

    def command_line(self, pid: int) -> list[str]:
        """The words of its command line; empty when it is gone. `ps` tells words with blanks in
        them as several."""

    def with_variable(self, name: str, value: str) -> list[int]:
        """Those that were started with this environment variable, as far as we may know. `ps`
        cannot tell a value from one that goes on after a blank."""


class ProcTable:
    """From Linux's /proc."""

    def all(self) -> dict[int, Entry]:
        pids = [int(one.name) for one in _PROC.iterdir() if one.name.isdigit()]
        return {pid: entry for pid in pids if (entry := self.entry(pid)) is not None}

    def entry(self, pid: int) -> Entry | None:
        try:
            text = (_PROC / str(pid) / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The name stands in brackets and may hold brackets and blanks itself.
        name, _, rest = text.partition("(")[2].rpartition(")")
        state, parent = rest.split()[:2]
        return Entry(name, state, int(parent))

    def command_line(self, pid: int) -> list[str]:
        try:
            raw = (_PROC / str(pid) / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return []
        return raw.decode(errors="replace").split("\0")

    def with_variable(self, name: str, value: str) -> list[int]:
        wanted = f"{name}={value}".encode()
        return [pid for pid in self.all() if wanted in self._environment(pid)]

    def _environment(self, pid: int) -> list[bytes]:
        try:
            return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return []  # gone, or somebody else's


class PsTable:
    """From the command `ps`, with what Linux and macOS have in common."""

    def all(self) -> dict[int, Entry]:
        return self._read("-A")

    def entry(self, pid: int) -> Entry | None:
        return self._read("-p", str(pid)).get(pid)

    def command_line(self, pid: int) -> list[str]:
        return _ps("-ww", "-o", "command=", "-p", str(pid)).split()

    def with_variable(self, name: str, value: str) -> list[int]:
        # The one difference: how to ask for the environment, which follows the command. One
        # question about all: a `ps` for each takes seconds where there are many processes.
        environment = "-E" if sys.platform == "darwin" else "e"
        found = []
        for line in _ps("-A", environment, "-ww", "-o", "pid=,command=").splitlines():
            pid, _, words = line.strip().partition(" ")
            if f" {name}={value} " in f" {words.strip()} ":
                found.append(int(pid))
        return found

    def _read(self, *which: str) -> dict[int, Entry]:
        found = {}
        for line in _ps(*which, "-o", "pid=,ppid=,stat=,ucomm=").splitlines():
            pid, parent, state, name = line.split(maxsplit=3)
            found[int(pid)] = Entry(name.strip(), state[0], int(parent))
        return found


def _ps(*arguments: str) -> str:
    """What `ps` prints: nothing for processes that are gone."""
    done = subprocess.run(["ps", *arguments], capture_output=True, check=False)
    return done.stdout.decode(errors="replace")


@functools.cache
def process_table() -> ProcessTable:
    """The table of this platform."""
    return ProcTable() if (_PROC / "self" / "stat").exists() else PsTable()
