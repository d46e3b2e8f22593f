"""The demo's executor: ``tenure executor tenure.cli.demo.hasher:app``.

Its one effect, a row in somebody else's database, goes through the SQL guard: whatever happens to
this process, the row is written once, by an attempt that had the right to.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tenure.cli.demo.declarations import FileIn, FileOut, HashFile, decode_path
from tenure.executor import Context, Executor
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
    output = await asyncio.to_thread(read_file, decode_path(input.path))
    async with context.resources.ledger.transaction(context, operation="row") as effect:
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
    return output


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
