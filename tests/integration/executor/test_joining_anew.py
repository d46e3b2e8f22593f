"""A process whose node was given up joins anew, with what it could not end."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.executor import Context, Executor, TaskType
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.runner import run_until
from tenure.executor.stopping import Stopping
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import attempts, registered, result, settings_of
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually


class Nothing(BaseModel):
    """Input and output."""


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as made:
        yield made


def running(metrics: ExecutorMetrics) -> float:
    """Handlers of the type that stays, as the node shows them."""
    return float(metrics.running.labels(task_type="stay")._value.get())


async def test_a_thread_that_stays_keeps_its_slot_when_the_process_joins_anew(
    api: Fleet, broker: BrokerSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.executor.runner.REJOIN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr("tenure.executor.work.LEAVING_SECONDS", 0.1)
    may_end, did = threading.Event(), list[str]()
    app = Executor("staying", version="1")

    @app.task(TaskType("stay", input=Nothing, output=Nothing), effects="none")
    def stay(input: Nothing, context: Context[Any]) -> Nothing:
        did.append("stay")
        may_end.wait(300)
        did.append("ended")
        return input

    @app.task(TaskType("next", input=Nothing, output=Nothing), effects="none")
    def after(input: Nothing, context: Context[Any]) -> Nothing:
        did.append("next")
        return input

    metrics, stopping = ExecutorMetrics(), Stopping(10.0)
    settings = settings_of(api, broker, tmp_path, slots=1)
    process = asyncio.create_task(run_until(app, settings, stopping, metrics=metrics))
    try:
        await registered(api, "node-1")
        lost = await api.submit(type="stay", input={})
        await eventually(lambda: did == ["stay"])
        (attempt,) = await attempts(api, lost)
        await api.application.post(f"/v1/tasks/{lost}/cancel", {})
        given_up = {"incarnation": attempt["incarnation"], "gone": True}
        assert (await api.operator.post("/v1/nodes/node-1/drain", given_up)).status_code == 200
        await registered(api, "node-1")
        await eventually(lambda: running(metrics) == 1)
        task_id = await api.submit(type="next", input={})
        may_end.set()
        assert (await result(api, task_id))["state"] == "delivered"
        assert did == ["stay", "ended", "next"]
        stopping.ask()
        await process
    finally:
        may_end.set()
        process.cancel()
        await asyncio.gather(process, return_exceptions=True)
