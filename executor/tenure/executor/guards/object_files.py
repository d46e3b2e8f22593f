"""Files to and from an object store in parts, so that none has to fit into memory.

Needs the extra ``objects``.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import obstore
from obstore.store import ObjectStore

_READ_BYTES: Final = 1 << 20
_PART_BYTES: Final = 8 << 20
_PARTS_AT_ONCE: Final = 4


def digest_of_file(path: Path) -> tuple[str, int]:
    """SHA-256 in hexadecimal, and how many bytes. Raises OSError."""
    found, size = hashlib.sha256(), 0
    for part in _parts(path):
        found.update(part)
        size += len(part)
    return found.hexdigest(), size


def upload(store: ObjectStore, key: str, path: Path, before_each_part: Callable[[], None]) -> str:
    """Write the file to the key; the SHA-256 of what was written. Raises what ``before_each_part``
    raises, and then writes nothing."""
    found = hashlib.sha256()
    raised: list[BaseException] = []

    def parts() -> Iterator[bytes]:
        try:
            for part in _parts(path):
                before_each_part()
                found.update(part)
                yield part
        except GeneratorExit:
            raise
        except BaseException as error:
            raised.append(error)  # the store's library would make an error of its own of it
            raise

    try:
        obstore.put(
            store,
            key,
            parts(),
            use_multipart=True,
            chunk_size=_PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )
    except Exception:
        if raised:
            raise raised[0] from None
        raise
    return found.hexdigest()


def download(store: ObjectStore, key: str, path: Path, digest: str) -> None:
    """Write the object to ``path`` once it is whole and has that SHA-256. Raises ValueError where
    it has another or is not there."""
    found = hashlib.sha256()
    beside = path.with_name(f"{path.name}.part")
    try:
        stream = obstore.get(store, key).stream(min_chunk_size=_READ_BYTES)
    except FileNotFoundError as error:
        raise ValueError(f"{key} is not there") from error
    try:
        with beside.open("wb") as file:
            for part in stream:
                found.update(part)
                file.write(part)
        if found.hexdigest() != digest:
            raise ValueError(f"{key} has another digest")
        beside.replace(path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(beside)


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            yield part
