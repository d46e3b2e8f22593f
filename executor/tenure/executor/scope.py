"""The scope of one attempt's lease, as handler and guards ask it (LEASE-11)."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tenure.contract.scope import UNLIMITED, Scope
from tenure.executor.errors import OutOfScope


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    scopes: Annotated[tuple[Scope, ...], Field(min_length=1, max_length=2)]
    input: dict[str, str | int | float | bool]


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

    def to_json(self) -> str | None:
        """For a receiver, with the fields of the input that patterns name; None where everything is
        permitted."""
        scopes = [each for each in (self.granted, self.narrowed) if each not in (None, UNLIMITED)]
        if not scopes:
            return None
        named = {name for scope in scopes for name in scope.fields()}
        return json.dumps(
            {
                "scopes": [scope.model_dump() for scope in scopes],
                "input": {name: self._input[name] for name in sorted(named & set(self._input))},
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "GrantedScope":
        """The inverse. Raises ValueError."""
        said = _Said.model_validate_json(text)
        granted, *narrowed = said.scopes
        return cls(granted, said.input, *narrowed)

    def check(self, operation: str, target: str = "") -> None:
        """Raises OutOfScope for what the lease does not permit."""
        if not self.permits(operation, target):
            raise OutOfScope(
                f"the lease permits no operation {operation!r} on {target!r}.",
                next_step="Permit it in the scope of the type and of the submission, or leave it.",
            )
