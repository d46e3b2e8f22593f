"""The executor's clock: integer microseconds that never run back and count suspended time.

An authority that ran out while the machine slept must be over when it wakes (LEASE-09). Linux has a
clock that counts suspend; ``time.monotonic`` there does not.
"""

import time
from collections.abc import Callable
from typing import Final, TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Gives microseconds since some fixed instant."""

NANOSECONDS_A_MICROSECOND: Final = 1000


def _boot_time() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // NANOSECONDS_A_MICROSECOND


class ShorterOfTwo:
    """Where no clock counts suspend: whichever of the monotonic and the wall clock ran further.

    A wall clock that is set forward ends authority early, one that is set back changes nothing:
    both errors are on the safe side.
    """

    def __init__(
        self,
        monotonic: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._monotonic_origin, self._wall_origin = monotonic(), wall()
        self._latest = 0

    def __call__(self) -> int:
        """Microseconds since this clock was made."""
        elapsed = max(self._monotonic() - self._monotonic_origin, self._wall() - self._wall_origin)
        self._latest = max(self._latest, elapsed // 1000)
        return self._latest


def counts_suspend() -> bool:
    """Whether this platform has a clock that counts suspended time."""
    return hasattr(time, "CLOCK_BOOTTIME")


def system_clock() -> Clock:
    """The best clock of this platform."""
    return _boot_time if counts_suspend() else ShorterOfTwo()
