"""An executor that writes down what it starts, run by ``python -m``: one line for each start."""

import asyncio
import os
import random
from typing import Any

from pydantic import BaseModel

from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import load_settings
from tenure.executor.runner import run

STARTS = "STARTED_FILE"


class Nothing(BaseModel):
    """Input and output."""


WORK = TaskType("work", input=Nothing, output=Nothing)
app = Executor("started", version="1")


@app.task(WORK, effects="unguarded")
async def work(input: Nothing, context: Context[Any]) -> Nothing:
    descriptor = os.open(os.environ[STARTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{context.task_id}\n".encode())
    os.close(descriptor)
    await asyncio.sleep(random.uniform(0, 0.2))
    return Nothing()


if __name__ == "__main__":
    asyncio.run(run(app, load_settings()))
