"""The examples' executors as their users run them: ``tenure executor PLACE``, each in a process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.coordinator import Fleet
from tests.support.executors import EXECUTOR_TOKEN, registered
from tests.support.isolation import BrokerSpace
from tests.support.repository import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
STRUCK_AT, STRUCK_SIGNS, STRIKE = "STRUCK_AT", "STRUCK_SIGNS", "STRUCK_BY"
"""Variables of those that are struck: tests/support/struck_*.py."""


@asynccontextmanager
async def executor_process(
    place: str, fleet: Fleet, broker: BrokerSpace, folder: Path, node: str, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The executor at ``place`` (``module:name``), once it is registered; killed at the end of the
    block."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("tenure"), "executor", place,
        cwd=EXAMPLES,
        env={
            **kept,
            "PYTHONPATH": str(REPOSITORY),  # some are struck: tests/support/struck_*.py
            "TENURE_URL": fleet.coordinator.url,
            "TENURE_TOKEN": EXECUTOR_TOKEN,
            "TENURE_BROKER_URL": broker.url,
            "TENURE_STATE_DIR": str(folder / node),
            "TENURE_NODE": node,
            "TENURE_SLOTS": "1",
            "TENURE_COMPARISON_SECONDS": "0.2",
            **variables,
        },
    )  # fmt: skip
    try:
        await registered(fleet, node)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def quarantine(fleet: Fleet, *nodes: str) -> None:
    """As an operator does with a node that is not what it should be: what it had is another's."""
    for node in nodes:
        reply = await fleet.operator.post(
            f"/v1/nodes/{node}/quarantine", {"reason": "it is silent"}
        )
        assert reply.status_code == 200, reply.text
