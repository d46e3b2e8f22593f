"""Programs as handlers: the declared bytes, input and output by pipes, token in the environment."""

import asyncio
import json
import os
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.contract.codes import Reason
from tenure.contract.reports import Deliver, Report
from tenure.executor import CommandResult, Executor, Limits, Resources, TaskType
from tenure.executor.errors import DeclarationError
from tenure.executor.isolation.place import Account, Place
from tenure.executor.scope import GrantedScope
from tests.support.attempts import EXPIRES, assignment
from tests.support.later import is_later
from tests.support.pipeline_bench import Bench, only_fail
from tests.support.process_lives import lives
from tests.support.waiting import eventually


class Words(BaseModel):
    text: str = ""
    path: str = ""


class Answer(BaseModel):
    said: Any = None


class Numbered(BaseModel):
    number: int


ASK = TaskType("ask", input=Words, output=Answer)
NUMBER = TaskType("ask", input=Words, output=Numbered)
RUN = TaskType("run", input=Words, output=CommandResult)

PROGRAM = f"""#!{sys.executable}
import json, os, pathlib, subprocess, sys, time
given = json.load(sys.stdin)
match sys.argv[1]:
    case "echo":
        print(json.dumps({{"said": given["text"]}}))
    case "environment":
        print(json.dumps({{"said": dict(os.environ)}}))
    case "arguments":
        print(json.dumps({{"said": sys.argv[1:]}}))
    case "fail":
        print("the disk is full", file=sys.stderr)
        sys.exit(7)
    case "much":
        print("x" * 100_000)
    case "secret":
        print(json.dumps({{"number": "the secret"}}))
    case "nonsense":
        print("no json")
    case "forever":
        other = subprocess.Popen(["sleep", "600"])
        pathlib.Path(given["path"]).write_text(f"{{os.getpid()}} {{other.pid}}")
        time.sleep(600)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_text(PROGRAM, encoding="utf-8")
    path.chmod(0o755)
    return path


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def change(path: Path) -> None:
    path.write_text(PROGRAM.replace('"echo"', '"echo" '), encoding="utf-8")


def remove(path: Path) -> None:
    path.unlink()


def bench(
    program: Path, *arguments: str, task_type: TaskType[Any, Any] = ASK, **options: Any
) -> Bench:
    app = Executor("commands", version="1")
    app.command(task_type, str(program), *arguments, digest=digest(program), **options)
    b = Bench.of(app)
    b.reports.input = {"text": "hello"}
    return b


def output(reports: list[Report]) -> Any:
    (report,) = reports
    assert isinstance(report, Deliver), report
    return report.output


async def test_a_program_reads_its_input_and_writes_its_output(program: Path) -> None:
    (report,) = await bench(program, "echo").run(assignment("ask"))
    assert isinstance(report, Deliver), report
    assert report.output == {"said": "hello"}
    assert report.enforced is not None
    assert report.enforced.runs_in == "command"
    assert report.enforced.program_digest == digest(program)


@pytest.mark.requirement("OPS-07")
async def test_its_environment_holds_token_and_deadline_and_nothing_of_the_executor(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_TOKEN", "secret")
    given = assignment("ask")
    b = bench(program, "environment", environment={"MODE": "fast"})
    found = output(await b.run(given))["said"]
    for of_the_interpreter in ("LC_CTYPE", "__CF_USER_TEXT_ENCODING"):
        found.pop(of_the_interpreter, None)
    folder = found.pop("HOME")
    assert found == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TMPDIR": folder,
        "MODE": "fast",
        "TENURE_TASK_ID": given.task_id,
        "TENURE_ATTEMPT_ID": given.attempt_id,
        "TENURE_ATTEMPT": "1",
        "TENURE_FENCING_TOKEN": str(given.fencing_token),
        "TENURE_IDEMPOTENCY_KEY": given.task_id,
        "TENURE_LEASE_EXPIRES_AT": EXPIRES.isoformat(),
    }


@pytest.mark.requirement("LEASE-11")
async def test_it_is_told_the_scope_for_receivers_that_ask(program: Path) -> None:
    b = bench(program, "environment")
    b.reports.take["scope"] = {"operations": ["write"], "objects": ["{text}/*"]}
    b.reports.take["input"] = {"text": "mine"}
    said = output(await b.run(assignment("ask")))["said"]["TENURE_SCOPE"]
    read = GrantedScope.from_json(said)
    assert (read.permits("write", "mine/1"), read.permits("write", "other/1")) == (True, False)


async def test_a_scope_that_no_environment_can_hold_is_no_scope_to_a_receiver(
    program: Path,
) -> None:
    most = [f"{number}{'x' * 290}" for number in range(100)]
    b = bench(program, "environment")
    for name in ("scope", "narrowed"):
        b.reports.take[name] = {"operations": most, "objects": most}
    said = output(await b.run(assignment("ask")))["said"]["TENURE_SCOPE"]
    with pytest.raises(ValueError, match="JSON"):
        GrantedScope.from_json(said)


@pytest.mark.requirement("OPS-07")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as somebody else")
@pytest.mark.parametrize("account", [None, "nobody"])
async def test_only_as_somebody_else_it_cannot_look_into_the_executor(
    tmp_path: Path, account: str | None
) -> None:
    path = tmp_path / "program"
    path.write_text("#!/bin/sh\nwc -c < /proc/$PPID/environ\n", encoding="utf-8")
    path.chmod(0o755)
    app = Executor("commands", version="1")
    app.command(RUN, str(path), digest=digest(path), effects="none")
    place = Place(account=None if account is None else Account.named(account))
    b = Bench.of(app, place)
    b.reports.input = {}
    found = output(await b.run(assignment("run")))
    assert (found["exit_status"] == 0) == (account is None), found
    assert ("denied" in found["stderr"]) == (account is not None)


async def test_it_is_told_the_trace_of_the_submission(program: Path) -> None:
    trace = "00-5f0c9a1e7d3b48269c41d0e2f7a8b613-4e1d9c20b7a35f68-01"
    b = bench(program, "environment")
    b.reports.take["traceparent"] = trace
    assert output(await b.run(assignment("ask")))["said"]["TRACEPARENT"] == trace


async def test_its_arguments_are_the_declared_ones(program: Path) -> None:
    assert output(await bench(program, "arguments", "a b", "$HOME").run(assignment("ask"))) == {
        "said": ["arguments", "a b", "$HOME"]
    }


@pytest.mark.requirement("LEASE-11")
async def test_a_program_that_was_changed_is_not_started(program: Path) -> None:
    b = bench(program, "echo")
    change(program)
    failed = only_fail(await b.run(assignment("ask")))
    assert failed.reason == Reason.PROGRAM_CHANGED
    assert digest(program) in failed.message


async def test_a_program_that_is_not_there_is_said_to_be_so(program: Path) -> None:
    b = bench(program, "echo")
    remove(program)
    failed = only_fail(await b.run(assignment("ask")))
    assert failed.reason == Reason.PROGRAM_CHANGED
    assert "No such file" in failed.message


@pytest.mark.parametrize(
    ("does", "reason", "says"),
    [
        ("fail", Reason.COMMAND_FAILED, "exit status 7: the disk is full"),
        ("much", Reason.OUTPUT_INVALID, "4096"),
        ("nonsense", Reason.OUTPUT_INVALID, "no Answer"),
        ("secret", Reason.OUTPUT_INVALID, "no Numbered: number: Input should be a valid integer"),
    ],
)
async def test_what_goes_wrong_is_reported_with_its_last_words(
    program: Path, does: str, reason: str, says: str
) -> None:
    task_type = NUMBER if does == "secret" else ASK
    failed = only_fail(await bench(program, does, task_type=task_type).run(assignment("ask")))
    assert failed.reason == reason
    assert says in failed.message
    assert "the secret" not in failed.message


async def test_a_program_that_cannot_be_read_in_time_has_run_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that does not answer."""
    path = tmp_path / "program"
    os.mkfifo(path)
    app = Executor("commands", version="1")
    app.command(ASK, str(path), digest="0" * 64, effects="none", time_limit_seconds=3600.0)
    running = asyncio.create_task(Bench.of(app).run(assignment("ask")))
    writers: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):  # nobody reads yet
            writers.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    await eventually(is_read)
    is_later(monkeypatch, 3600.0)
    failed = only_fail(await running)
    os.close(writers[0])
    assert (failed.reason, failed.message) == (
        Reason.TIME_LIMIT,
        "it did not begin within 3600 s",
    )


async def test_an_exit_status_may_be_a_result(program: Path) -> None:
    b = bench(program, "fail", task_type=RUN)
    found = output(await b.run(assignment("run")))
    assert found == {"exit_status": 7, "stdout": "", "stderr": "the disk is full\n"}


@pytest.mark.requirement("LEASE-11")
async def test_it_is_killed_with_everything_it_started_when_its_time_is_up(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench(program, "forever", time_limit_seconds=3600.0)
    b.reports.input = {"path": str(tmp_path / "pids")}
    running = asyncio.create_task(b.run(assignment("ask")))
    await eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text() != "")
    is_later(monkeypatch, 3600.0)
    failed = only_fail(await running)
    assert failed.reason == Reason.TIME_LIMIT
    pids = (tmp_path / "pids").read_text().split()
    await eventually(lambda: not any(lives(int(pid)) for pid in pids))


@pytest.mark.requirement("LEASE-09")
async def test_it_is_killed_at_the_end_of_authority(program: Path, tmp_path: Path) -> None:
    b = bench(program, "forever")
    b.reports.input = {"path": str(tmp_path / "pids")}
    watch = asyncio.create_task(b.work.watch())
    b.work.start(assignment("ask"))
    await eventually(lambda: (tmp_path / "pids").exists())
    b.clock.pass_seconds(29.5)
    b.work.look_again()
    await b.work.idle()
    watch.cancel()
    assert b.reports.sent[1:] == []


@pytest.mark.requirement("LEASE-11")
async def test_its_profile_names_the_program_and_the_limits(program: Path) -> None:
    b = bench(
        program,
        "echo",
        resources=Resources.of(memory="64Mi"),
        time_limit_seconds=5,
        limits=Limits(network="none"),
    )
    declared = json.loads(b.app.handlers["ask"].to_wire().model_dump_json())
    assert declared["program_digest"] == digest(program)
    assert (declared["runs_in"], declared["time_limit_seconds"]) == ("command", 5.0)
    assert declared["limits"]["network"] == "none"


@pytest.mark.parametrize(("program", "digest"), [("bin/tool", "ab" * 32), ("/bin/cat", "abc")])
def test_a_program_without_path_or_digest_is_refused_at_its_declaration(
    program: str, digest: str
) -> None:
    with pytest.raises(DeclarationError):
        Executor("commands", version="1").command(ASK, program, digest=digest)
