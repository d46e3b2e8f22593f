"""The scope of one attempt's lease, as handler and guards ask it (LEASE-11)."""

from collections.abc import Mapping
from typing import Any

from tenure.contract.scope import Scope
from tenure.executor.errors import OutOfScope


class GrantedScope:
    """What the lease permits, for the task's own input."""

    def __init__(self, granted: Scope, input: Mapping[str, Any]) -> None:
        self.granted = granted
        self._input = input

    def permits(self, operation: str, target: str = "") -> bool:
        """Whether the lease permits the operation on the object."""
        return self.granted.permits(operation, target, input=self._input)

    def check(self, operation: str, target: str = "") -> None:
        """Raises OutOfScope for what the lease does not permit."""
        if not self.permits(operation, target):
            raise OutOfScope(
                f"the lease permits no operation {operation!r} on {target!r}.",
                next_step="Declare it in the scope of the task type, or leave it.",
            )
