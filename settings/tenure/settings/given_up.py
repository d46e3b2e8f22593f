"""What a connection that was given up says afterwards is no error."""

import logging
from typing import Final

_UNASKED: Final = ("Task exception was never retrieved", "Future exception was never retrieved")
"""How the event loop begins what it says of an exception that nobody waited for."""


class GivenUp(logging.Filter):
    """Of the logger ``asyncio``: says in one warning what failed at a connection that nobody waits
    for any more.

    Whoever asked was cancelled or had its timeout, and has said so itself; the driver's own tasks
    and futures still fail later, when the connection ends. Everything else stays an error.
    """

    def __init__(self, *lost: type[BaseException]) -> None:
        super().__init__()
        self._lost: tuple[type[BaseException], ...] = (OSError, TimeoutError, *lost)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, self._lost) and record.getMessage().startswith(_UNASKED):
            record.msg = "a connection that was given up failed later: %s: %s"
            record.args = (type(error).__name__, error)
            record.exc_info = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def expect_given_up(*lost: type[BaseException]) -> None:
    """Let the process's log say so; ``lost``: what its drivers raise besides OSError and
    TimeoutError where a connection is lost."""
    logger = logging.getLogger("asyncio")
    for one in logger.filters[:]:
        if isinstance(one, GivenUp):
            logger.removeFilter(one)
    logger.addFilter(GivenUp(*lost))
