"""What the coordinator logs of decisions, and which libraries are not heard."""

from collections.abc import Sequence
from typing import Final

import structlog

from tenure.contract.states import (
    TERMINAL_ATTEMPT_STATES,
    TERMINAL_TASK_STATES,
    AttemptState,
    EntityType,
    TaskState,
)
from tenure.coordinator.core.decisions import Happened

SILENCED: Final = ("aio_pika", "aiormq", "uvicorn.access")
"""They report every failed attempt; the conditions of ``health`` say the same, once a minute."""

_TOLD: Final = frozenset(
    {
        *(state.value for state in TERMINAL_ATTEMPT_STATES | TERMINAL_TASK_STATES),
        TaskState.HELD.value,
    }
) - {AttemptState.DELIVERED.value}
"""Deliveries are the rule, and are in the log of events."""

log = structlog.get_logger()


def log_ends(events: Sequence[Happened]) -> None:
    """A line for each attempt that ended without a delivery, and each task that did or is held:
    what somebody looks for afterwards, by tenant, task, attempt or token."""
    for event in events:
        if event.next_state not in _TOLD:
            continue
        if event.entity_type is EntityType.ATTEMPT:
            log.info(
                "attempt ended",
                state=event.next_state,
                reason=event.reason,
                tenant=event.tenant,
                task_id=event.task_id,
                attempt_id=event.attempt_id,
                node_id=event.node_id,
                fencing_token=event.fencing_token,
                by=event.actor,
            )
        elif event.entity_type is EntityType.TASK and event.previous_state != event.next_state:
            log.info(
                "task is held" if event.next_state == TaskState.HELD else "task ended",
                state=event.next_state,
                reason=event.reason,
                tenant=event.tenant,
                task_id=event.task_id,
                by=event.actor,
            )
