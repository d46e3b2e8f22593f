"""Whatever ends a test run, its servers end too, and the next run removes what it left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure.cli.local import processes
from tests.support.repository import REPOSITORY

_TEST = """
import asyncio, asyncpg

async def test_that_hangs(database_server):
    connection = await asyncpg.connect(database_server.url)
    folder = await connection.fetchval("show data_directory")
    await connection.close()
    with open(folder + "/postmaster.pid") as file:
        print("server", file.readline().strip(), folder, flush=True)
    await asyncio.Event().wait()
"""


@contextmanager
def hanging_run(tmp_path: Path, test: str = _TEST) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A test run in a temporary folder of its own that hangs in a test, and its server's pid."""
    program = tmp_path / "test_hanging.py"
    program.write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "tests.conftest"]
    command += ["-c", str(REPOSITORY / "pyproject.toml"), str(program)]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "TENURE_TEST_SERVICES": "local", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            assert run.stdout is not None
            output = []
            for line in run.stdout:
                output.append(line)
                if "server " in line:
                    yield run, int(line.partition("server ")[2].split()[0])
                    return
            pytest.fail("the run ended early:\n" + "".join(output))
        finally:
            run.kill()


def sessions(tmp_path: Path) -> list[str]:
    """The folders of runs that are there."""
    base = tmp_path / f"tenure-tests-{os.geteuid()}"
    return [entry.name for entry in base.iterdir() if entry.is_dir()]


async def test_an_interrupted_run_ends_its_servers_and_removes_their_folders(
    tmp_path: Path,
) -> None:
    with hanging_run(tmp_path) as (run, pid):
        assert len(sessions(tmp_path)) == 1
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        run.communicate()
        assert not processes.is_alive(pid)
        assert sessions(tmp_path) == []


async def test_a_killed_run_ends_its_servers_and_the_next_run_removes_their_folders(
    tmp_path: Path,
) -> None:
    with hanging_run(tmp_path) as (run, pid):
        run.kill()
        assert await processes.gone([pid], within_seconds=90)
    left = sessions(tmp_path)
    assert len(left) == 1
    with hanging_run(tmp_path) as (_, _pid):
        assert len(sessions(tmp_path)) == 1
        assert sessions(tmp_path) != left
