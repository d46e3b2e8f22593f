"""Handlers that never end do not keep the process of ``tenure executor`` from ending."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.coordinator import fleet
from tests.support.executors import EXECUTOR_TOKEN, registered
from tests.support.isolation import BrokerSpace, FreshDatabase

PROGRAM = """
import asyncio, time
from concurrent.futures import ThreadPoolExecutor
from pydantic import BaseModel
from tenure.executor import Context, Executor, TaskType

class Nothing(BaseModel):
    pass

app = Executor("stubborn", version="1")

def of(name: str) -> TaskType[Nothing, Nothing]:
    return TaskType(name, input=Nothing, output=Nothing)

@app.task(of("coroutine"), effects="idempotent")
async def coroutine(input: Nothing, context: Context[None]) -> Nothing:
    print("began", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

@app.task(of("aside"), effects="idempotent")
async def aside(input: Nothing, context: Context[None]) -> Nothing:
    print("began", flush=True)
    await asyncio.gather(*(asyncio.to_thread(time.sleep, 3600) for _ in range(100)))
    return input

@app.task(of("thread"), effects="idempotent")
def thread(input: Nothing, context: Context[None]) -> Nothing:
    print("began", flush=True)
    time.sleep(3600)
    return input

@app.task(of("pool"), effects="idempotent")
def pool(input: Nothing, context: Context[None]) -> Nothing:
    print("began", flush=True)
    ThreadPoolExecutor(1).submit(time.sleep, 3600).result()
    return input
"""
KINDS = ("coroutine", "aside", "thread", "pool")


@pytest.mark.requirement("OPS-03")
async def test_what_never_ends_is_handed_back_and_ends_with_the_process(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(PROGRAM, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    async with fleet(database, broker) as api:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tenure.cli", "executor", "jobs:app", "--node", "stubborn",
            "--slots", "4",
            cwd=tmp_path,
            env=kept | {
                "TENURE_URL": api.coordinator.url,
                "TENURE_TOKEN": EXECUTOR_TOKEN,
                "TENURE_BROKER_URL": broker.url,
                "TENURE_STATE_DIR": str(tmp_path),
                "TENURE_COMPARISON_SECONDS": "0.2",
                "TENURE_DRAIN_SECONDS": "0.1",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            await registered(api, "stubborn")
            for kind in KINDS:
                await api.submit(type=kind, input={})
                assert await process.stdout.readline() == b"began\n"
            process.send_signal(signal.SIGTERM)
            _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, said.decode()
    assert "what handlers left running ends with the process" in said.decode()
