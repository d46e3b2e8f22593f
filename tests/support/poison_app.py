"""An executor with a task that ends the process it runs in, run by ``python -m``."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel

from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import load_settings
from tenure.executor.runner import run


class Dose(BaseModel):
    """``poison``: end the process, and leave its number in the folder ``deaths`` under the
    attempt's name; ``until``: unless this file is there."""

    poison: bool = False
    until: str = ""
    deaths: str = ""


class Pid(BaseModel):
    """Which process did it, and what it had opened."""

    pid: int
    opened_by: int


DOSE = TaskType("dose", input=Dose, output=Pid)
app = Executor("pharmacy", version="1")


def is_cured(until: str) -> bool:
    return bool(until) and os.path.exists(until)


def die(note: Path) -> NoReturn:
    note.write_text(str(os.getpid()))
    os._exit(1)


@app.lifespan
@asynccontextmanager
async def resources() -> AsyncIterator[int]:
    yield os.getpid()


@app.task(DOSE, effects="none")
async def swallow(input: Dose, context: Context[Any]) -> Pid:
    await asyncio.sleep(0.05)  # so that others run beside it
    if input.poison and not is_cured(input.until):
        die(Path(input.deaths, context.attempt_id))
    return Pid(pid=os.getpid(), opened_by=context.resources)


if __name__ == "__main__":
    from tests.support import poison_app  # its own module, not __main__: that can be found again

    asyncio.run(run(poison_app.app, load_settings()))
