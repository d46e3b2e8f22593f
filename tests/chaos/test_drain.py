"""A drain with every slot taken: what runs ends under renewals, and nothing is handed out again.

``make trials-as-stated``: at the figures of the reported fault, ten tasks of eight seconds, SIGTERM
after two, a limit of twenty.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import aio_pika
import asyncpg
import pytest

from tenure.contract.ids import IncarnationId, TenantId
from tenure.contract.topology import node_queue
from tests.support.as_stated import AS_STATED
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import EXECUTOR_TOKEN, attempts, registered, result
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying
from tests.support.repository import REPOSITORY
from tests.support.waiting import eventually

RUNNING, LATER = 10, 5
WORK_SECONDS, AFTER_SECONDS, LIMIT_SECONDS = 8.0, 2.0, 20.0
LEASE = {"lease_seconds": 8.0, "clock_tolerance_seconds": 0.2}


def start(api: Fleet, broker: BrokerSpace, folder: Path) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.slow_app"],
        cwd=REPOSITORY,
        env={
            **kept,
            "SLOW_FOLDER": str(folder),
            "TENURE_URL": api.coordinator.url,
            "TENURE_TOKEN": EXECUTOR_TOKEN,
            "TENURE_BROKER_URL": broker.url,
            "TENURE_STATE_DIR": str(folder / "state"),
            "TENURE_NODE": "drained",
            "TENURE_SLOTS": str(RUNNING),
            "TENURE_DRAIN_SECONDS": str(LIMIT_SECONDS) if AS_STATED else "120",
            "TENURE_LOG_LEVEL": "warning",
        },
    )


def began(folder: Path) -> list[str]:
    """Attempts whose handler was begun."""
    return sorted(path.name for path in folder.glob("*.began"))


@pytest.mark.requirement("OPS-03")
@pytest.mark.timeout(180)
async def test_ten_that_run_at_sigterm_are_delivered_once_and_nothing_new_is_started(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    """T10: no new task started, renewals go on, ten deliveries, none handed out again, exit code 0
    before the limit, queue and leases empty."""
    input = {"seconds": WORK_SECONDS} if AS_STATED else {"until": str(tmp_path / "go")}
    owner = await asyncpg.connect(database.owner_url)
    loop = asyncio.get_running_loop()
    async with (
        fleet(database, broker, **LEASE) as api,
        relaying(database.relay_url, broker.url, broker.name_prefix),
    ):
        process = start(api, broker, tmp_path)
        try:
            await registered(api, "drained")
            tasks = [await api.submit(type="slow", input=input) for _ in range(RUNNING)]
            await eventually(lambda: len(began(tmp_path)) == RUNNING)
            (node,) = (await api.operator.get("/v1/nodes")).json()["nodes"]
            if AS_STATED:
                await asyncio.sleep(AFTER_SECONDS)
            process.send_signal(signal.SIGTERM)
            asked_at = loop.time()

            async def draining() -> bool:
                (now,) = (await api.operator.get("/v1/nodes")).json()["nodes"]
                return bool(now["state"] == "draining")

            await eventually(draining)
            since = await owner.fetchval("select clock_timestamp()")
            later = [await api.submit(type="slow", input=input) for _ in range(LATER)]

            async def all_renewed() -> bool:
                renewed = await owner.fetchval(
                    "select count(distinct attempt_id) from tenure.renewals where at > $1", since
                )
                return bool(renewed == RUNNING)

            await eventually(all_renewed)
            (tmp_path / "go").touch()
            assert await asyncio.to_thread(process.wait) == 0
            if AS_STATED:
                assert loop.time() - asked_at < LIMIT_SECONDS
        finally:
            process.kill()
            process.wait()
        assert len(began(tmp_path)) == RUNNING, "nothing was begun that had not been"
        for task_id in tasks:
            assert (await result(api, task_id))["state"] == "delivered"
            assert len(await attempts(api, task_id)) == 1
        assert [await attempts(api, task_id) for task_id in later] == [[]] * LATER
        assert await owner.fetchval("select count(*) from tenure.reservations") == 0
        deliveries = "select count(*) from tenure.receipts where admitted"
        assert await owner.fetchval(deliveries) == RUNNING
        await _is_empty(broker, node["incarnation"])
    await owner.close()


async def _is_empty(broker: BrokerSpace, incarnation: str) -> None:
    """The node's queue holds nothing, or is gone with it."""
    name = node_queue(TenantId("default"), IncarnationId(incarnation), broker.name_prefix)
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        try:
            queue = await channel.declare_queue(name, passive=True)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            return
        assert queue.declaration_result.message_count == 0
