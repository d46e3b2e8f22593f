"""What an attempt commits to an object store, and what stands in its place."""

import json
import re
from typing import Final

from pydantic import BaseModel, ConfigDict

from tenure.executor.errors import ExecutorError

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}(/[A-Za-z0-9._-]{1,200})*")


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
    """What an attempt committed. ``target`` is the object that its ``operation`` was done to, as
    the scope of its lease knows it; empty where it has no name."""

    model_config = ConfigDict(frozen=True)

    task_id: str
    attempt_id: str
    fencing_token: int
    operation: str
    target: str = ""
    entries: tuple[Entry, ...]

    def to_bytes(self) -> bytes:
        """As it is stored: equal manifests are equal bytes."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":")).encode()


def folders(folder: str, token: int, operation: str) -> tuple[str, str, str]:
    """Below a task's folder: the key under which an attempt commits an operation, and the folders
    of what it writes from memory and from files."""
    digits = f"{token:016d}"
    return (
        f"{folder}/commits/{operation}/{digits}",
        f"{folder}/data/{digits}/{operation}",
        f"{folder}/files/{digits}/{operation}",
    )


def check_place(manifest: Manifest, key: str) -> None:
    """Whether a manifest and all that it names lie where its attempt writes. Raises
    OutputsDamaged."""
    within, _, _ = folders(manifest.task_id, manifest.fencing_token, manifest.operation)
    if not f"/{key}".endswith(f"/{within}"):
        raise OutputsDamaged(f"{key} is not where its attempt commits.")
    folder = key.removesuffix(within) + manifest.task_id
    _, data, files = folders(folder, manifest.fencing_token, manifest.operation)
    for entry in manifest.entries:
        place = f"{files}/{entry.sha256}" if entry.key.startswith(f"{files}/") else data
        if entry.key != f"{place}/{entry.name}" or not (
            is_name(entry.name) and entry.sha256.isalnum()
        ):
            raise OutputsDamaged(f"{entry.key} is not where the attempt of {key} writes.")


class Seal(BaseModel):
    """What stands in place of the manifest of an attempt that may commit no more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sealed_by: int


class OutputsDamaged(ExecutorError):
    """What a reference leads to is not what was committed."""

    code = "outputs_damaged"


def checked_name(name: str) -> str:
    """Raises ValueError for what could leave its folder, or that a store would change."""
    if not is_name(name):
        raise ValueError(f"{name!r} is not made of letters, digits, '.', '_', '-' and slashes")
    return name


def is_name(name: str) -> bool:
    """Whether a name stays in its folder, in every store."""
    return _NAME.fullmatch(name) is not None and not {".", ".."} & set(name.split("/"))
