"""A control group for one attempt, in a folder that was delegated to the executor (cgroup v2).

It counts the whole group of processes and ends all of it, also what left the process group. Without
such a folder the limits of single processes remain. What the kernel does not offer in that folder
is not made up: each limit that could not be set is told, with the reason.
"""

import errno
import fcntl
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tenure.contract.reports import Resources

_PERIOD_MICROSECONDS: Final = 100_000
_LOOK_SECONDS: Final = 0.01
_LEFT_SECONDS: Final = 2.0
MAX_PROCESSES: Final = 512


class Cgroup:
    """Made before the start, joined by the process itself, removed after the end.
    ``not_enforced``: what it could not limit, and why. As long as the executor lives that made it
    its folder is locked; a lock ends with its holder, however that ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.not_enforced: list[str] = []
        self._lock: int | None = None

    @classmethod
    def make(
        cls,
        parent: Path,
        name: str,
        resources: Resources,
        *,
        create: Callable[[Path], None] = Path.mkdir,
    ) -> "Cgroup":
        """One that holds its processes to the reservation. ``create`` makes a group, for tests on a
        stand-in. Raises OSError when there is none to be had, or the folder is of another kind."""
        made = cls(parent / name)
        create(made.folder)
        try:
            made._take()
            if not (made.folder / "cgroup.procs").exists():
                raise OSError(errno.ENOTSUP, "the folder is no control group of version 2")
            quota = resources.cpu_millis * _PERIOD_MICROSECONDS // 1000
            made._limit("pids", "pids.max", str(MAX_PROCESSES))
            if resources.memory_bytes:
                made._limit("memory", "memory.max", str(resources.memory_bytes))
                for beside, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                    with suppress(OSError):  # where nothing is swapped there is no such file
                        made._set(beside, value)
            if resources.cpu_millis:
                made._limit("cpu", "cpu.max", f"{max(1000, quota)} {_PERIOD_MICROSECONDS}")
        except OSError:
            made.remove()
            raise
        return made

    @classmethod
    def clear(cls, parent: Path) -> int:
        """End and remove what executors left that were killed: groups by the name of an attempt
        that nobody holds. How many there were. Raises OSError where the folder cannot be read."""
        left = 0
        for folder in parent.iterdir():
            group = cls(folder)
            if not _is_of_an_attempt(folder):
                continue
            try:
                group._take()
            except OSError:
                continue  # its executor lives, or it is gone by now
            group.kill()
            group.wait_until_empty(_LEFT_SECONDS)
            group.remove()
            left += 1
        return left

    def kill(self) -> None:
        """End every process in it."""
        with suppress(OSError):
            self._set("cgroup.kill", "1")

    def wait_until_empty(self, seconds: float) -> None:
        """Until every process of it has ended, which takes a moment after the kill; at most so
        long."""
        until = time.monotonic() + seconds
        with suppress(OSError):
            while "populated 1" in (self.folder / "cgroup.events").read_text():
                if time.monotonic() >= until:
                    return
                time.sleep(_LOOK_SECONDS)

    def remove(self) -> None:
        """Once nothing is in it any more; else it stays for ``clear``."""
        with suppress(OSError):
            self.folder.rmdir()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended one of its processes for its memory."""
        with suppress(OSError, ValueError):
            lines = (self.folder / "memory.events").read_text().splitlines()
            return any(int(line.split()[1]) > 0 for line in lines if line.startswith("oom_kill "))
        return False

    def _take(self) -> None:
        """Raises OSError when another process has it."""
        lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        self._lock = lock

    def _limit(self, controller: str, name: str, value: str) -> None:
        """Set it; the controller is passed on to the groups of this folder where it is not yet."""
        try:
            if not (self.folder / name).exists():
                _write(self.folder.parent / "cgroup.subtree_control", f"+{controller}")
            self._set(name, value)
        except FileNotFoundError:
            why = "its controller is not delegated to the folder"
            self.not_enforced.append(f"cgroup {controller}: {why}")
        except OSError as error:
            self.not_enforced.append(f"cgroup {controller}: {error.strerror}")

    def _set(self, name: str, value: str) -> None:
        _write(self.folder / name, value)


def _is_of_an_attempt(folder: Path) -> bool:
    try:
        return folder.is_dir() and str(uuid.UUID(folder.name)) == folder.name
    except ValueError:
        return False


def _write(path: Path, value: str) -> None:
    """Into a file of the kernel's: one that is not there is not made."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
