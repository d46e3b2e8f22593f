"""The record of one attempt's run, and how it was asked to stop."""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from tenure.contract.isolation import Enforcement
from tenure.executor.context import Context
from tenure.executor.core.intake import Assignment
from tenure.executor.declare import HandlerDeclaration
from tenure.executor.lease import Lease


class Stop(StrEnum):
    """Why a handler was asked to end."""

    CANCELLED = "cancelled"  # the application no longer wants the task
    AUTHORITY = "authority"  # the attempt may act no longer (LEASE-09)
    DRAIN = "drain"  # the process ends and its drain limit was reached
    TIME_LIMIT = "time_limit"  # it went on after it was cancelled at its time limit


@dataclass(slots=True, eq=False)
class Execution:
    """Filled in by the steps of the pipeline, one after the other."""

    assignment: Assignment
    declaration: HandlerDeclaration
    lease: Lease | None = None
    context: Context[Any] | None = None
    raw_input: Any = None
    input: BaseModel | None = None
    output: object = None
    handler: asyncio.Task[object] | None = None  # before it, whatever raises the fences
    handler_began_at: float | None = None  # by the loop's clock
    suspect: bool = False  # attempts of the task were lost: it runs alone
    lost: str | None = None  # why its authority was over before its end was applied, once noticed
    enforced: Enforcement | None = None
    seen_token: int | None = None  # of a successor, as a receiver has seen it
    stop: Stop | None = None
    stop_asked_at: float = field(default=0.0)

    def note_enforced(self, enforced: Enforcement) -> None:
        """What its process is held to; told by the sandbox as soon as it runs."""
        self.enforced = enforced

    def ask_to_stop(self, stop: Stop, now: float) -> None:
        """End the handler, or do not begin it. The first reason counts. ``now`` is the loop's."""
        if self.stop is None:
            self.stop = stop
        self.stop_asked_at = now
        if self.context is not None:
            self.context.ask_to_end()
        if self.handler is not None:
            self.handler.cancel()

    @property
    def handler_runs(self) -> bool:
        """Whether user code has control."""
        return self.handler is not None and not self.handler.done()
