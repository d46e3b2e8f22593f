"""The scope of one attempt's lease, as handler and guards ask it (LEASE-11)."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tenure.contract.scope import UNLIMITED, Scope, field_text
from tenure.executor.errors import OutOfScope


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    scopes: Annotated[tuple[Scope, ...], Field(min_length=1, max_length=2)]
    input: dict[str, str]


class GrantedScope:
    """What the lease permits, for the task's own input: what its type permits, and of that what
    its submission does. ``fields`` are those of the input that patterns name, as they read them."""

    def __init__(
        self, granted: Scope, input: Mapping[str, Any], narrowed: Scope | None = None
    ) -> None:
        self.granted = granted
        self.narrowed = narrowed
        self._scopes = (granted,) if narrowed is None else (granted, narrowed)
        named = sorted({name for scope in self._scopes for name in scope.fields()})
        texts = {name: field_text(input.get(name)) for name in named}
        self.fields = {name: text for name, text in texts.items() if text is not None}

    def permits(self, operation: str, target: str = "") -> bool:
        """Whether the lease permits the operation on the object."""
        return all(scope.permits(operation, target, input=self.fields) for scope in self._scopes)

    def to_json(self) -> str | None:
        """For a receiver: the scopes, and ``fields`` as texts; None where everything is permitted.
        Always the same for one lease, since receivers compare."""
        scopes = [each for each in self._scopes if each != UNLIMITED]
        if not scopes:
            return None
        said = {"scopes": [scope.model_dump() for scope in scopes], "input": self.fields}
        return json.dumps(said, separators=(",", ":"))

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
