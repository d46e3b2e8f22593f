"""An executor whose tasks take as long as they are told to, run by ``python -m``."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import load_settings
from tenure.executor.runner import run

FOLDER = "SLOW_FOLDER"


class Long(BaseModel):
    """So many seconds, or until this file is there."""

    seconds: float = 0.0
    until: str = ""


class Nothing(BaseModel):
    """Output."""


SLOW = TaskType("slow", input=Long, output=Nothing)
app = Executor("slow", version="1")


@app.task(SLOW, effects="idempotent")
def slow(input: Long, context: Context[Any]) -> Nothing:
    Path(os.environ[FOLDER], f"{context.attempt_id}.began").touch()
    time.sleep(input.seconds)
    while input.until and not os.path.exists(input.until):
        time.sleep(0.05)
    return Nothing()


if __name__ == "__main__":
    asyncio.run(run(app, load_settings()))
