"""The list of files, frozen at the start."""

import os
import stat
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tenure.cli.exits import CommandError, Exit

NOT_THE_LIBRARY: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders inside Python's library folder that are not the standard library, or change while
programs run."""


class InputError(CommandError):
    """The input folder cannot be used.

    ``input_missing``, ``input_not_a_folder``, ``input_unreadable``, ``input_empty``.
    """

    exit_code = Exit.USAGE


@dataclass(frozen=True)
class FrozenFile:
    """A regular file as it was when the list was made."""

    path: str
    size_bytes: int
    modified_nanoseconds: int


def standard_library() -> Path:
    """The folder of the standard library that runs this program."""
    return Path(sysconfig.get_paths()["stdlib"])


def freeze(folder: Path, *, without: frozenset[str] = frozenset()) -> list[FrozenFile]:
    """Every regular file below ``folder``, sorted by path; links are not followed.

    ``without`` names folders that are left out wherever they are. Raises InputError.
    """
    top = os.path.abspath(folder)
    if not os.path.exists(top):
        raise InputError(
            f"there is no folder {top}.", next_step="Name another one.", code="input_missing"
        )
    if not os.path.isdir(top):
        raise InputError(
            f"{top} is no folder.", next_step="Name a folder.", code="input_not_a_folder"
        )
    found: list[FrozenFile] = []
    for directory, folders, names in os.walk(top, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if name not in without)
        for name in names:
            path = os.path.join(directory, name)
            try:
                state = os.lstat(path)
            except FileNotFoundError:
                continue  # gone since the folder was read: it was never in the list
            if not stat.S_ISREG(state.st_mode):
                continue
            if not os.access(path, os.R_OK):
                _unreadable(PermissionError(13, "Permission denied", path))
            found.append(FrozenFile(path, state.st_size, state.st_mtime_ns))
    if not found:
        raise InputError(
            f"there is no regular file below {top}.",
            next_step="Name a folder that has some.",
            code="input_empty",
        )
    return sorted(found, key=lambda file: file.path)


def _unreadable(error: OSError) -> None:
    raise InputError(
        f"{error.filename} cannot be read: {error.strerror}.",
        next_step="Run as an account that may read it, or name another folder.",
        code="input_unreadable",
    )
