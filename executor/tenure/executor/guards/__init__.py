"""Guards: how a receiver of effects refuses an attempt that may act no longer."""

from typing import Any, Protocol

from tenure.executor.context import Context


class Guard(Protocol):
    """A receiver that checks fencing tokens."""

    async def raise_fence(self, context: Context[Any]) -> None:
        """Make the receiver refuse every older token of the task, before the handler has control.

        Called again after an unknown outcome, so it must be repeatable. Raises AuthorityError when
        the receiver refuses, GuardUnavailable when it may be repeated, another GuardError else.
        """
