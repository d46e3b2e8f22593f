"""The demo's task type, shared by the program that submits and the executor that hashes."""

import os
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from pydantic import BaseModel

from tenure.contract.tasktype import TaskType

FILE_CHANGED: Final = "file_changed"
FILE_VANISHED: Final = "file_vanished"
"""Reasons of tasks whose file is not, or is no longer, as it was when the list was made."""


class FileIn(BaseModel):
    """A file as it was when the list was made. ``path`` as ``encode_path`` writes it."""

    path: str
    size_bytes: int
    modified_nanoseconds: int


class FileOut(BaseModel):
    """``lines`` is the number of newline bytes."""

    sha256: str
    size_bytes: int
    lines: int


HashFile = TaskType("demo.hash-file", input=FileIn, output=FileOut)


def encode_path(path: str) -> str:
    """A path as text that any JSON and any database can hold: names of files are bytes, and odd
    ones are percent-encoded."""
    return quote(os.fsencode(path), safe="/ ")


def decode_path(text: str) -> str:
    """The path again."""
    return os.fsdecode(unquote_to_bytes(text))
