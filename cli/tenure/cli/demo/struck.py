"""The demo's executor when one is to be stopped: ``tenure executor tenure.cli.demo.struck:app``.

Works like ``tenure.cli.demo.hasher``. The first attempt that gets to the named point stops its
whole process there: it has looked at its authority a last time and has not yet begun its write.
Continued, that attempt is as deaf as a program can be. It goes on although it is told to end, sends
its write, and delivers what it had computed. Nothing but the receiver's guard stands in its way.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tenure.cli.demo import hasher
from tenure.cli.demo.declarations import FileIn, FileOut, HashFile
from tenure.cli.drills.strikes import Armed, Strike
from tenure.executor import Context, Executor
from tenure.executor.guards.sql import SqlGuard

STRIKE_VARIABLE: Final = "DEMO_STRIKE"
OUTCOME: Final = "outcome.json"

app = Executor("hasher", version="1.0")


@dataclass(frozen=True)
class Outcome:
    """What became of the write of the attempt that had been stopped. ``sqlstate`` is what the
    downstream answered; None: it took the write."""

    task_id: str
    attempt_id: str
    sqlstate: str | None
    error: str | None


@dataclass(frozen=True)
class Resources(hasher.Resources):
    """With the strike that the guard is armed with."""

    strike: Strike


@app.lifespan
@asynccontextmanager
async def resources() -> AsyncIterator[Resources]:
    """The downstream database through an armed guard."""
    strike = Strike.from_json(os.environ[STRIKE_VARIABLE])
    url = os.environ[hasher.DATABASE_VARIABLE]
    async with SqlGuard(url, schema="guard", faults=Armed(strike)) as ledger:
        yield Resources(ledger, strike)


@app.task(HashFile, effects="guarded", guards=lambda resources: [resources.ledger])
async def hash_file(input: FileIn, context: Context[Resources]) -> FileOut:
    """As the hasher does, unless this is the attempt that was stopped."""
    output = await asyncio.to_thread(hasher.read_unchanged, input)
    writing = asyncio.create_task(
        hasher.write_row(context.resources.ledger, input, output, context)
    )
    try:
        await asyncio.wait({writing})
    except asyncio.CancelledError:
        if not _was_struck(context):
            writing.cancel()
            await asyncio.wait({writing})
            raise
        await asyncio.wait({writing})
    if _was_struck(context):
        _tell(writing, context)
    else:
        writing.result()
    return output


def _was_struck(context: Context[Resources]) -> bool:
    sign = context.resources.strike.sign()
    return sign is not None and sign.subject == context.attempt_id and sign.pid == os.getpid()


def _tell(writing: asyncio.Task[None], context: Context[Resources]) -> None:
    error = writing.exception()
    outcome = Outcome(
        context.task_id,
        context.attempt_id,
        getattr(None if error is None else error.__cause__, "sqlstate", None),
        None if error is None else f"{type(error).__name__}: {error}",
    )
    file = context.resources.strike.folder / OUTCOME
    whole = file.with_suffix(".part")
    whole.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    whole.replace(file)


def read_outcome(folder: Path) -> Outcome | None:
    """What the stopped attempt told; None before."""
    try:
        return Outcome(**json.loads((folder / OUTCOME).read_text("utf-8")))
    except FileNotFoundError:
        return None
