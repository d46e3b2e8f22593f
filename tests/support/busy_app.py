"""An executor that leaves its renewals as little room as it can, run by ``python -m``."""

import asyncio
import os
import time
from typing import Any, Literal

from pydantic import BaseModel

from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import load_settings
from tenure.executor.runner import run

BUSY_SECONDS, EFFECTS = "BUSY_SECONDS", "EFFECTS_FILE"


class What(BaseModel):
    """Input: what to do."""

    do: Literal["block", "spin", "act"] = "spin"


class Ended(BaseModel):
    """Output."""


BLOCK = TaskType("block", input=What, output=Ended)
SPIN = TaskType("spin", input=What, output=Ended)
ACT = TaskType("act", input=What, output=Ended)
app = Executor("busy", version="1")


@app.task(BLOCK, effects="none")
async def block(input: What, context: Context[Any]) -> Ended:
    time.sleep(float(os.environ[BUSY_SECONDS]))  # noqa: ASYNC251 - the event loop is to be blocked
    return Ended()


@app.task(SPIN, effects="none")
def spin(input: What, context: Context[Any]) -> Ended:
    end = time.monotonic() + float(os.environ[BUSY_SECONDS])
    while time.monotonic() < end:
        pass
    return Ended()


@app.task(ACT, effects="idempotent")
def act(input: What, context: Context[Any]) -> Ended:
    """Effect after effect; each notes when it was about to begin."""
    with open(os.environ[EFFECTS], "a", buffering=1, encoding="utf-8") as file:
        while True:
            began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            with context.side_effect("note"):
                file.write(f"{began}\n")
            time.sleep(0.002)


if __name__ == "__main__":
    asyncio.run(run(app, load_settings()))
