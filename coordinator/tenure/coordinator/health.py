"""Whether the process lives, and whether it can be used.

Alive judges the own event loop only: an answer is the proof. Restarting a process because its
database is away would turn one outage into two. Ready needs the servers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import structlog

from tenure.contract.errors import TenureError

log = structlog.get_logger()

REPEAT_SECONDS = 60.0


class Condition:
    """What one server is like: usable, or the error that says why not.

    Says so in the log at once when it changes, and once a minute while it lasts.
    """

    def __init__(self, name: str, error: TenureError) -> None:
        """Not usable to begin with, for the reason of ``error``."""
        self.name = name
        self.error: TenureError | None = error
        self._said: str | None = None
        self._said_at = 0.0

    def usable(self) -> None:
        """It answers as it should."""
        if self.error is not None:
            log.info(f"{self.name} is usable")
        self.error = None
        self._said = None

    def not_usable(self, error: TenureError) -> None:
        """It does not, for the reason of ``error``."""
        self.error = error
        now = monotonic()
        if error.code != self._said or now >= self._said_at + REPEAT_SECONDS:
            self._said, self._said_at = error.code, now
            log.warning(
                f"{self.name} is not usable, trying again",
                code=error.code,
                error=error.message,
                next_step=error.next_step or None,
            )

    def check(self) -> None:
        """Raises the error that keeps it from being used."""
        if self.error is not None:
            raise self.error


@dataclass(slots=True)
class Health:
    """All conditions together. ``stopping`` once the process takes nothing new."""

    conditions: Sequence[Condition]
    stopping: bool = False

    @property
    def ready(self) -> bool:
        """Whether requests can be served and messages will flow."""
        return not self.stopping and all(entry.error is None for entry in self.conditions)

    def lines(self) -> str:
        """One plain line for each condition."""
        lines = ["process: stopping" if self.stopping else "process: ok"]
        for entry in self.conditions:
            if entry.error is None:
                lines.append(f"{entry.name}: ok")
            else:
                lines.append(f"{entry.name}: {entry.error.code} {entry.error}")
        return "\n".join(lines) + "\n"
