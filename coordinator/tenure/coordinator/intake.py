"""Takes in what applications enqueued in transactions of their own. A loop without rules: each row
becomes a command for a lane.

Any number of replicas may run it: the commit's guards decide, row by row, whose command holds. A
row is decided in the commit that makes its task, so that whatever is killed, whenever, a committed
row becomes exactly one task (OPS-01).
"""

import asyncio
import random
from dataclasses import fields
from typing import Final
from uuid import uuid4

import structlog
from pydantic import ValidationError
from pydantic_core import from_json

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.contract.ids import CommandId
from tenure.contract.reports import Resources
from tenure.contract.scope import Scope
from tenure.contract.tasks import TaskSubmission
from tenure.coordinator.authority import Authority
from tenure.coordinator.core.commands import RefuseIntake, TakeIn
from tenure.coordinator.errors import Retryable
from tenure.coordinator.identities import Identity, Role
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.postgres import ConnectionLost, Pool, PostgresError
from tenure.coordinator.store.rows import IntakeRow, intake_row
from tenure.coordinator.submission import submission

log = structlog.get_logger()

BATCH: Final = 256
BATCH_BYTES: Final = 8 * 1024 * 1024
TICK_SECONDS: Final = 0.25
"""How soon a committed transaction is noticed."""

_QUERIES: Final = named_queries.load("loops.sql")


class Intake:
    """Runs on every replica."""

    def __init__(self, pool: Pool, authority: Authority, *, payload_limit_bytes: int) -> None:
        self._pool = pool
        self._authority = authority
        self._payload_limit_bytes = payload_limit_bytes
        self.last_run_at: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                decided = await self.step()
                self.last_run_at = asyncio.get_running_loop().time()
            except (Retryable, PostgresError, *ConnectionLost) as error:
                log.warning("intake stalled", error=str(error) or type(error).__name__)
                decided = 0
                await asyncio.sleep(random.uniform(0.1, 1.0))
            if decided == 0:
                await asyncio.sleep(TICK_SECONDS * random.uniform(0.8, 1.2))

    async def step(self) -> int:
        """One look at the waiting rows; how many were decided."""
        records = await self._pool.fetch(_QUERIES["waiting_intake"], BATCH, BATCH_BYTES)
        if not records:
            return 0
        rows = [intake_row(record) for record in records]
        outcomes = await self._authority.take_in(
            [take_in(row, payload_limit_bytes=self._payload_limit_bytes) for row in rows]
        )
        # What the database cannot apply would come up again and again, and keep others waiting.
        broken = [
            refusal(row, Code.INTERNAL_REFUSED, outcome.refused.message)
            for row, outcome in zip(rows, outcomes, strict=True)
            if outcome.refused is not None and outcome.refused.code is Code.INTERNAL_REFUSED
        ]
        if broken:
            outcomes += await self._authority.take_in(broken)
        replies = [outcome.reply for outcome in outcomes if outcome.reply is not None]
        for reply in replies:
            if reply.outcome == "refused":
                log.warning("enqueued task refused", task_id=reply.task_id, code=reply.code)
        return sum(reply.outcome != "ended" for reply in replies)


def take_in(row: IntakeRow, *, payload_limit_bytes: int) -> TakeIn | RefuseIntake:
    """The command of a row. What is no submission is refused by itself."""
    try:
        command = submission(
            _requested(row),
            task_id=row.task_id,
            fallback_id=row.command_id,
            key=None,  # the id was derived from it when the row was written
            identity=_identity(row),
            payload_limit_bytes=payload_limit_bytes,
        )
    except TenureError as error:
        return refusal(row, Code(error.code), error.message)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors(include_input=False)
        ]
        return refusal(row, Code.INVALID_FIELD, "; ".join(faults))
    except ValueError as error:
        return refusal(row, Code.MALFORMED_JSON, f"the input is no JSON: {error}")
    return TakeIn(
        **{field.name: getattr(command, field.name) for field in fields(command)},
        intake_id=row.intake_id,
    )


def refusal(row: IntakeRow, code: Code, message: str) -> RefuseIntake:
    """The command that records why a row is none."""
    identity = _identity(row)
    return RefuseIntake(
        command_id=CommandId(str(uuid4())),
        fingerprint=b"",
        tenant=identity.tenant,
        actor=identity.name,
        task_id=row.task_id,
        intake_id=row.intake_id,
        code=code,
        message=message,
    )


def _requested(row: IntakeRow) -> TaskSubmission:
    """Raises ValueError for an input that cannot be read, ValidationError for a wrong field."""
    resources = None
    if (row.cpu_millis, row.memory_bytes) != (None, None):
        resources = Resources(cpu_millis=row.cpu_millis or 0, memory_bytes=row.memory_bytes or 0)
    return TaskSubmission(
        type=row.type,
        input=from_json(row.input_text, allow_inf_nan=False),
        priority=row.priority,
        not_before=row.not_before,
        deadline=row.deadline,
        resources=resources,
        concurrency_key=row.concurrency_key,
        scope=None if row.scope_text is None else Scope.model_validate_json(row.scope_text),
        traceparent=row.traceparent,
    )


def _identity(row: IntakeRow) -> Identity:
    """The login is the actor of what its transaction causes (OPS-05)."""
    return Identity(f"sql:{row.enqueued_by}", row.tenant, Role.APPLICATION)
