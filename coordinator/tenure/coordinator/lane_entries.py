"""What queues in a lane: commands on their way, and who waits for their answers."""

import asyncio
from dataclasses import dataclass

from tenure.contract.ids import IncarnationId
from tenure.coordinator.core.commands import (
    AnyCommand,
    ChangeNode,
    CloseReview,
    OpenReview,
    Quarantine,
    Register,
    Submit,
)
from tenure.coordinator.core.decisions import Outcome
from tenure.coordinator.core.snapshot import Snapshot
from tenure.coordinator.errors import Unavailable
from tenure.coordinator.store.load import Given


class Caller:
    """Who waits for the answers to some entries: one future for all of them."""

    __slots__ = ("all_answered", "unanswered")

    def __init__(self, entries: int) -> None:
        self.unanswered = entries
        self.all_answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if entries == 0:
            self.all_answered.set_result(None)


@dataclass(slots=True)
class Entry:
    """A command on its way. ``snapshot`` is used once when the caller had just loaded it."""

    command: AnyCommand | None  # None: only mark ``seen``
    deadline: float
    caller: Caller
    seen: IncarnationId | None = None
    snapshot: tuple[Snapshot, int] | None = None
    given: Given | None = None
    task_type: str | None = None
    answer: Outcome | Unavailable | None = None

    @property
    def done(self) -> bool:
        """Answered, or its caller went away."""
        return self.answer is not None or self.caller.all_answered.done()

    def settle(self, answer: Outcome | Unavailable) -> None:
        """Answer, unless that is done."""
        if self.done:
            return
        self.answer = answer
        self.caller.unanswered -= 1
        if self.caller.unanswered == 0:
            self.caller.all_answered.set_result(None)


def command_of(entry: Entry) -> AnyCommand:
    """Of one that has a command."""
    assert entry.command is not None
    return entry.command


def row_key(entry: Entry) -> str | None:
    """What two entries of one batch may not share: the row that they change."""
    match entry.command:
        case None | Submit():
            return None if entry.command is None else entry.command.command_id
        case Register() | ChangeNode() | Quarantine() | OpenReview() | CloseReview():
            return f"{entry.command.tenant}/{entry.command.node_id}"
        case _:
            return entry.command.task_id
