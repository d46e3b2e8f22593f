"""The authority of an attempt as its process sees it: a few numbers in memory that both map.

The renewals' thread writes them and the handler's process reads them, so that neither a blocked
event loop nor a busy handler stands between a refusal and the one who has to hear of it. Instants
are microseconds on a clock that all processes of the machine share.
"""

import mmap
import os
import struct
import tempfile
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from tenure.contract.ids import AttemptId, FencingToken, TaskId
from tenure.executor.clock import NANOSECONDS_A_MICROSECOND, counts_suspend

_CELL: Final = struct.Struct("@qqqqq")
"""Deadline, the same again, end of the lease since 1970, whether it was ended, whether to stop."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def shared_now() -> int:
    """Microseconds on the clock that processes share."""
    clock = time.CLOCK_BOOTTIME if counts_suspend() else time.CLOCK_MONOTONIC
    return time.clock_gettime_ns(clock) // NANOSECONDS_A_MICROSECOND


class Cell:
    """Made by the executor, handed over as a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _CELL.size)
        self._stop = 0
        self._ended = 0

    @classmethod
    def new(cls) -> "Cell":
        """An anonymous one, in which nothing is permitted yet."""
        with tempfile.TemporaryFile() as file:
            file.write(bytes(_CELL.size))
            file.flush()
            return cls(os.dup(file.fileno()))

    def write(
        self, *, now: int, remaining_seconds: float, expires_at: datetime, ended: bool
    ) -> None:
        """The authority as it is. ``now`` is read before what remains: a pause of whoever writes
        between the two must not lengthen it (LEASE-09)."""
        deadline = now + int(remaining_seconds * 1_000_000)
        self._ended = int(ended or self._ended)
        end = (expires_at - _EPOCH) // _MICROSECOND
        self._put(0 if self._ended else deadline, end)

    def ask_to_stop(self) -> None:
        """The handler is to end."""
        self._stop = 1
        deadline, _, end, _, _ = _CELL.unpack_from(self._memory)
        self._put(deadline, end)

    def read(self) -> tuple[int, datetime, bool, bool]:
        """Deadline, end of the lease, whether it was ended, whether to stop. Of two copies that are
        not the same, one is being written: the earlier is the safe one."""
        first, second, end, ended, stop = _CELL.unpack_from(self._memory)
        return min(first, second), _EPOCH + end * _MICROSECOND, bool(ended), bool(stop)

    def close(self) -> None:
        """Give memory and descriptor back."""
        self._memory.close()
        os.close(self.descriptor)

    def _put(self, deadline: int, end: int) -> None:
        _CELL.pack_into(self._memory, 0, deadline, deadline, end, self._ended, self._stop)


class SharedLease:
    """What ``Lease`` is in the executor, read from the cell."""

    def __init__(
        self,
        cell: Cell,
        *,
        task_id: TaskId,
        attempt_id: AttemptId,
        fencing_token: FencingToken,
        tolerance_seconds: float,
    ) -> None:
        self.task_id = task_id
        self.attempt_id = attempt_id
        self.fencing_token = fencing_token
        self.tolerance_seconds = tolerance_seconds
        self._cell = cell

    @property
    def expires_at(self) -> datetime:
        """End of the lease on the authority's clock, as granted last."""
        return self._cell.read()[1]

    @property
    def ended(self) -> str | None:
        """Why the authority was ended before its time, if it was."""
        return "it was refused or given up" if self._cell.read()[2] else None

    def may_act(self) -> bool:
        """Whether a new step may begin now (LEASE-09)."""
        return self.remaining_seconds() > 0

    def remaining_seconds(self) -> float:
        """Seconds of authority left, less the tolerance; 0 when it is over."""
        deadline, _, ended, _ = self._cell.read()
        return 0.0 if ended else max(0, deadline - shared_now()) / 1_000_000
