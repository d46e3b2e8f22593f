"""`tenure submit --wait` for people: it does not stand there without a word."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from tests.support.coordinator import TOKENS, Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


def environment(api: Fleet) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    operator = next(token for token in TOKENS if token["role"] == "operator")
    return ours | {"TENURE_URL": api.coordinator.url, "TENURE_TOKEN": str(operator["token"])}


async def command(api: Fleet, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure.cli", *words,
        env=environment(api),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_who_waits_for_long_is_told_why_and_whoever_gives_up_what_becomes_of_the_task(
    api: Fleet,
) -> None:
    await api.register()
    await api.register("node-1", types=("another",))  # nobody is left who takes the first type
    waiting = await command(api, "submit", "sha256", "{}", "--wait")
    assert waiting.stderr is not None
    task_id = (await waiting.stderr.readline()).decode().split()[1]
    why = (await waiting.stderr.readline()).decode()
    assert why.startswith("it is waiting: no node runs the type 'sha256': start an executor that")
    waiting.send_signal(signal.SIGINT)
    _, left = await waiting.communicate()
    assert f"task {task_id} goes on" in left.decode()
    assert waiting.returncode == 130
    shown, _ = await (await command(api, "task", "show", task_id)).communicate()
    assert "no node runs the type 'sha256': start an executor that has it" in shown.decode()
