"""Authority of an executor that is busy, and of one that was stopped."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.armed import stopped
from tests.support.busy_app import BUSY_SECONDS, EFFECTS
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import EXECUTOR_TOKEN, attempts, registered, result
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.repository import REPOSITORY
from tests.support.waiting import eventually

LEASE_SECONDS = 6.0


@asynccontextmanager
async def busy(api: Fleet, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program in a process of its own, with its log on a pipe."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.busy_app",
        cwd=REPOSITORY,
        env={
            **kept,
            BUSY_SECONDS: str(LEASE_SECONDS + 2),
            EFFECTS: str(folder / "effects"),
            "TENURE_URL": api.coordinator.url,
            "TENURE_TOKEN": EXECUTOR_TOKEN,
            "TENURE_NO_BROKER": "true",
            "TENURE_STATE_DIR": str(folder),
            "TENURE_NODE": "busy",
            "TENURE_SLOTS": "4",
            "TENURE_DRAIN_SECONDS": "0",
            "TENURE_LOG_FORMAT": "json",
        },
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.requirement("LEASE-06")
@pytest.mark.requirement("LEASE-09")
async def test_renewals_survive_a_blocked_event_loop_and_a_saturated_processor(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    """For longer than a lease: three threads that never rest, and a coroutine that never yields."""
    terms = {"lease_seconds": LEASE_SECONDS, "clock_tolerance_seconds": 0.2}
    async with fleet(database, broker, **terms) as api, busy(api, tmp_path):
        await registered(api, "busy")
        task_ids = [await api.submit(type="spin", input={}) for _ in range(3)]
        task_ids.append(await api.submit(type="block", input={}))
        ended = await asyncio.gather(*(result(api, task_id) for task_id in task_ids))
        tried = [len(await attempts(api, task_id)) for task_id in task_ids]
    assert [each["state"] for each in ended] == ["delivered"] * 4
    assert tried == [1] * 4, "no lease ran out"


@pytest.mark.requirement("LEASE-09")
@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux counts suspended time")
async def test_what_was_stopped_beyond_its_lease_begins_nothing_when_it_goes_on(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    terms = {"lease_seconds": 3.0, "clock_tolerance_seconds": 0.2}
    async with fleet(database, broker, **terms) as api, busy(api, tmp_path) as process:
        await registered(api, "busy")
        task_id = await api.submit(type="act", input={})
        await eventually(lambda: effects.exists() and len(_lines(effects)) > 20)
        os.kill(process.pid, signal.SIGSTOP)
        await stopped(process.pid)
        at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

        async def expired() -> bool:
            return bool((await attempts(api, task_id))[0]["state"] == "expired")

        await eventually(expired)
        # Or the same executor, awake, might begin the next attempt before it is looked at.
        await api.application.post(f"/v1/tasks/{task_id}/cancel")
        os.kill(process.pid, signal.SIGCONT)
        assert process.stderr is not None
        while b'"event": "lease_lost"' not in (line := await process.stderr.readline()):
            assert line, "the loss of the lease is said"
        written = _lines(effects)
    assert len(written) > 20
    assert max(map(int, written)) < at, "every effect had begun before the stop"


def _lines(path: Path) -> list[str]:
    return path.read_text().split()
