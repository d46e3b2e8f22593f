"""Log lines of a process: JSON for machines, colours for a terminal, all on standard error."""

import logging
import sys
from collections.abc import Iterable
from typing import Any, Final, Literal

import structlog

_TRACEBACKS: Final = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Locals hold tokens and payloads."""


def configure(
    log_format: Literal["auto", "console", "json"],
    level: str,
    *,
    silenced: Iterable[str],
    libraries_from: int = logging.WARNING,
) -> None:
    """Set up structlog, and send what comes by ``logging`` the same way.

    ``level``: of what the process itself says. ``silenced``: loggers of libraries that report every
    failed attempt, where the process says the same once a minute. ``libraries_from``: the least
    level of ``logging`` that is let through, ``level`` permitting.
    """
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
    root.setLevel(max(number, libraries_from))
    for name in silenced:
        logging.getLogger(name).setLevel(logging.CRITICAL)
