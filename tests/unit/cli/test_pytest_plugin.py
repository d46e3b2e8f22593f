"""The pytest plugin: it is there after an install, costs nothing, and shows histories."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY

TESTS = """
from tests.support.kit_app import SHIP, Order, Warehouse, app


async def test_delivers(tenure_fleet, request, tmp_path):
    assert request.node.name == "test_delivers"
    async with tenure_fleet(app, resources=Warehouse()) as fleet:
        assert (await fleet.result(await fleet.submit(SHIP, Order(number=17)))).number == 17


async def test_fails(tenure_fleet):
    async with tenure_fleet(app, resources=Warehouse()) as fleet:
        task = await fleet.submit(SHIP, Order(number=17))
        await fleet.expire_lease(task)
        assert (await fleet.result(task)).number == 18
"""
ELSEWHERE = "def test_elsewhere():\n    pass\n"


def pytest_run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """pytest as somebody runs it whose project has no configuration."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_coroutines_run_without_another_plugin_and_failures_tell_the_history(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = pytest_run(tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    told = done.stdout.partition("Tenure: the tasks of this test")[2]
    assert "attempt 1  on node-1  token 4294967297  expired (lease_expired)" in told
    assert "attempt 2  on node-1  token 4294967298  delivered" in told


RAISES = """
from pydantic import BaseModel
from tenure.executor import Executor, TaskType


class Nothing(BaseModel):
    pass


app = Executor("app", version="1")
Break = TaskType("break", input=Nothing, output=Nothing)


@app.task(Break, effects="none", max_attempts=1)
def fails(input, context):
    password = "hunter2"
    raise RuntimeError("it broke")


async def test_fails(tenure_fleet):
    async with tenure_fleet(app, resources=None) as fleet:
        await fleet.result(await fleet.submit(Break, Nothing()))


def test_logs_are_as_they_were():
    import structlog

    assert not structlog.is_configured()
"""


def test_the_log_of_a_handler_that_raises_shows_no_values(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(RAISES)
    done = pytest_run(tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    logged = done.stdout.partition("Captured stdout call")[2]
    assert 'raise RuntimeError("it broke")' in logged
    assert "password = " not in logged, logged


def test_without_the_plugin_other_tests_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ELSEWHERE)
    done = pytest_run(tmp_path, "-p", "no:tenure")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_word_for_the_servers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = pytest_run(tmp_path, TENURE_TEST_SERVERS="cloud")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "TENURE_TEST_SERVERS=cloud is none of memory, local." in done.stderr


def test_to_load_the_plugin_loads_nothing_else() -> None:
    """Whoever has Tenure installed pays for this module in every run of pytest."""
    program = (
        "import sys, pytest, asyncio, inspect; before = set(sys.modules);"
        "import tenure.cli.pytest_plugin; print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['tenure', 'tenure.cli', 'tenure.cli.pytest_plugin']"
