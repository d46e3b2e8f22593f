"""What an attempt commits to an object store, and what stands in its place."""

import json

from pydantic import BaseModel, ConfigDict

from tenure.executor.errors import ExecutorError


class Reference(BaseModel):
    """Names one manifest: part of a task's output. ``sha256`` is that of the manifest."""

    model_config = ConfigDict(frozen=True)

    key: str
    sha256: str


class Entry(BaseModel):
    """One object of a manifest. ``size`` is in bytes."""

    model_config = ConfigDict(frozen=True)

    name: str
    key: str
    sha256: str
    size: int


class Manifest(BaseModel):
    """What an attempt committed."""

    model_config = ConfigDict(frozen=True)

    task_id: str
    attempt_id: str
    fencing_token: int
    operation: str
    entries: tuple[Entry, ...]

    def to_bytes(self) -> bytes:
        """As it is stored: equal manifests are equal bytes."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":")).encode()


class Seal(BaseModel):
    """What stands in place of the manifest of an attempt that may commit no more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sealed_by: int


class OutputsDamaged(ExecutorError):
    """What a reference leads to is not what was committed."""

    code = "outputs_damaged"
