"""How a process ends that cannot start, as docs/command-line.md has it: its code, its exit code."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.cli.exits import Exit
from tenure.cli.main import run
from tests.support.repository import REPOSITORY

GOOD = """
from pydantic import BaseModel
from tenure.contract.tasktype import TaskType
from tenure.executor import Executor
from tenure.executor.consumer import EventConsumer
from tenure.executor.event_inbox_sqlite import SqliteInbox

app = Executor("jobs", version="1")
no_tasks = Executor("empty", version="1")
consumer = EventConsumer("board", inbox=SqliteInbox("board.db"))
no_events = EventConsumer("deaf", inbox=SqliteInbox("deaf.db"))

@app.task(TaskType("work", input=BaseModel, output=BaseModel))
def work(input, context): ...

@consumer.on("task")
async def seen(event, context): ...
"""
MODULES = {
    "start_good": GOOD,
    "start_broken": "import nothing_like_it",
    "start_misnamed": GOOD.replace('"work"', '"no name"'),
    "start_untyped": GOOD.replace("@app.task(TaskType", "@app.task(str, TaskType"),
    "start_wrong_handler": GOOD.replace("work(input, context)", "work()"),
}
NOWHERE = "127.0.0.1:9"
SETTINGS = {
    "TENURE_URL": f"http://{NOWHERE}",
    "TENURE_TOKEN": "0" * 32,
    "TENURE_BROKER_URL": f"amqp://{NOWHERE}/",
    "TENURE_DATABASE_URL": f"postgresql://nobody@{NOWHERE}/nothing",
    "TENURE_TOKENS": f'[{{"name": "a", "token": "{"0" * 32}", "tenant": "t", "role": "operator"}}]',
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the modules, and settings of servers that are nowhere."""
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def documented() -> dict[str, Exit]:
    """Exit code of each code, by the page's table about starts."""
    page = (REPOSITORY / "docs" / "command-line.md").read_text(encoding="utf-8")
    table = page.partition("| At the start | Code | Exit |")[2].partition("\n\n")[0]
    rows = re.findall(r"\| ((?:`\w+`(?:, )?)+) \| (\d+) \|$", table, re.MULTILINE)
    return {
        code: Exit(int(exit_code))
        for codes, exit_code in rows
        for code in re.findall(r"`(\w+)`", codes)
    }


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("executor nothing:app", "usage"),
        ("executor start_good:nothing", "usage"),
        ("executor start_good:app --frob", "usage"),
        ("executor start_good:app --slots 0", "usage"),
        ("executor start_good:app --slots many", "usage"),
        ("executor start_broken:app", "application_broken"),
        ("executor start_misnamed:app", "invalid_declaration"),
        ("executor start_wrong_handler:app", "invalid_declaration"),
        ("executor start_good:no_tasks", "invalid_declaration"),
        ("executor start_good:app --concurrency other=2", "invalid_declaration"),
        ("executor start_good:app --concurrency work", "settings_invalid"),
        ("executor start_good:app --config none.toml", "settings_invalid"),
        ("consumer run start_good:nothing", "usage"),
        ("consumer run start_broken:consumer", "application_broken"),
        ("consumer run start_good:no_events", "invalid_declaration"),
        ("consumer run start_good:consumer --config none.toml", "settings_invalid"),
        ("profile push start_broken:app", "application_broken"),
        ("profile push start_good:no_tasks", "invalid_declaration"),
        ("chaos --app start_broken:app", "application_broken"),
        ("chaos --app start_good:no_tasks", "invalid_declaration"),
        ("coordinator --frob", "usage"),
        ("coordinator --config none.toml", "settings_invalid"),
        ("relay --config none.toml", "settings_invalid"),
        ("node list", "unreachable"),
        ("migrate up", "unavailable"),
    ],
)
def test_a_start_that_fails_ends_as_documented(
    words: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(words.split())
    said = capsys.readouterr().err.splitlines()[-1]
    assert (said.split(": ")[:2], ended) == (["error", code], documented()[code])


@pytest.mark.parametrize("words", ["executor start_good:app", "consumer run start_good:consumer"])
def test_where_no_stack_runs_and_no_server_is_named_nothing_is_configured(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name)
    assert run(words.split()) == documented()["not_configured"]
    assert capsys.readouterr().err.startswith("error: not_configured:")


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ("executor start_good:app", "TENURE_EXECUTOR_LISTEN"),
        ("consumer run start_good:consumer", "TENURE_CONSUMER_LISTEN"),
        ("coordinator", "TENURE_LISTEN"),
        ("relay", "TENURE_RELAY_LISTEN"),
    ],
)
def test_an_address_that_is_taken_is_said_with_the_setting(words: str, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "tenure.cli", *words.split()],
            env=os.environ | {setting: address},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == documented()["listen_refused"]
    said = done.stderr.splitlines()[-1]
    assert said.startswith("error: listen_refused:")
    assert setting in said


def test_the_page_names_each_code_of_a_local_stack_with_its_exit_code() -> None:
    from tenure.cli.exits import exit_code_of
    from tenure.cli.local.errors import LocalProcessFailedError, LocalStateInUseError

    for error in (LocalProcessFailedError("m", advice="a"), LocalStateInUseError("m", advice="a")):
        assert exit_code_of(error) == documented()[error.code]
