"""The executor that crash tests arm: its one effect is a row under the SQL guard.

``STRIKE`` arms it, ``DOWNSTREAM`` is the database that it writes to.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import BaseModel

from tenure.cli.drills.strikes import Armed, Strike
from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import load_settings
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.runner import run

STRIKE, DOWNSTREAM = "ARMED_STRIKE", "ARMED_DOWNSTREAM"
BESIDE_THE_WORK = frozenset({FaultPoint.AFTER_INBOX, FaultPoint.AFTER_ACK})
"""Points that taking a message in reaches while its work may be under way already."""


class Row(BaseModel):
    """Input and output: what is written."""

    value: str


WRITE = TaskType("write", input=Row, output=Row)


def executor(
    downstream: str, faults: FaultPoints = NO_FAULTS, *, unending: bool = False
) -> Executor:
    """The program, over a downstream. ``unending``: its work goes on until the process dies."""
    app = Executor("armed", version="1")

    @app.lifespan
    @asynccontextmanager
    async def resources() -> AsyncIterator[SqlGuard]:
        async with SqlGuard(downstream, faults=faults) as guard:
            yield guard

    @app.task(WRITE, effects="guarded", guards=lambda guard: [guard])
    async def write(input: Row, context: Context[SqlGuard]) -> Row:
        if unending:
            await asyncio.Event().wait()
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
    told = os.environ.get(STRIKE)
    strike = Strike.from_json(told) if told else None
    faults = NO_FAULTS if strike is None else Armed(strike)
    # A quick task would else be delivered before a point beside it is reached.
    unending = strike is not None and strike.point in BESIDE_THE_WORK
    app = executor(os.environ[DOWNSTREAM], faults, unending=unending)
    asyncio.run(run(app, load_settings(), faults))


if __name__ == "__main__":
    main()
