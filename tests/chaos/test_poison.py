"""A task that ends every process it runs in, among good ones: only it is held."""

import asyncio
import math
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure.contract.codes import Reason
from tenure.coordinator.core.outcomes import LOSSES_OF_A_DEATH_ALONE, LOSSES_UNTIL_HELD
from tests.support.as_stated import AS_STATED
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import EXECUTOR_TOKEN, attempts, registered, result
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying
from tests.support.repository import REPOSITORY

LEASE = {
    "lease_seconds": 4.0,
    "clock_tolerance_seconds": 0.2,
    "node_silence_seconds": 4.0,
    "retry_base_seconds": 0.1,
}
GOOD = 200 if AS_STATED else 30
NODES = ("one", "two", "three") if AS_STATED else ("one", "two")


@asynccontextmanager
async def restarted(
    api: Fleet, broker: BrokerSpace, folder: Path, node: str
) -> AsyncIterator[list[int]]:
    """An executor process that is started again whenever it ends; its pids so far."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    pids: list[int] = []
    running: list[asyncio.subprocess.Process] = []

    async def keep_running() -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.support.poison_app",
                cwd=REPOSITORY,
                env={
                    **kept,
                    "TENURE_URL": api.coordinator.url,
                    "TENURE_TOKEN": EXECUTOR_TOKEN,
                    "TENURE_BROKER_URL": broker.url,
                    "TENURE_STATE_DIR": str(folder / node),
                    "TENURE_NODE": node,
                    "TENURE_SLOTS": "4",
                    "TENURE_COMPARISON_SECONDS": "0.2",
                    "TENURE_LOG_LEVEL": "error",
                },
            )
            running[:] = [process]
            pids.append(process.pid)
            await process.wait()

    keeping = asyncio.create_task(keep_running())
    try:
        yield pids
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        for process in running:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def view(api: Fleet, task_id: str) -> Any:
    return (await api.operator.get(f"/v1/tasks/{task_id}")).json()


@pytest.mark.requirement("STATE-05")
@pytest.mark.timeout(600)
async def test_only_the_task_that_ends_its_processes_is_held(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    """T11 and T21: what runs beside it is done, by messages as by comparison. 200 good ones and
    three executors with ``make trials-as-stated``."""
    cured, deaths = tmp_path / "cured", tmp_path / "deaths"
    deaths.mkdir()
    async with (
        fleet(database, broker, **LEASE) as api,
        relaying(database.relay_url, broker.url, broker.name_prefix),
        AsyncExitStack() as executors,
    ):
        processes = [
            await executors.enter_async_context(restarted(api, broker, tmp_path, node))
            for node in NODES
        ]
        await registered(api, *NODES)
        good = [await api.submit(type="dose", input={}) for _ in range(GOOD // 2)]
        poison = {"poison": True, "until": str(cured), "deaths": str(deaths)}
        bad = await api.submit(type="dose", input=poison)
        good += [await api.submit(type="dose", input={}) for _ in range(GOOD // 2)]
        results = await asyncio.gather(*(result(api, task_id) for task_id in good))
        assert [each["state"] for each in results] == ["delivered"] * GOOD
        held = await _held(api, bad)
        assert held["reason"] == Reason.LOST_REPEATEDLY
        tried = await lost_or_died(api, bad)
        weights = [WEIGHTS[each["reason"]] for each in tried]
        assert held["losses"] == sum(weights)
        assert sum(weights[:-1]) < LOSSES_UNTIL_HELD <= sum(weights), "not sooner, and not later"
        # Three deaths alone after the first loss, where nothing else was lost: a busy machine may
        # lose a lease besides, which counts one.
        lost = weights.count(1)
        assert weights.count(3) == math.ceil((LOSSES_UNTIL_HELD - lost) / 3)
        pids = [pid for each in processes for pid in each]
        died_beside_others = [
            each for each in tried if (pid := died(deaths, each)) is not None and pid in pids
        ]
        assert died_beside_others in ([], tried[:1]), "from its first loss on it ran alone"
        assert len(pids) == len(NODES) + len(died_beside_others)
        assert all(died(deaths, each) for each in tried if each["reason"] == Reason.DIED_ALONE)
        # A person may let it go on once it is cured.
        cured.touch()
        await api.operator.post(f"/v1/tasks/{bad}/retry")
        output = (await result(api, bad))["output"]
        lost_again = (await lost_or_died(api, bad))[len(tried) :]
    assert output["opened_by"] == output["pid"]
    assert (output["pid"] in pids) is (lost_again == []), "what is forgiven runs in the executor"


WEIGHTS = {
    Reason.DIED_ALONE: LOSSES_OF_A_DEATH_ALONE,
    Reason.LEASE_EXPIRED: 1,
    Reason.AUTHORITY_LOST: 1,
}
"""By the reasons of attempts, what each counts of the losses after which a task is held."""


async def lost_or_died(api: Fleet, task_id: str) -> list[Any]:
    """The attempts that a node had and did not end well, in order."""
    listed = sorted(await attempts(api, task_id), key=lambda each: int(each["ordinal"]))
    return [each for each in listed if each["state"] in ("expired", "failed")]


def died(deaths: Path, attempt: Any) -> int | None:
    """The process that the attempt has ended, by its own note."""
    note = deaths / attempt["attempt_id"]
    return int(note.read_text()) if note.exists() else None


async def _held(api: Fleet, task_id: str) -> Any:
    while (found := await view(api, task_id))["state"] != "held":
        await api.application.get(f"/v1/tasks/{task_id}/result", wait=1)
    return found
