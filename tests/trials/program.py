"""The executor of the trials, a process: what it is asked to do says how long it takes.

``DOWNSTREAM`` is the database that it writes to under the SQL guard.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pydantic import BaseModel

from tenure.executor import Context, Executor, Retry, TaskType
from tenure.executor.config import load_settings
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.runner import run

DOWNSTREAM: Final = "TRIAL_DOWNSTREAM"


class Work(BaseModel):
    """``failures``: attempts that fail before one succeeds."""

    key: str
    seconds: float
    failures: int = 0


class Done(BaseModel):
    key: str
    ordinal: int | None


ROW = TaskType("row", input=Work, output=Done)
"""One row downstream, guarded: there once whatever happens."""
THREAD = TaskType("thread", input=Work, output=Done)
"""Plain code that nothing can end: it delivers however late it is."""
STEADY = TaskType("steady", input=Work, output=Done)
"""May be repeated."""
SHAKY = TaskType("shaky", input=Work, output=Done)
"""Fails at first."""
ONCE = TaskType("once", input=Work, output=Done)
"""Has effects that nobody can check: lost, it is held for a person."""


def executor(downstream: str) -> Executor:
    """The program, over that downstream."""
    app = Executor("trial", version="1")

    @app.lifespan
    @asynccontextmanager
    async def resources() -> AsyncIterator[SqlGuard]:
        async with SqlGuard(downstream) as guard:
            yield guard

    # A receiver that is out of reach for a while is no reason to give up.
    @app.task(ROW, effects="guarded", guards=lambda guard: [guard], max_attempts=1000)
    async def row(input: Work, context: Context[SqlGuard]) -> Done:
        await asyncio.sleep(input.seconds)
        async with context.resources.transaction(context, operation="row") as effect:
            if not effect.already_done:
                await effect.connection.execute(
                    "insert into effects (task_id, value, fencing_token) values ($1, $2, $3)",
                    context.task_id,
                    input.key,
                    context.fencing_token,
                )
        return Done(key=input.key, ordinal=context.ordinal)

    @app.task(THREAD, effects="none")
    def thread(input: Work, context: Context[SqlGuard]) -> Done:
        time.sleep(input.seconds)
        return Done(key=input.key, ordinal=context.ordinal)

    async def pause(input: Work, context: Context[SqlGuard]) -> Done:
        await asyncio.sleep(input.seconds)
        if context.ordinal is not None and context.ordinal <= input.failures:
            raise Retry("not yet", after=0.1)
        return Done(key=input.key, ordinal=context.ordinal)

    app.task(STEADY, effects="idempotent")(pause)
    app.task(SHAKY, effects="idempotent")(pause)
    app.task(ONCE, effects="unguarded")(pause)
    return app


if __name__ == "__main__":
    asyncio.run(run(executor(os.environ[DOWNSTREAM]), load_settings()))
