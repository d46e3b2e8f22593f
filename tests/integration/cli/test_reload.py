"""``tenure executor --reload``: a changed source is a new start; nothing is lost with the old."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure.cli.reload import Syntax, sources
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import EXECUTOR_TOKEN, attempts, registered, result
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually

PROGRAM = """
import asyncio
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tenure.executor import Context, Executor, TaskType


class In(BaseModel):
    wait_for: str = ""


class Out(BaseModel):
    version: str
    pid: int


app = Executor("jobs", version="1")


@app.task(TaskType("job", input=In, output=Out), effects="none")
async def job(input: In, context: Context[Any]) -> Out:
    if input.wait_for:
        Path(input.wait_for + ".began").touch()
        while not os.path.exists(input.wait_for):
            await asyncio.sleep(0.05)
    return Out(version="VERSION", pid=os.getpid())
"""


class Developer:
    """Somebody who edits ``jobs.py`` while the command runs."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.process = process
        self.said = ""

    def write(self, version: str) -> None:
        write(self.folder, version)

    def break_it(self) -> None:
        save(self.folder, "def :\n")

    async def listen(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.said += line.decode()

    async def hears(self, words: str, times: int = 1) -> None:
        await eventually(lambda: self.said.count(words) >= times)


def write(folder: Path, version: str) -> None:
    save(folder, PROGRAM.replace("VERSION", version))


def save(folder: Path, text: str) -> None:
    """At once, as editors do: half a file would be another change."""
    part = folder / "jobs.part"
    part.write_text(text, encoding="utf-8")
    part.replace(folder / "jobs.py")


@asynccontextmanager
async def developing(api: Fleet, broker: BrokerSpace, folder: Path) -> AsyncIterator[Developer]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure.cli", "executor", "jobs:app", "--reload",
        "--node", "desk", "--slots", "4",
        cwd=folder,
        env=kept | {
            "TENURE_URL": api.coordinator.url,
            "TENURE_TOKEN": EXECUTOR_TOKEN,
            "TENURE_BROKER_URL": broker.url,
            "TENURE_COMPARISON_SECONDS": "0.2",
            "TENURE_DRAIN_SECONDS": "120",
        },
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    developer = Developer(folder, process)
    listening = asyncio.create_task(developer.listen())
    try:
        yield developer
    finally:
        if process.returncode is None:
            process.kill()  # the executor ends with it
        await process.wait()
        await listening


async def output(api: Fleet) -> Any:
    return (await result(api, await api.submit(type="job", input={})))["output"]


@pytest.mark.timeout(180)
async def test_a_changed_source_is_a_new_start_and_what_runs_is_finished_first(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    write(tmp_path, "one")
    async with (
        fleet(database, broker) as api,
        developing(api, broker, tmp_path) as developer,
    ):
        await registered(api, "desk")
        first = await output(api)
        assert first["version"] == "one"
        long = await api.submit(type="job", input={"wait_for": str(tmp_path / "go")})
        await eventually((tmp_path / "go.began").exists)
        # What is no Python is told of in one line, and what runs goes on.
        developer.break_it()
        await developer.hears("jobs.py, line 1: invalid syntax; the executor goes on as it was")
        assert (await output(api)) == first
        developer.write("two")
        await developer.hears("draining the executor")
        later = await api.submit(type="job", input={})
        (tmp_path / "go").touch()
        assert (await result(api, long))["output"] == first
        assert len(await attempts(api, long)) == 1
        assert (await result(api, later))["output"]["version"] == "two"
        assert developer.process.returncode is None
        developer.process.send_signal(signal.SIGTERM)
        assert await developer.process.wait() == 0


@pytest.mark.timeout(180)
async def test_what_cannot_begin_waits_for_a_change(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    save(tmp_path, "import nothing_of_that_name\n")
    async with (
        fleet(database, broker) as api,
        developing(api, broker, tmp_path) as developer,
    ):
        await developer.hears("the executor ended with status 4; waiting for a change")
        developer.write("one")
        assert (await _declared(api))["version"] == "one"
        developer.process.send_signal(signal.SIGINT)
        assert await developer.process.wait() == 0


async def _declared(api: Fleet) -> Any:
    await registered(api, "desk")
    return await output(api)


def test_only_files_that_cannot_be_read_as_python_are_at_fault(tmp_path: Path) -> None:
    good, bad, zero = (tmp_path / name for name in ("good.py", "bad.py", "zero.py"))
    good.write_text("a = 1\n")
    bad.write_text("a = 1\nb = (\n")
    zero.write_bytes(b"a = '\0'\n")
    syntax = Syntax()

    def fault(*files: Path) -> str | None:
        syntax.look_at(files)
        return syntax.fault

    assert fault(good) is None
    assert "bad.py, line 2" in str(fault(bad, zero))
    bad.unlink()
    assert "zero.py" in str(fault(bad, zero))
    zero.write_text("a = 1\n")
    assert fault(zero) is None


def test_the_folder_is_the_working_directory_or_where_the_package_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "parts_of_it"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text("raise SystemExit\n")
    assert sources("parts_of_it.jobs:app") == (tmp_path, package / "jobs.py")
    folder, file = sources("tenure.cli.reload:app")
    assert file.name == "reload.py"
    assert folder.name == "tenure"
