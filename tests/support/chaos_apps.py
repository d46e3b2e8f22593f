"""Two executors that write down their effects, one rightly and one wrongly, and who counts them.

Both write to the SQLite file that ``LEDGER`` names and then take a while. The right one keys what
it writes by its task; the wrong one adds a row each time it is begun, and is declared idempotent.
"""

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from tenure.cli.chaos.books import TaskOutcome
from tenure.executor import Context, Executor, TaskType

LEDGER: Final = "CHAOS_LEDGER"


class Amount(BaseModel):
    """``seconds``: how long the handler goes on after its write."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"cents": 100}, {"cents": 250}]})

    cents: int
    seconds: float = 0.5


class Booked(BaseModel):
    cents: int


BOOK = TaskType("book", input=Amount, output=Booked)
right = Executor("right", version="1")
wrong = Executor("wrong", version="1")


def make_ledger(path: str) -> None:
    """An empty one."""
    with closing(sqlite3.connect(path)) as book:
        book.executescript(
            "pragma journal_mode = wal;"
            "create table rows (task_id text primary key, cents integer);"
            "create table counters (task_id text, cents integer);"
        )


def write(statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(os.environ[LEDGER], timeout=60)) as book, book:
        book.execute(statement, values)


@right.task(BOOK, effects="idempotent", max_attempts=1000)
async def keyed(input: Amount, context: Context[Any]) -> Booked:
    write("insert or ignore into rows values (?, ?)", context.task_id, input.cents)
    await asyncio.sleep(input.seconds)
    return Booked(cents=input.cents)


@wrong.task(BOOK, effects="idempotent", max_attempts=1000)
async def added(input: Amount, context: Context[Any]) -> Booked:
    write("insert into counters values (?, ?)", context.task_id, input.cents)
    await asyncio.sleep(input.seconds)
    return Booked(cents=input.cents)


def count(tasks: Sequence[TaskOutcome]) -> dict[str, int]:
    """How many effects each task has: what ``--check`` names."""
    with closing(sqlite3.connect(os.environ[LEDGER], timeout=60)) as book:
        rows = book.execute(
            "select task_id, count(*) from"
            " (select task_id from rows union all select task_id from counters) group by task_id"
        )
        return dict(rows.fetchall())
