"""``tenure up`` for real: whole stacks, started and ended as a person does it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest

from tenure.cli.exits import Exit
from tenure.cli.local import processes
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import asyncio
from pathlib import Path
from pydantic import BaseModel
from tenure.contract.tasktype import TaskType
from tenure.executor import Context, Executor

class Text(BaseModel):
    text: str
    until: str = ""

Echo = TaskType("echo", input=Text, output=Text)
app = Executor("echo", version="1")

@app.task(Echo)
async def echo(input: Text, context: Context[None]) -> Text:
    if input.text == "fail":
        raise RuntimeError("asked to fail")
    while input.until and not Path(input.until).exists():
        await asyncio.sleep(0.05)
    return input
"""
LIFESPAN_FAILS = """
@app.lifespan
def resources():
    raise RuntimeError("broken program")
"""


def environment(**settings: str) -> dict[str, str]:
    """Ours without any setting of Tenure, plus these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return kept | settings


class Up:
    """One ``tenure up`` in a folder, and commands in the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, **settings: str) -> Self:
        """Start it and wait for its ready line."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tenure.cli", "up", "--executor", "program:app", "--slots", "2",
            cwd=self.folder,
            env=environment(**settings),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.lines.clear()
        while line := (await self._process.stdout.readline()).decode():
            self.lines.append(line)
            if line.startswith("stack") and "| ready after" in line:
                self._reader = asyncio.create_task(self._read(self._process.stdout))
                return self
        raise AssertionError("it ended while starting:\n" + "".join(self.lines))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.lines.append(line.decode())

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def end(self, which: signal.Signals = signal.SIGINT) -> int:
        """Signal it, wait for its end, return its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(which)
        code = await self._process.wait()
        await self._reader
        return code

    async def run(self, *words: str, **settings: str) -> tuple[int, str, str]:
        """Run a command of Tenure in the folder: exit code, output, errors."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tenure.cli", *words,
            cwd=self.folder,
            env=environment(**settings),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def read(self, *words: str) -> Any:
        """The JSON that a reading command prints."""
        code, out, err = await self.run(*words, "-o", "json")
        assert (code, err) == (0, "")
        return json.loads(out)

    def owned(self) -> list[int]:
        """Every process that works in the stack's folder, besides ``tenure up`` itself."""
        mark = str(self.folder)
        return [
            pid
            for pid in processes.all_pids()
            if pid != self.pid
            and processes.is_alive(pid)
            and (mark in " ".join(processes.command_line(pid)) or _works_in(pid, self.folder))
        ]


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(folder)
    except OSError:
        return False


@pytest.fixture
async def ups(tmp_path: Path) -> AsyncIterator[list[Up]]:
    """Two folders with a program each; whatever was started there is ended."""
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "program.py").write_text(PROGRAM)
        made.append(Up(folder))
    yield made
    for up in made:
        if up._process is not None and up._process.returncode is None:
            up._process.kill()
            await up._process.wait()


async def test_a_stack_serves_drains_and_finds_its_data_again(ups: list[Up]) -> None:
    up = ups[0]
    await up.start()
    connection = up.folder / ".tenure" / "connection.json"
    assert connection.stat().st_mode & 0o777 == 0o600

    code, out, err = await up.run("submit", "echo", '{"text": "hello"}', "--wait")
    assert (code, json.loads(out)) == (0, {"text": "hello", "until": ""})
    task_id = err.split()[1]
    code, out, _ = await up.run("submit", "echo", '{"text": "a"}', "--key", "k")
    again = await up.run("submit", "echo", '{"text": "a"}', "--key", "k")
    assert (code, again[1]) == (0, out)
    code, _, err = await up.run("submit", "echo", '{"text": "b"}', "--key", "k")
    assert (code, err.split(":")[1].strip()) == (Exit.REFUSED, "idempotency_conflict")
    code, _, err = await up.run("submit", "no-such-type", "{}")
    assert (code, err.split(":")[1].strip()) == (Exit.REFUSED, "unknown_task_type")
    code, _, err = await up.run("task", "list", TENURE_URL="http://127.0.0.1:1", TENURE_TOKEN="x")
    assert code in (Exit.UNREACHABLE, Exit.SETUP)

    nodes = (await up.read("node", "list"))["nodes"]
    assert [(node["node_id"], node["state"], node["slots"]) for node in nodes] == [
        ("executor", "active", 2)
    ]
    assert (await up.read("outbox", "status"))["head"] > 0
    tasks = (await up.read("task", "list"))["tasks"]
    assert task_id in {task["task_id"] for task in tasks}
    assert {row["state"] for row in await up.read("migrate", "status")} == {"applied"}

    verdicts = {one["check"]: one["verdict"] for one in await up.read("doctor")}
    assert verdicts["executor token"] == "ok"

    # A second one in the same folder is noticed and disturbs nothing.
    code, _, err = await up.run("up")
    assert code == Exit.SETUP
    assert err.startswith("error: local_state_in_use:")

    # Ctrl-C while a task runs: it is finished first.
    code, out, _ = await up.run("submit", "echo", '{"text": "last", "until": "go"}')
    last = out.strip()
    while (await up.read("task", "show", last))["phase"] != "running":
        pass
    ending = asyncio.create_task(up.end())
    await eventually(lambda: any("| draining executors" in line for line in up.lines))
    (up.folder / "go").touch()
    assert await ending == 0
    await eventually(lambda: not up.owned())  # helpers of the broker end after it
    # That was no refusal in the log, which would look as if something were wrong.
    assert not [line for line in up.lines if "forbidden_role" in line]
    assert "stopped" in up.lines[-1]

    await up.start()
    view = await up.read("task", "show", last)
    assert (view["state"], view["output"]["text"]) == ("delivered", "last")
    assert (await up.read("task", "show", task_id))["state"] == "delivered"
    assert await up.end(signal.SIGTERM) == 0
    await eventually(lambda: not up.owned())  # helpers of the broker end after it


async def test_two_stacks_work_side_by_side_and_restart_what_dies(ups: list[Up]) -> None:
    # Work that was given to a node just before it died waits for the end of that lease.
    await asyncio.gather(*(up.start(TENURE_LEASE_SECONDS="8") for up in ups))
    urls = {
        json.loads((up.folder / ".tenure" / "connection.json").read_text())["url"] for up in ups
    }
    assert len(urls) == 2

    for number, up in enumerate(ups):
        code, out, _ = await up.run("submit", "echo", json.dumps({"text": str(number)}), "--wait")
        assert (code, json.loads(out)["text"]) == (0, str(number))

    # Whatever is killed comes back, and work goes on.
    up = ups[0]
    for name in ("coordinator", "relay", "executor"):
        (victim,) = [
            pid for pid in processes.children_of(up.pid) if name in processes.command_line(pid)
        ]
        os.kill(victim, signal.SIGKILL)
    words = ("submit", "echo", '{"text": "after"}', "--key", "after", "--wait")
    code, out, err = await up.run(*words)
    while code == Exit.UNREACHABLE:  # the command gives up sooner than a restart may take
        code, out, err = await up.run(*words)
    assert (code, err.count("error")) == (0, 0)
    assert json.loads(out)["text"] == "after"

    # Killed itself, it leaves nobody behind, and the next start finds the data.
    os.kill(up.pid, signal.SIGKILL)
    await up.end()
    await eventually(lambda: not up.owned())
    await up.start()
    tasks = (await up.read("task", "list", "--state", "delivered"))["tasks"]
    assert len(tasks) == 2
    assert await asyncio.gather(*(each.end() for each in ups)) == [0, 0]


@pytest.mark.parametrize(
    ("program", "settings", "said"),
    [
        ("raise RuntimeError('no luck')", {}, "application_broken: importing program failed: Ru"),
        ("from tenure.executor import Executor\napp = Executor('jobs', version='1')", {},
         "invalid_declaration: executor 'jobs' has no handlers"),
        ("app = 1", {}, "usage: 'program:app' is no Executor"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", {},
         "local_process_failed: program:app: the import was ended by SIGSEGV"),
        (PROGRAM, {"TENURE_CONCURRENCY": "other=1"},
         "invalid_declaration: TENURE_CONCURRENCY names 'other'"),
        (PROGRAM, {"TENURE_LEASE_SECONDS": "long"},
         "settings_invalid: The settings cannot be used: TENURE_LEASE_SECONDS"),
        (PROGRAM, {"TENURE_RELAY_MAX_IN_FLIGHT": "0"},
         "settings_invalid: The settings cannot be used: TENURE_RELAY_MAX_IN_FLIGHT"),
    ],
)  # fmt: skip
async def test_what_would_end_a_process_at_once_is_said_before_a_server_starts(
    tmp_path: Path, program: str, settings: dict[str, str], said: str
) -> None:
    up = Up(tmp_path)
    (tmp_path / "program.py").write_text(program)
    code, out, err = await up.run("up", "--executor", "program:app", **settings)
    assert code == (Exit.USAGE if said.startswith("usage") else Exit.SETUP)
    assert err.splitlines()[-1].startswith(f"error: {said}")
    assert out == ""
    assert not (tmp_path / ".tenure").exists()


async def test_a_client_that_is_made_while_a_module_is_imported_keeps_nothing_from_starting(
    ups: list[Up],
) -> None:
    up = ups[0]
    more = "from tenure.client import Client\nclient = Client.from_environment()\n"
    (up.folder / "program.py").write_text(PROGRAM + more)
    await up.start()
    assert await up.end() == 0


async def test_an_executor_that_cannot_start_ends_the_start_with_its_log(ups: list[Up]) -> None:
    up = ups[0]
    (up.folder / "program.py").write_text(PROGRAM + LIFESPAN_FAILS)
    code, out, err = await up.run("up", "--executor", "program:app")
    assert code == Exit.SETUP
    assert "broken program" in err
    assert err.splitlines()[-1].startswith("error: local_process_failed: executor")
    assert "stack       | stopping postgres" in out
