"""``tenure coordinator`` and ``tenure relay`` as an operator runs them: one file, two processes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tenure.cli.exits import Exit
from tenure.cli.local.ports import reserve_port
from tests.support.coordinator import TOKENS
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually


@pytest.fixture
def config(database: FreshDatabase, broker: BrokerSpace, tmp_path: Path) -> Path:
    """A configuration file for both, with every secret in a file of its own."""
    secrets = {
        "broker": broker.url,
        "coordinator-database": database.coordinator_url,
        "relay-database": database.relay_url,
        "tokens.json": json.dumps(TOKENS),
    }
    for name, text in secrets.items():
        (tmp_path / name).write_text(f"{text}\n")
    path = tmp_path / "tenure.toml"
    path.write_text(
        'broker_url_file = "broker"\n'
        f'name_prefix = "{broker.name_prefix}"\n'
        'log_format = "json"\n'
        '[coordinator]\ndatabase_url_file = "coordinator-database"\ntokens_file = "tokens.json"\n'
        '[relay]\ndatabase_url_file = "relay-database"\n'
    )
    return path


@asynccontextmanager
async def process(
    words: list[str], folder: Path, **settings: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """One command, with nothing of Tenure's in the environment but what is given; killed at the end
    of the block when it still runs."""
    kept = {name: value for name, value in os.environ.items() if "TENURE" not in name}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure.cli", *words,
        cwd=folder, env=kept | settings, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def is_ready(port: int) -> bool:
    async with httpx2.AsyncClient() as client:
        try:
            return (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        except httpx2.TransportError:
            return False


async def test_a_process_that_was_asked_to_stop_drains_and_exits_with_0(
    config: Path, tmp_path: Path
) -> None:
    names = {"coordinator": "TENURE_LISTEN", "relay": "TENURE_RELAY_LISTEN"}
    ports = {name: reserve_port() for name in names}
    async with AsyncExitStack() as stack:
        running = {
            name: await stack.enter_async_context(
                process(
                    [name, "--config", str(config)],
                    tmp_path,
                    **{variable: f"127.0.0.1:{ports[name].port}"},
                )
            )
            for name, variable in names.items()
        }
        for port in ports.values():
            await eventually(lambda port=port: is_ready(port.port))
        for number, started in zip((signal.SIGTERM, signal.SIGINT), running.values(), strict=True):
            started.send_signal(number)
        assert [await started.wait() for started in running.values()] == [Exit.DONE, Exit.DONE]
    for port in ports.values():
        port.release()


@pytest.mark.parametrize("name", ["coordinator", "relay"])
async def test_a_process_with_a_wrong_setting_says_it_in_one_line(
    config: Path, tmp_path: Path, name: str
) -> None:
    async with process([name], tmp_path, TENURE_CONFIG=str(config), TENURE_LISTN="x") as started:
        _, said = await started.communicate()
    assert started.returncode == Exit.SETUP
    assert said.decode() == (
        "error: settings_invalid: Unknown settings in the environment: TENURE_LISTN."
        " Did you mean TENURE_LISTEN?\n"
    )
