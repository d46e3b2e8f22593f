"""What a handler leaves behind, the same for everybody: one append of 16 bytes a task.

Two integers in nanoseconds of the machine's monotonic clock, which its processes share: when the
task was sent, and when the handler had it.
"""

import os
import struct
import time
from pathlib import Path
from typing import Final

FILE_VARIABLE: Final = "BENCH_FILE"
_RECORD: Final = struct.Struct("=qq")


class Writer:
    """Appends to the file that ``BENCH_FILE`` names."""

    def __init__(self) -> None:
        self._file = os.open(os.environ[FILE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, sent: int) -> None:
        """The task that was sent at ``sent`` is here."""
        os.write(self._file, _RECORD.pack(sent, time.monotonic_ns()))


class Reader:
    """Reads what came since it was made."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._path = path
        self._start = path.stat().st_size

    def count(self) -> int:
        """How many tasks came."""
        return (self._path.stat().st_size - self._start) // _RECORD.size

    def records(self) -> list[tuple[int, int]]:
        """(sent, handled) of each."""
        return list(_RECORD.iter_unpack(self._path.read_bytes()[self._start :]))
