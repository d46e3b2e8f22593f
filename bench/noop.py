"""Tenure's side: ``tenure executor bench.noop:app``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import BaseModel

from bench.records import Writer
from tenure.contract.tasktype import TaskType
from tenure.executor import Context, Executor


class Sent(BaseModel):
    """``sent``: nanoseconds of the monotonic clock."""

    sent: int


class Nothing(BaseModel):
    """No output."""


Noop = TaskType("bench.noop", input=Sent, output=Nothing)
app = Executor("noop", version="1.0")


@app.lifespan
@asynccontextmanager
async def resources() -> AsyncIterator[Writer]:
    """The file that the handlers append to."""
    yield Writer()


@app.task(Noop, effects="none")
async def noop(input: Sent, context: Context[Writer]) -> Nothing:
    """Nothing but the record."""
    context.resources.write(input.sent)
    return Nothing()
