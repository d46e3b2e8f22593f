"""Named instants at which a test may strike: kill, stop, fail or hold a process.

A crash test that aims at a clock hits what it can; one that aims at a point hits the instant. The
points are objects that are handed in by whoever constructs a process. No setting and no variable of
the environment reaches them: what ``tenure coordinator``, ``relay`` and ``executor`` run is
``NO_FAULTS``, which does nothing.
"""

from enum import StrEnum
from typing import Final, Protocol


class FaultPoint(StrEnum):
    """Each is reached once for the batch, message or attempt at hand."""

    # coordinator; the subject is the lane
    BEFORE_COMMIT = "before_commit"  # decided, the database not asked yet
    AFTER_COMMIT = "after_commit"  # committed, nobody told
    # relay
    BEFORE_PUBLISH = "before_publish"  # read from the log
    AFTER_PUBLISH = "after_publish"  # handed to the connection, no confirm seen
    AFTER_CONFIRM = "after_confirm"  # confirmed, not noted yet
    BEFORE_CURSOR_MOVE = "before_cursor_move"  # noted, the cursor not moved yet
    AFTER_CURSOR_MOVE = "after_cursor_move"
    BEFORE_UNPARK = "before_unpark"  # a parked row has an end, which is not noted yet
    AFTER_UNPARK = "after_unpark"  # noted
    # executor; the subject is the attempt, where there is one
    AFTER_INBOX = "after_inbox"  # stored, not acknowledged
    AFTER_ACK = "after_ack"
    BEFORE_HANDLER = "before_handler"  # fences raised, the handler is about to have control
    BEFORE_EFFECT = "before_effect"  # after the own last check; coroutines only
    AFTER_EFFECT = "after_effect"  # committed by the receiver
    BEFORE_REPORT = "before_report"  # the handler has ended, the coordinator does not know


class FaultPoints(Protocol):
    """What a process calls when it reaches a point."""

    async def reach(self, point: FaultPoint, subject: str = "") -> None:
        """Does nothing, or what a test wants: it may not return, and it may raise."""


class NoFaults:
    """Inert."""

    async def reach(self, point: FaultPoint, subject: str = "") -> None:
        """Does nothing."""


NO_FAULTS: Final[FaultPoints] = NoFaults()
"""What every process has unless it is constructed with something else."""
