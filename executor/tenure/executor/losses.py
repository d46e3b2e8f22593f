"""A lost lease is said once for each attempt, at the moment when it is noticed: a line of the log
and a count, both with the reason. What an operator sees of it elsewhere is in docs/nodes.md.

``why`` is the code of whoever refused (the coordinator a renewal or the last report, a receiver an
effect), or one of the words below.
"""

from typing import Final

import structlog

from tenure.contract.codes import Code
from tenure.executor.execution import Execution
from tenure.executor.metrics import ExecutorMetrics

DEADLINE: Final = "deadline"
"""Its time was up by this process's own clock: no renewal was answered, or the process stood."""
PROCESS_ENDS: Final = "process_ends"
"""The process ends, and the coordinator did not answer what was handed back."""
FAULT: Final = "fault"
"""A fault of the executor itself ended the run."""

REFUSALS: Final = frozenset(
    {
        Code.NOT_CURRENT, Code.STALE_TOKEN, Code.LEASE_EXPIRED, Code.WRONG_STATE, Code.WRONG_NODE,
        Code.UNKNOWN_ATTEMPT,
    }
)  # fmt: skip
"""Answers of the coordinator by which an attempt has no authority any more."""

log = structlog.get_logger("tenure.executor")


def why_over(execution: Execution) -> str:
    """Why an attempt may act no longer whose lease says so."""
    return (execution.lease and execution.lease.ended) or DEADLINE


def say_lost(execution: Execution, metrics: ExecutorMetrics, why: str, **more: object) -> None:
    """The authority of an attempt was over before its end was applied. Only the first call says
    it. ``side_effects``: what was begun, and may have happened."""
    if execution.lost is not None:
        return
    execution.lost = why
    log.warning("lease_lost", **_about(execution), why=why, side_effects=_begun(execution), **more)
    task_type = execution.assignment.task_type
    metrics.lease_lost.labels(task_type=task_type, why=why).inc()


def say_given_up(execution: Execution, metrics: ExecutorMetrics, why: str) -> None:
    """The attempt is ended without an answer to anything: nothing more may begin. What was reported
    and not answered may have been applied."""
    if execution.lease is None:
        return  # nothing has begun
    execution.lease.end(why)
    if execution.handler is not None and execution.handler.done():
        log.warning("not answered: how the attempt ended is not known here", **_about(execution))
    else:
        say_lost(execution, metrics, why)


def say_ended(execution: Execution) -> None:
    """The handler of a lost lease has ended: what it has begun meanwhile is complete."""
    log.info(
        "the handler has ended, its lease was lost",
        **_about(execution),
        why=execution.lost,
        side_effects=_begun(execution),
    )


def _about(execution: Execution) -> dict[str, object]:
    assignment = execution.assignment
    return {
        "task_id": assignment.task_id,
        "attempt_id": assignment.attempt_id,
        "task_type": assignment.task_type,
        "fencing_token": assignment.fencing_token,
    }


def _begun(execution: Execution) -> list[str]:
    return [] if execution.context is None else execution.context.effects_in_words()
