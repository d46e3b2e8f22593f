"""Attempts with authority, by this machine's clock: for guards whose receivers are no database. And
the end of a lease that a coordinator granted."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from tenure.contract.ids import AttemptId, FencingToken, TaskId, fencing_token
from tenure.contract.scope import UNLIMITED, Scope
from tenure.executor.clock import Clock, system_clock
from tenure.executor.context import Context
from tenure.executor.lease import Lease


async def end_lease(owner: asyncpg.Connection, attempt_id: str) -> None:
    """Let the lease of an attempt that the coordinator granted run out, as time would."""
    await owner.execute(
        "update tenure.attempts set expires_at = clock_timestamp() - interval '1 ms'"
        " where attempt_id = $1",
        attempt_id,
    )


def attempt(
    task: str | None = None,
    generation: int = 1,
    *,
    expires_in_seconds: float = 60.0,
    remaining_seconds: float = 60.0,
    tolerance_seconds: float = 0.2,
    ordinal: int | None = None,
    scope: Scope = UNLIMITED,
    input: dict[str, Any] | None = None,
    clock: Clock | None = None,
) -> Context[None]:
    """An attempt whose lease ends ``expires_in_seconds`` from now, and which believes by its own
    clock that it has ``remaining_seconds`` (a paused holder believes too long). ``clock``: one
    that the test moves."""
    clock = clock or system_clock()
    lease = Lease(
        task_id=TaskId(task or str(uuid.uuid4())),
        attempt_id=AttemptId(str(uuid.uuid4())),
        fencing_token=FencingToken(fencing_token(1, generation)),
        clock=clock,
        tolerance_seconds=tolerance_seconds,
        renewal_interval_seconds=10.0,
        sent_at=clock(),
        remaining_seconds=remaining_seconds + tolerance_seconds,
        expires_at=datetime.now(UTC) + timedelta(seconds=expires_in_seconds),
    )
    return Context(
        lease=lease,
        task_type="effect",
        resources=None,
        ordinal=ordinal,
        scope=scope,
        input=input,
    )
