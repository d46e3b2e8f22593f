"""The executor that crash tests arm: its one effect is a row under the SQL guard.

``STRIKE`` arms it, ``DOWNSTREAM`` is the database that it writes to.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import BaseModel

from tenure.cli.drills.strikes import Armed, Strike
from tenure.contract.faultpoints import NO_FAULTS, FaultPoints
from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import load_settings
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.runner import run

STRIKE, DOWNSTREAM = "ARMED_STRIKE", "ARMED_DOWNSTREAM"


class Row(BaseModel):
    """Input and output: what is written."""

    value: str


WRITE = TaskType("write", input=Row, output=Row)


def executor(downstream: str, faults: FaultPoints = NO_FAULTS) -> Executor:
    """The program, over a downstream."""
    app = Executor("armed", version="1")

    @app.lifespan
    @asynccontextmanager
    async def resources() -> AsyncIterator[SqlGuard]:
        async with SqlGuard(downstream, faults=faults) as guard:
            yield guard

    @app.task(WRITE, effects="guarded", guards=lambda guard: [guard])
    async def write(input: Row, context: Context[SqlGuard]) -> Row:
        async with context.resources.transaction(context, operation="row") as effect:
            if not effect.already_done:
                await effect.connection.execute(
                    "insert into effects (task_id, value) values ($1, $2)",
                    context.task_id,
                    input.value,
                )
        return input

    return app


def main() -> None:
    """Run it as a process, armed as the environment says."""
    strike = os.environ.get(STRIKE)
    faults = Armed(Strike.from_json(strike)) if strike else NO_FAULTS
    asyncio.run(run(executor(os.environ[DOWNSTREAM], faults), load_settings(), faults))


if __name__ == "__main__":
    main()
