"""The demo's task type, shared by the program that submits and the executor that hashes."""

import os
from urllib.parse import quote, unquote_to_bytes

from pydantic import BaseModel

from tenure.contract.tasktype import TaskType


class FileIn(BaseModel):
    """``path`` as ``encode_path`` writes it."""

    path: str


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
