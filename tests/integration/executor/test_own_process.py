"""An executor as a process of its own, under a real coordinator: drained, and killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator import Fleet, fleet
from tests.support.executors import EXECUTOR_TOKEN, attempts, registered, result
from tests.support.isolation import BrokerSpace, FreshDatabase

PROGRAM = """
import asyncio, os
from pydantic import BaseModel
from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import load_settings
from tenure.executor.runner import run

class In(BaseModel):
    until: str

class Out(BaseModel):
    pass

app = Executor("program", version="1")

@app.task(TaskType("wait", input=In, output=Out), effects="idempotent")
async def wait(input: In, context: Context[None]) -> Out:
    print("began", flush=True)
    while not os.path.exists(input.until):
        await asyncio.sleep(0.05)
    return Out()

asyncio.run(run(app, load_settings()))
"""


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    """Under the shortest terms that a busy machine keeps now and then. Nothing relays its log:
    executors find their work by comparison."""
    terms = {"lease_seconds": 3.0, "clock_tolerance_seconds": 0.1, "node_silence_seconds": 5.0}
    async with fleet(database, broker, **terms) as made:
        yield made


class Started:
    """The program, which is killed at the end of a block."""

    def __init__(self, api: Fleet, broker: BrokerSpace, folder: Path, node: str) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
            "TENURE_URL": api.coordinator.url,
            "TENURE_TOKEN": EXECUTOR_TOKEN,
            "TENURE_BROKER_URL": broker.url,
            "TENURE_STATE_DIR": str(folder / node),
            "TENURE_NODE": node,
            "TENURE_COMPARISON_SECONDS": "0.2",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    async def begins(self) -> None:
        """Wait until its handler has begun."""
        assert self._process.stdout is not None
        assert (await asyncio.to_thread(self._process.stdout.readline)) == "began\n"

    async def ends_by(self, number: signal.Signals) -> tuple[int, str]:
        """Its exit status and its log."""
        self._process.send_signal(number)
        _, log = await asyncio.to_thread(self._process.communicate)
        return self._process.returncode, log


async def submitted(api: Fleet, node: str, until: Path) -> str:
    """A task, once its node is there to declare the type."""
    await registered(api, node)
    return await api.submit(type="wait", input={"until": str(until)})


async def test_a_process_drains_at_sigterm_and_exits_with_zero(
    api: Fleet, broker: BrokerSpace, tmp_path: Path
) -> None:
    with Started(api, broker, tmp_path, "only") as only:
        task_id = await submitted(api, "only", tmp_path)
        assert (await result(api, task_id))["state"] == "delivered"
        code, log = await only.ends_by(signal.SIGTERM)
    assert code == 0, log
    assert '"event": "drained"' in log
    assert EXECUTOR_TOKEN not in log


@pytest.mark.requirement("INC-02")
async def test_the_work_of_a_killed_process_is_done_by_another_under_a_higher_token(
    api: Fleet, broker: BrokerSpace, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    with Started(api, broker, tmp_path, "first") as first:
        task_id = await submitted(api, "first", go_on)
        await first.begins()
        await first.ends_by(signal.SIGKILL)
    go_on.touch()
    with Started(api, broker, tmp_path, "heir"):
        assert (await result(api, task_id))["state"] == "delivered"
    *lost, done = sorted(await attempts(api, task_id), key=ordinal)
    assert ("expired", "first") in {(each["state"], each["node_id"]) for each in lost}
    # Until its silence is noticed the dead process is offered what it cannot take, and on a busy
    # machine a lease so short may run out under a living one.
    assert {each["reason"] for each in lost} <= {"acceptance_timeout", "lease_expired"}
    assert (done["state"], done["node_id"]) == ("delivered", "heir")
    assert all(done["fencing_token"] > each["fencing_token"] for each in lost)


def ordinal(attempt: Any) -> int:
    return int(attempt["ordinal"])
