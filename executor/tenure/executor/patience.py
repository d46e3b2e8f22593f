"""Trying again: how long to wait, and how often to say so.

Full jitter, a cap, and for ever: an executor whose servers are away keeps trying, says so at first
and then once a minute, and is not ready meanwhile.
"""

import random
import time
from typing import Final

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_random_exponential

from tenure.contract.errors import TenureError
from tenure.executor.errors import CoordinatorUnavailable

BASE_SECONDS: Final = 0.1
CAP_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 60.0


class Condition:
    """Whether one server can be used, for the log and for readiness.

    Safe to call from the renewals' thread too. ``name`` is a word for the log.
    """

    def __init__(self, name: str) -> None:
        self._log = structlog.get_logger("tenure.executor")
        self.name = name
        self.error: TenureError | None = TenureError("not tried yet.", code="starting")
        self._since: float | None = None
        self._said_at = 0.0
        self._said_code: str | None = None

    @property
    def usable(self) -> bool:
        """Whether it worked when it was used last."""
        return self.error is None

    @property
    def in_trouble(self) -> bool:
        """Whether it was tried and did not work."""
        return self.error is not None and self._since is not None

    def trouble(self, error: TenureError) -> None:
        """It does not work, or still does not."""
        self.error = error
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif self._said_code == error.code and now - self._said_at < _AGAIN_SECONDS:
            return
        self._said_at, self._said_code = now, error.code
        self._log.warning(
            f"{self.name} is not usable, trying again",
            code=str(error.code),
            error=error.message,
            next_step=error.next_step or None,
            for_seconds=round(now - self._since),
        )

    def well(self) -> None:
        """It works."""
        self.error = None
        if self._since is not None:
            seconds = round(time.monotonic() - self._since)
            self._log.info(f"{self.name} is usable again", after_seconds=seconds)
            self._since, self._said_code = None, None


def jitter_seconds(failures: int, *, cap_seconds: float = CAP_SECONDS) -> float:
    """A random wait after the given number of failures in a row."""
    return random.uniform(0, min(cap_seconds, BASE_SECONDS * 2 ** min(failures, 20)))


def retrying(
    condition: Condition,
    *errors: type[TenureError],
    cap_seconds: float = CAP_SECONDS,
) -> AsyncRetrying:
    """For ever, on these errors only; what the coordinator asks for in Retry-After is kept to."""
    exponential = wait_random_exponential(multiplier=BASE_SECONDS, max=cap_seconds)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.retry_after_seconds if isinstance(error, CoordinatorUnavailable) else None
        return exponential(state) + (asked or 0.0)

    def say(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, TenureError):
            condition.trouble(error)

    return AsyncRetrying(
        retry=retry_if_exception_type(errors), wait=wait, before_sleep=say, reraise=True
    )
