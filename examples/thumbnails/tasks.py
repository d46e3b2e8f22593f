"""What the submitting program and the executor have in common: the task type, and the store."""

import os
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, Field

from tenure.contract.tasktype import TaskType
from tenure.executor.guards.objects import Reference, Store, open_store


class Picture(BaseModel):
    """A picture in the store, and the longest edges of its thumbnails, in pixels."""

    sha256: str
    edges: tuple[int, ...] = Field(min_length=1, max_length=16)


class Thumbnails(BaseModel):
    """The thumbnails: a reference to the manifest that names them."""

    images: Reference


MakeThumbnails = TaskType("make-thumbnails", input=Picture, output=Thumbnails)


def store_url() -> str:
    """``file:///folder`` or ``s3://bucket/prefix``: ``THUMBNAILS_STORE``, else a folder here."""
    here = Path(".tenure/thumbnails").absolute()
    return os.environ.get("THUMBNAILS_STORE", f"file://{here}")


def store_settings() -> dict[str, str]:
    """What another process has to know to open the store: its address, and keys for S3."""
    keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return {"THUMBNAILS_STORE": store_url(), **keys}


def the_store() -> Store:
    """Opened by its address."""
    return open_store(store_url())


def key_of(digest: str) -> str:
    """Where an original is. What is there never changes: its name is its content."""
    return f"originals/{digest}"


def digest_of(data: bytes) -> str:
    """By which an original is named."""
    return sha256(data).hexdigest()
