"""The demo's executor: ``tenure executor tenure.cli.demo.hasher:app``.

Its one effect, a row in somebody else's database, goes through the SQL guard: whatever happens to
this process, the row is written once, by an attempt that had the right to.
"""

import asyncio
import hashlib
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tenure.cli.demo.declarations import (
    FILE_CHANGED,
    FILE_VANISHED,
    FileIn,
    FileOut,
    HashFile,
    decode_path,
)
from tenure.executor import Context, Executor, Fail
from tenure.executor.guards.sql import SqlGuard

DATABASE_VARIABLE = "DEMO_DATABASE_URL"
CHUNK_BYTES = 1024 * 1024

app = Executor("hasher", version="1.0")


@dataclass(frozen=True)
class Resources:
    """What all attempts share."""

    ledger: SqlGuard


@app.lifespan
@asynccontextmanager
async def resources() -> AsyncIterator[Resources]:
    """The downstream database, through its guard."""
    async with SqlGuard(os.environ[DATABASE_VARIABLE], schema="guard") as ledger:
        yield Resources(ledger)


@app.task(HashFile, effects="guarded", guards=lambda resources: [resources.ledger])
async def hash_file(input: FileIn, context: Context[Resources]) -> FileOut:
    """Hash one file and write its row."""
    output = await asyncio.to_thread(read_unchanged, input)
    await write_row(context.resources.ledger, input, output, context)
    return output


async def write_row(
    ledger: SqlGuard, input: FileIn, output: FileOut, context: Context[Any]
) -> None:
    """The one effect: raises what the guard raises."""
    async with ledger.transaction(context, operation="row") as effect:
        if not effect.already_done:
            await effect.connection.execute(
                "insert into demo.files (task_id, fencing_token, path, sha256, size_bytes, lines)"
                " values ($1, $2, $3, $4, $5, $6)",
                context.task_id,
                context.fencing_token,
                input.path,
                output.sha256,
                output.size_bytes,
                output.lines,
            )


def read_unchanged(input: FileIn) -> FileOut:
    """Hash, size and lines of the file that was listed.

    Raises Fail when it is gone, or another one before or after it was read: no later
    attempt would find it as it was.
    """
    path = decode_path(input.path)
    listed = (input.size_bytes, input.modified_nanoseconds)
    try:
        if state(path) == listed:
            output = read_file(path)
            if state(path) == listed:
                return output
    except FileNotFoundError as error:
        raise Fail(FILE_VANISHED, "the file is no longer there.") from error
    raise Fail(FILE_CHANGED, "the file is not as it was listed.")


def state(path: str) -> tuple[int, int] | None:
    """Size and time of a regular file; None for anything else. Raises FileNotFoundError."""
    found = os.lstat(path)
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def read_file(path: str) -> FileOut:
    """Hash, size and lines in one pass of bounded memory."""
    digest = hashlib.sha256()
    size = lines = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            lines += chunk.count(b"\n")
    return FileOut(sha256=digest.hexdigest(), size_bytes=size, lines=lines)
