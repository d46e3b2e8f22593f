"""Log lines: JSON for machines, colours for a terminal. Everything goes to standard error."""

import logging
import sys
from collections.abc import Sequence
from typing import Any, Final, Literal

import structlog

from tenure.contract.states import (
    TERMINAL_ATTEMPT_STATES,
    TERMINAL_TASK_STATES,
    AttemptState,
    EntityType,
    TaskState,
)
from tenure.coordinator.core.decisions import Happened

_LOUD: Final = ("aio_pika", "aiormq", "uvicorn.access")
"""They report every failed attempt; the conditions of ``health`` say the same, once a minute."""

_TOLD: Final = frozenset(
    {
        *(state.value for state in TERMINAL_ATTEMPT_STATES | TERMINAL_TASK_STATES),
        TaskState.HELD.value,
    }
) - {AttemptState.DELIVERED.value}
"""Deliveries are the rule, and are in the log of events."""

_TRACEBACKS: Final = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Locals hold tokens and payloads."""

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


def configure(log_format: Literal["auto", "console", "json"], level: str) -> None:
    """Set up structlog, and send what libraries log the same way."""
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if not console:
        shared.append(structlog.processors.ExceptionRenderer(_TRACEBACKS))
    renderer: Any = (
        structlog.dev.ConsoleRenderer(
            # Also asked for where lines go to a file, which people read later.
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,
        )
        if console
        else structlog.processors.JSONRenderer()
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.CRITICAL)
