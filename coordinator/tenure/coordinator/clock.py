"""Notices when the database's clock is set: it moves otherwise than this process's steady one.

Nothing depends on it. For a task time never runs back, by the commit; here it is counted and said,
because leases last longer while a clock stands still for them, and end early when it leaps.
"""

from dataclasses import dataclass
from typing import Final

SLACK_MICROSECONDS: Final = 50_000
"""Clocks are slewed a little all the time; a step is more than that."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The database's clock, read between two instants of a steady clock. Microseconds."""

    sent: int
    clock: int
    received: int


class ClockWatch:
    """Compares each reading with the one before."""

    def __init__(self) -> None:
        self._before: Reading | None = None
        self.backward_steps = 0
        self.forward_steps = 0
        self.last_step_microseconds = 0

    def observe(self, reading: Reading) -> int:
        """By how many microseconds the clock was set since the last reading, at least: negative is
        backward, 0 when nothing shows."""
        before, self._before = self._before, reading
        if before is None:
            return 0
        moved = reading.clock - before.clock
        least, most = reading.sent - before.received, reading.received - before.sent
        if moved < least - SLACK_MICROSECONDS:
            step = moved - least
            self.backward_steps += 1
        elif moved > most + SLACK_MICROSECONDS:
            step = moved - most
            self.forward_steps += 1
        else:
            return 0
        self.last_step_microseconds = step
        return step
