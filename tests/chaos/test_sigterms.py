"""SIGTERM at random instants: nothing is started twice, and nothing that was acknowledged is lost.

The work is unguarded, so that a second start would be a second effect, and a loss would hold the
task. ``make sigterms`` sends 200.
"""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import asyncpg
import pytest

from tests.support.coordinator import Fleet, fleet
from tests.support.executors import EXECUTOR_TOKEN, registered, result
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying
from tests.support.repository import REPOSITORY
from tests.support.started_app import STARTS

SIGTERMS = int(os.environ.get("TENURE_TEST_SIGTERMS", "4"))
SEED = int(os.environ.get("TENURE_TEST_SEED", "7"))
AT_ONCE = 2
OPEN_TASKS = 12


async def start(
    api: Fleet, broker: BrokerSpace, folder: Path, node: str
) -> asyncio.subprocess.Process:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.started_app",
        cwd=REPOSITORY,
        env={
            **kept,
            STARTS: str(folder / "starts"),
            "TENURE_URL": api.coordinator.url,
            "TENURE_TOKEN": EXECUTOR_TOKEN,
            "TENURE_BROKER_URL": broker.url,
            "TENURE_STATE_DIR": str(folder / node),
            "TENURE_NODE": node,
            "TENURE_SLOTS": "4",
            "TENURE_COMPARISON_SECONDS": "0.5",
            "TENURE_DRAIN_SECONDS": "60",
            "TENURE_LOG_FORMAT": "json",
        },
        stderr=asyncio.subprocess.PIPE,
    )


async def until_registered(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        if b'"event": "registered"' in line:
            return
    raise AssertionError("the executor ended before it registered")


async def ended(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGTERM)
    _, log = await process.communicate()
    assert process.returncode == 0, log.decode()


@pytest.mark.requirement("OPS-03")
async def test_nothing_is_started_twice_and_nothing_acknowledged_is_lost(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    draw = random.Random(SEED)
    left = SIGTERMS
    task_ids: list[str] = []
    async with (
        fleet(database, broker) as api,
        relaying(database.relay_url, broker.url, broker.name_prefix),
    ):

        async def node(name: str) -> None:
            """One name, which restarts take over from each other."""
            nonlocal left
            while left > 0:
                left -= 1
                process = await start(api, broker, tmp_path, name)
                try:
                    await until_registered(process)
                    await asyncio.sleep(draw.uniform(0, 0.5))
                    await ended(process)
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()

        nodes = [asyncio.create_task(node(f"node-{number}")) for number in range(AT_ONCE)]
        await registered(api, "node-0")
        waiting = asyncio.gather(*nodes)
        while not waiting.done():
            if await _open_tasks(api) < OPEN_TASKS:
                task_ids.append(await api.submit(type="work", input={}))
            else:
                await asyncio.wait({waiting}, timeout=0.02)
        await waiting
        last = await start(api, broker, tmp_path, "last")
        try:
            results = [(await result(api, task_id))["state"] for task_id in task_ids]
            await ended(last)
        finally:
            if last.returncode is None:
                last.kill()
                await last.wait()
        assert Counter(results) == {"delivered": len(task_ids)}
        assert len(task_ids) >= SIGTERMS
        assert sorted(_lines(tmp_path / "starts")) == sorted(task_ids), "each was started once"
        owner = await asyncpg.connect(database.owner_url)
        try:
            how = await owner.fetch(
                "select distinct state, coalesce(reason, '') as reason from tenure.attempts"
            )
        finally:
            await owner.close()
    # Each attempt has ended by its executor's own word; what it had not begun, it handed back.
    assert {(row["state"], row["reason"]) for row in how} <= {
        ("delivered", ""),
        ("rejected", "node_draining"),
    }


async def _open_tasks(api: Fleet) -> int:
    reply = await api.operator.get("/v1/tasks", state="open", limit=100)
    return len(reply.json()["tasks"])


def _lines(path: Path) -> list[str]:
    return path.read_text().split()
