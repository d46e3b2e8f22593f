"""The live authority of one attempt: handler, watchdog and the renewals' thread share it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from tenure.contract.ids import AttemptId, FencingToken, TaskId
from tenure.executor.clock import Clock
from tenure.executor.core import authority as rules

MICROSECONDS = 1_000_000


class Lease:
    """One attempt's authority. Safe for threads: a refusal ends it at once, also while the event
    loop is blocked."""

    def __init__(
        self,
        *,
        task_id: TaskId,
        attempt_id: AttemptId,
        fencing_token: FencingToken,
        clock: Clock,
        tolerance_seconds: float,
        renewal_interval_seconds: float,
        sent_at: int,
        remaining_seconds: float,
        expires_at: datetime,
    ) -> None:
        """Tolerance and interval are those of the policy that the lease was granted under, which no
        later one changes (LEASE-08)."""
        self.task_id = task_id
        self.attempt_id = attempt_id
        self.fencing_token = fencing_token
        self.tolerance_seconds = tolerance_seconds
        self.renewal_interval_seconds = renewal_interval_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._expires_at = expires_at
        self._followers: list[Callable[[Lease], None]] = []
        self._authority = rules.granted(
            sent_at=sent_at,
            remaining=_microseconds(remaining_seconds),
            tolerance=_microseconds(self.tolerance_seconds),
        )

    @property
    def expires_at(self) -> datetime:
        """End of the lease on the authority's clock, as granted last; for receivers only."""
        return self._expires_at

    @property
    def ended(self) -> str | None:
        """Why the authority was ended before its time, if it was."""
        return self._authority.ended

    def renew(self, *, sent_at: int, remaining_seconds: float, expires_at: datetime) -> None:
        """A renewal was granted to a request sent at ``sent_at``."""
        with self._lock:
            self._authority = rules.renewed(
                self._authority,
                sent_at=sent_at,
                remaining=_microseconds(remaining_seconds),
                tolerance=_microseconds(self.tolerance_seconds),
            )
            self._expires_at = max(self._expires_at, expires_at)
            self._tell()

    def end(self, why: str) -> None:
        """The authority is gone: refused, or given up."""
        with self._lock:
            self._authority = rules.ended(self._authority, why)
            self._tell()

    @contextmanager
    def followed(self, follower: Callable[["Lease"], None]) -> Iterator[None]:
        """Within the block ``follower`` is called with every change, in the thread that makes it
        and before anybody else learns of it; and once at the begin."""
        with self._lock:
            self._followers.append(follower)
            follower(self)
        try:
            yield
        finally:
            with self._lock:
                self._followers.remove(follower)

    def may_act(self) -> bool:
        """Whether a new step may begin now (LEASE-09)."""
        return rules.may_act(self._authority, self._clock())

    def remaining_seconds(self) -> float:
        """Seconds of authority left by this clock, less the tolerance; 0 when it is over."""
        return rules.remaining(self._authority, self._clock()) / MICROSECONDS

    def _tell(self) -> None:
        for follower in self._followers:
            follower(self)


def _microseconds(seconds: float) -> int:
    return int(seconds * MICROSECONDS)
