"""Assignments, leases and clocks for tests of the executor's parts."""

import uuid
from datetime import UTC, datetime

from tenure.contract.ids import AttemptId, EventId, FencingToken, TaskId
from tenure.executor.clock import Clock, system_clock
from tenure.executor.core.intake import Assignment
from tenure.executor.lease import Lease

EXPIRES = datetime(2030, 1, 1, tzinfo=UTC)


class HandClock:
    """A clock that moves when told; microseconds."""

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(seconds * 1_000_000)


def new_id() -> str:
    """A random id as the contract writes it."""
    return str(uuid.uuid4())


def assignment(task_type: str = "echo", *, generation: int = 1) -> Assignment:
    """A complete assignment of a new task."""
    return Assignment(
        event_id=EventId(new_id()),
        task_id=TaskId(new_id()),
        attempt_id=AttemptId(new_id()),
        fencing_token=FencingToken(2**32 + generation),
        task_type=task_type,
        ordinal=generation,
    )


def lease(
    clock: Clock | None = None,
    *,
    remaining_seconds: float = 60.0,
    tolerance_seconds: float = 1.0,
    renewal_interval_seconds: float = 10.0,
) -> Lease:
    """A lease of a new attempt, granted now."""
    clock = clock or system_clock()
    given = assignment()
    return Lease(
        task_id=given.task_id,
        attempt_id=given.attempt_id,
        fencing_token=given.fencing_token,
        clock=clock,
        tolerance_seconds=tolerance_seconds,
        renewal_interval_seconds=renewal_interval_seconds,
        sent_at=clock(),
        remaining_seconds=remaining_seconds,
        expires_at=EXPIRES,
    )
