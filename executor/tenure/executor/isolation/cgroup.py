"""A control group for one attempt, in a folder that was delegated to the executor (cgroup v2).

It counts the whole group of processes and ends all of it, also what left the process group. Without
such a folder the limits of single processes remain.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from tenure.contract.reports import Resources

_PERIOD_MICROSECONDS: Final = 100_000
MAX_PROCESSES: Final = 512


class Cgroup:
    """Made before the start, joined by the process itself, removed after the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, parent: Path, name: str, resources: Resources) -> "Cgroup":
        """One that holds its processes to the reservation. Raises OSError."""
        made = cls(parent / name)
        made.folder.mkdir()
        try:
            made._set("pids.max", str(MAX_PROCESSES))
            if resources.memory_bytes:
                made._set("memory.max", str(resources.memory_bytes))
                with suppress(OSError):  # where nothing is swapped there is no such file
                    made._set("memory.swap.max", "0")
            if resources.cpu_millis:
                quota = resources.cpu_millis * _PERIOD_MICROSECONDS // 1000
                made._set("cpu.max", f"{max(1000, quota)} {_PERIOD_MICROSECONDS}")
        except OSError:
            made.remove()
            raise
        return made

    def kill(self) -> None:
        """End every process in it."""
        with suppress(OSError):
            self._set("cgroup.kill", "1")

    def remove(self) -> None:
        """Once nothing is in it any more; else it stays for whoever owns the folder above."""
        with suppress(OSError):
            self.folder.rmdir()

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended one of its processes for its memory."""
        with suppress(OSError, ValueError):
            lines = (self.folder / "memory.events").read_text().splitlines()
            return any(int(line.split()[1]) > 0 for line in lines if line.startswith("oom_kill "))
        return False

    def _set(self, name: str, value: str) -> None:
        (self.folder / name).write_text(value)
