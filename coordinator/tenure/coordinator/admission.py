"""How commands enter: what the HTTP side asks of the lanes.

Commands that arrive together are decided together; each caller waits for its own outcomes only. A
command carries its id, so whoever got ``Retryable`` repeats the same command, to any replica.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from tenure.contract.ids import IncarnationId
from tenure.coordinator.core.commands import (
    AttemptCommand,
    Cancel,
    ChangeNode,
    CloseReview,
    Intervention,
    Register,
    Renew,
    Submit,
)
from tenure.coordinator.core.decisions import Happened, Outcome


class Admission(Protocol):
    """Outcomes come in the order of the commands.

    Every method raises Unavailable when the database is away past the request's deadline: then
    nothing is known to have changed.
    """

    async def submit(self, commands: Sequence[Submit]) -> list[Outcome]:
        """Record tasks; a repeated command id gives the first outcome."""

    async def report(self, commands: Sequence[AttemptCommand]) -> list[Outcome]:
        """What executors say about attempts; the order of one attempt's commands is kept."""

    async def renew(self, commands: Sequence[Renew], seen: IncarnationId) -> list[Outcome]:
        """Extend leases. Also records that the incarnation was heard of, with no command too."""

    async def cancel(self, command: Cancel) -> Outcome:
        """End a task, or ask its attempt to."""

    async def intervene(self, commands: Sequence[Intervention]) -> list[Outcome]:
        """What operators say about tasks."""

    async def register(self, command: Register) -> Outcome:
        """Make an incarnation its node's current one."""

    async def change_node(self, command: ChangeNode) -> Outcome:
        """Drain an incarnation, or record that it is gone."""

    async def review(self, command: CloseReview) -> Outcome:
        """Close the health review of an incarnation."""

    def on_commit(self, callback: Callable[[Sequence[Happened]], None]) -> None:
        """Call ``callback`` after each commit with its events. It must neither wait nor raise."""
