"""The scope of one attempt's lease, as handler and guards ask it (LEASE-11)."""

from collections.abc import Mapping
from typing import Any

from tenure.contract.scope import Scope
from tenure.executor.errors import OutOfScope


class GrantedScope:
    """What the lease permits, for the task's own input: what its type permits, and of that what
    its submission does."""

    def __init__(
        self, granted: Scope, input: Mapping[str, Any], narrowed: Scope | None = None
    ) -> None:
        self.granted = granted
        self.narrowed = narrowed
        self._input = input

    def permits(self, operation: str, target: str = "") -> bool:
        """Whether the lease permits the operation on the object."""
        return all(
            scope.permits(operation, target, input=self._input)
            for scope in (self.granted, self.narrowed)
            if scope is not None
        )

    def check(self, operation: str, target: str = "") -> None:
        """Raises OutOfScope for what the lease does not permit."""
        if not self.permits(operation, target):
            raise OutOfScope(
                f"the lease permits no operation {operation!r} on {target!r}.",
                next_step="Permit it in the scope of the type and of the submission, or leave it.",
            )
