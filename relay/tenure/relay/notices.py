"""Says that something is wrong once, again each minute while it lasts, and when it is over."""

import time
from typing import Final

import structlog

from tenure.contract.errors import TenureError

_AGAIN_SECONDS: Final = 60.0


class Notices:
    """Notices about one dependency; ``what`` names it in the log."""

    def __init__(self, what: str) -> None:
        self._log = structlog.get_logger("tenure.relay")
        self._what = what
        self._since: float | None = None
        self._said = 0.0
        self.error: TenureError | None = None

    def trouble(self, error: TenureError) -> None:
        """It does not work, or still does not."""
        now = time.monotonic()
        another = self.error is None or self.error.code != error.code
        self.error = error
        if self._since is None:
            self._since = now
        elif not another and now - self._said < _AGAIN_SECONDS:
            return
        self._said = now
        self._log.warning(
            f"{self._what}_unavailable",
            code=str(error.code),
            detail=error.message,
            next_step=error.next_step or None,
            for_seconds=round(now - self._since),
        )

    def well(self) -> None:
        """It works."""
        if self._since is not None:
            seconds = round(time.monotonic() - self._since)
            self._log.info(f"{self._what}_available_again", after_seconds=seconds)
            self._since = None
        self.error = None
