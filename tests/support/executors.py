"""Executors against a real coordinator, in this process or in one of their own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tenure.cli.local.ports import LOOPBACK, reserve_port
from tenure.executor import Executor
from tenure.executor.config import ExecutorSettings, load_settings
from tenure.executor.runner import run_until
from tenure.executor.stopping import Stopping
from tests.support.coordinator import Fleet
from tests.support.isolation import BrokerSpace
from tests.support.waiting import eventually

EXECUTOR_TOKEN = "executor-token-0001"


def settings_of(fleet: Fleet, broker: BrokerSpace, folder: Path, **values: Any) -> ExecutorSettings:
    """Settings of an executor of this fleet; it asks often for what messages may have lost."""
    return load_settings(
        **{
            "url": fleet.coordinator.url,
            "token": EXECUTOR_TOKEN,
            "broker_url": broker.url,
            "state_dir": folder,
            "node": "node-1",
            "slots": 4,
            "comparison_seconds": 0.2,
            "drain_seconds": 60.0,
            **values,
        }
    )


class Running:
    """An executor that runs in this process."""

    def __init__(self, app: Executor, settings: ExecutorSettings) -> None:
        self.stopping = Stopping(settings.drain_seconds)
        self.task = asyncio.create_task(run_until(app, settings, self.stopping))


@asynccontextmanager
async def executing(app: Executor, settings: ExecutorSettings) -> AsyncIterator[Running]:
    """An executor for the length of a block; drained at its end."""
    running = Running(app, settings)
    try:
        yield running
        running.stopping.ask()
        await running.task
    finally:
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)


class StatusPages:
    """Where an executor is told to listen, and what it says there."""

    def __init__(self, address: str, http: httpx2.AsyncClient) -> None:
        self.address = address
        self._http = http

    async def get(self, path: str) -> httpx2.Response:
        """``/readyz`` or ``/metrics``."""
        return await self._http.get(f"http://{self.address}{path}")


@asynccontextmanager
async def status_pages() -> AsyncIterator[StatusPages]:
    """An address for the length of a block: hand it in as ``executor_listen``."""
    reservation = reserve_port()
    try:
        async with httpx2.AsyncClient(timeout=60) as http:
            yield StatusPages(f"{LOOPBACK}:{reservation.port}", http)
    finally:
        reservation.release()


async def result(fleet: Fleet, task_id: str) -> Any:
    """The result of a task, once it has ended."""
    found: list[Any] = []

    async def ended() -> bool:
        reply = await fleet.application.get(f"/v1/tasks/{task_id}/result", wait=5)
        assert reply.status_code == 200, reply.text
        found[:] = [reply.json()]
        return found[0]["state"] not in ("open", "held")

    await eventually(ended)
    return found[0]


async def attempts(fleet: Fleet, task_id: str) -> list[Any]:
    """The attempts of a task as people see them."""
    reply = await fleet.application.get(f"/v1/tasks/{task_id}")
    assert reply.status_code == 200, reply.text
    listed = json.loads(reply.text)["attempt_list"]
    assert isinstance(listed, list)
    return listed


async def registered(fleet: Fleet, *node_ids: str) -> None:
    """Wait until the nodes are active."""

    async def active() -> bool:
        reply = await fleet.operator.get("/v1/nodes")
        nodes = {node["node_id"] for node in reply.json()["nodes"] if node["state"] == "active"}
        return set(node_ids) <= nodes

    await eventually(active)
