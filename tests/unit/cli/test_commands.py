"""The command line: exit codes, error lines, lazy imports, where the coordinator is found."""

import json
import logging
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from tenure.cli.connection import find_connection, open_client
from tenure.cli.exits import Exit, MissingExtra, SetupError, UsageError, exit_code_of, needs
from tenure.cli.instants import read_instant, read_past
from tenure.cli.local.state import StateDirectory
from tenure.cli.main import run
from tenure.cli.settings import completed
from tenure.client.calls import problem
from tenure.client.errors import ClientError, Refused, Unreachable
from tenure.client.settings import NotConfigured
from tenure.contract.codes import Code
from tenure.contract.errors import InvalidPayload

NAMED_OTHERWISE = """
from tenure.executor import Executor

jobs = Executor("jobs", version="1")
"""
WRONG_LIFESPAN = """
from contextlib import asynccontextmanager
from pydantic import BaseModel
from tenure.contract.tasktype import TaskType
from tenure.executor import Executor

app = Executor("jobs", version="1")

@app.task(TaskType("work", input=BaseModel, output=BaseModel))
def work(input, context): ...

@app.lifespan
@asynccontextmanager
async def resources():
    raise KeyError("JOBS_DATABASE_URL")
    yield
"""
REPLAY = ("--to", "q", "--reason", "why")
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No coordinator is known: an empty folder and no setting of Tenure."""
    for name in list(os.environ):
        if name.startswith("TENURE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def write_connection(folder: Path, mode: int = 0o600) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "connection.json"
    path.touch(mode=mode)
    path.chmod(mode)
    path.write_text(json.dumps({"url": "http://127.0.0.1:9", "tokens": {"operator": "secret"}}))
    return path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["frob"], Exit.USAGE, "error: usage:"),
        (["tenant", "set", "a", "--weight", "0"], Exit.USAGE, "error: usage: --weight: "),
        (["tenant", "set", "a", "--pools", "a b"], Exit.USAGE, "error: usage: --pools: a name"),
        (["tenant", "set", "a", "--currency", "euro"], Exit.USAGE, "error: usage: --currency"),
        (["tenant", "set", "a", "--budget", "1.5"], Exit.USAGE, "error: usage: --budget"),
        (["node", "set", "n", "--label", "a b=c"], Exit.USAGE, "error: usage: a name is"),
        (["subscription", "add", "x"], Exit.USAGE, "error: usage: name the events"),
        (["subscription", "add", "x", "tasks"], Exit.USAGE, "error: usage: events: 'tasks' names"),
        (["subscription", "add", "X", "task"], Exit.USAGE, "error: usage: name: "),
        (
            ["subscription", "add", "x", "task", "--dedupe-retention", "long"],
            Exit.USAGE,
            "error: usage: --dedupe-retention: 'long' is no length of time",
        ),
        (
            ["subscription", "add", "x", "task", "--dedupe-retention", "0s"],
            Exit.USAGE,
            "error: usage: dedupe_retention_seconds: Input should be greater than 0",
        ),
        (
            ["subscription", "remove", "x", "--tenant", "a", "--all-tenants"],
            Exit.USAGE,
            "error: usage: name one tenant or say all_tenants, not both",
        ),
        (["dead-letter", "redrive", "--reason", "x"], Exit.USAGE, "error: usage: name either"),
        (
            ["dead-letter", "discard", "1", "--queue", "q", "--reason", "x"],
            Exit.USAGE,
            "error: usage: name either numbers or --queue",
        ),
        (["dead-letter", "discard", "1", "--reason", ""], Exit.USAGE, "error: usage: --reason: "),
        (["why"], Exit.USAGE, "error: usage: name one task"),
        (["submit", "t", "{}", "--explain", "--wait"], Exit.USAGE, "error: usage: --explain"),
        (["submit", "t", "{}", "--cpu", "1x"], Exit.USAGE, "error: usage: '1x'"),
        (["submit"], Exit.USAGE, "error: usage:"),
        (["task", "list", "-o", "xml"], Exit.USAGE, "error: usage:"),
        (["task", "list", "--state", "odd"], Exit.USAGE, "error: usage:"),
        (["submit", "t", "{"], Exit.USAGE, "error: malformed_json:"),
        (["submit", "t", '{"a": NaN}'], Exit.USAGE, "error: malformed_json:"),
        (["submit", "t", "@missing.json"], Exit.USAGE, "error: usage: missing.json"),
        (["submit", "t", "--wiat", "{}"], Exit.USAGE, "error: usage: Unknown option: --wiat"),
        (["submit", "t", "{}", "{}"], Exit.USAGE, "error: usage: unexpected argument: {}."),
        (["up", "jobs:app"], Exit.USAGE, "error: usage: unexpected argument: jobs:app."),
        (["submit", "t", "{}", "--timeout", "3"], Exit.USAGE, "error: usage: --timeout"),
        (["submit", "t", "{}", "--deadline", "soon"], Exit.USAGE, "error: usage: --deadline"),
        (["submit", "t", "{}"], Exit.SETUP, "error: not_configured:"),
        (["task", "show", "x"], Exit.SETUP, "error: not_configured:"),
        (["migrate", "status"], Exit.SETUP, "error: not_configured:"),
        (["migrate", "roles"], Exit.USAGE, "error: usage:"),
        (["config", "show", "relay"], Exit.SETUP, "error: settings_invalid: The settings"),
        (["config", "show", "nobody"], Exit.USAGE, "error: usage:"),
        (["coordinator", "--config", "no.toml"], Exit.SETUP, "error: settings_invalid: The conf"),
        (["outbox", "replay", "--to", "q"], Exit.USAGE, "error: usage:"),
        (["outbox", "replay", *REPLAY, "--rate", "0"], Exit.USAGE, "error: usage: --rate"),
        (["outbox", "replay", *REPLAY, "--since", "soon"], Exit.USAGE, "error: usage: --since"),
        (["outbox", "replay", *REPLAY, "--task", "x"], Exit.USAGE, "error: usage: --task: 'x' is"),
        (["outbox", "replay", *REPLAY, "--entity", "x"], Exit.USAGE, "error: usage: --entity"),
        (["outbox", "replay", *REPLAY, "--type", "a.b"], Exit.USAGE, "error: usage: there are"),
        (["outbox", "replay", *REPLAY], Exit.SETUP, "error: not_configured:"),
        (["up", "--slots", "0"], Exit.USAGE, "error: usage: --slots"),
        (["up", "--broker-url", "@none"], Exit.USAGE, "error: usage: --broker-url @none: the file"),
        (["executor", "nothing-here"], Exit.USAGE, "error: usage: 'nothing-here'"),
        (["executor", "nothing_here:app"], Exit.USAGE, "error: usage: there is no module"),
        (["executor", "jobs.py:app"], Exit.USAGE, "error: usage: 'jobs.py' is a file. Name its m"),
        (["up", "--executor", "nothing-here"], Exit.USAGE, "error: usage: 'nothing-here'"),
        (["up", "--executor", "nothing_here:app"], Exit.USAGE, "error: usage: there is no module"),
        (["up", "--executor", "in.nothing:app"], Exit.USAGE, "error: usage: there is no module"),
    ],
)
def test_each_mistake_has_its_exit_code_and_one_line(
    words: list[str], code: Exit, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["frob"], "tenure"),
        (["node", "frob"], "tenure node"),
        (["task", "show"], "tenure task show"),
        (["up", "--frob"], "tenure up"),
    ],
)
def test_a_mistake_in_a_command_points_at_the_help_of_that_command(
    words: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == Exit.USAGE
    assert capsys.readouterr().err.endswith(f"See `{command} --help`.\n")


@pytest.mark.parametrize("words", [["submit", "t", "-"], ["submit", "t", "--priority", "3", "-"]])
def test_a_hyphen_is_standard_input(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b'{"half": ')))
    assert run(words) == Exit.USAGE
    assert capsys.readouterr().err.startswith("error: malformed_json:")


def test_json_that_a_shell_took_apart_is_answered_with_how_to_quote_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["submit", "t", "{path: a}"]) == Exit.USAGE
    assert """Quote it like '{"name": "value"}'""" in capsys.readouterr().err


def test_no_help_names_an_option_or_a_default_that_nobody_would_give(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left: list[list[str]] = [[]]
    while left:
        words = left.pop()
        assert run([*words, "--help"]) == Exit.DONE
        said = capsys.readouterr().out
        for noise in ("--empty-", "[default: ()]", "[default: False]"):
            assert noise not in said, words
        assert not re.search(r"--no-(?!t-before|broker)", said), words
        for title, panel in re.findall(r"^╭─ (.+?) ─+╮\n(.*?)^╰", said, re.MULTILINE | re.DOTALL):
            if title not in ("Parameters", "Arguments"):
                names = re.findall(r"^│ ([a-z][a-z-]*)", panel, re.MULTILINE)
                left += [[*words, name] for name in names]


def test_the_list_of_commands_begins_with_those_to_begin_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--help"]) == Exit.DONE
    said = capsys.readouterr().out
    titles = re.findall(r"^╭─ (.+?) ─+╮$", said, re.MULTILINE)
    assert titles[0] == "To begin with"
    assert "Commands" not in titles  # where what has no group would be
    assert re.findall(r"^│ ([a-z]+)", said, re.MULTILINE)[0] == "up"


def test_help_of_a_command_says_more_than_the_list_of_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--help"]) == Exit.DONE
    assert "Run an executor." in capsys.readouterr().out
    assert run(["executor", "--help"]) == Exit.DONE
    assert "joins" in capsys.readouterr().out


def test_an_unreachable_coordinator_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENURE_URL", "nonsense")
    monkeypatch.setenv("TENURE_TOKEN", "a-token")
    assert run(["node", "list"]) == Exit.UNREACHABLE
    assert capsys.readouterr().err.startswith("error: unreachable:")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("raise RuntimeError('no luck')", Exit.SETUP, "error: application_broken: importing prog"),
        ("import nothing_like_it", Exit.SETUP, "error: application_broken: importing prog"),
        ("app = 1", Exit.USAGE, "error: usage: 'prog:app' is no Executor"),
        ("", Exit.USAGE, "error: usage: 'prog:app' is no Executor"),
        (
            NAMED_OTHERWISE,
            Exit.USAGE,
            "error: usage: 'prog:app' is no Executor. There is prog:jobs.",
        ),
        (WRONG_LIFESPAN, Exit.SETUP, "error: application_broken: the lifespan of executor 'jobs'"),
    ],
)
def test_a_broken_application_is_told_from_one_that_is_not_there(
    text: str, code: Exit, said: str, tmp_path: Path
) -> None:
    (tmp_path / "prog.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tenure.cli", "executor", "prog:app"],
        env=os.environ | {"TENURE_TOKEN": "x", "TENURE_BROKER_URL": "amqp://127.0.0.1:1/"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith(said)


@pytest.mark.parametrize("words", [[], ["--help"], ["task"], ["submit", "--help"], ["version"]])
def test_help_and_version_are_no_errors(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == Exit.DONE
    out, err = capsys.readouterr()
    assert out != ""
    assert err == ""


def test_every_command_can_be_imported_and_explains_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (
        ["submit"],
        ["task", "show"],
        ["task", "list"],
        ["task", "cancel"],
        ["node", "list"],
        ["outbox", "status"],
        ["migrate", "up"],
        ["migrate", "status"],
        ["migrate", "verify"],
        ["migrate", "roles"],
        ["guard", "sql"],
        ["guard", "http"],
        ["guard", "payment"],
        ["guard", "check", "sql"],
        ["guard", "check", "http"],
        ["guard", "check", "objects"],
        ["guard", "prune"],
        ["guard", "unsettled"],
        ["guard", "forget"],
        ["config", "check"],
        ["config", "show"],
        ["doctor"],
        ["--install-completion"],
        ["coordinator"],
        ["relay"],
        ["executor"],
        ["up"],
    ):
        assert run([*words, "--help"]) == Exit.DONE
        assert f"Usage: tenure {' '.join(words)}" in capsys.readouterr().out


def test_help_imports_nothing_that_is_not_needed_for_it() -> None:
    script = (
        "import sys; from tenure.cli.main import run; run(['--help']);"
        "print(sorted({'pydantic', 'httpx2', 'asyncpg', 'starlette', 'aio_pika', 'asyncio'}"
        " & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_a_missing_extra_is_one_line_that_names_it() -> None:
    script = (
        "import sys\n"
        "for name in ('httpx2', 'asyncpg', 'aio_pika'): sys.modules[name] = None\n"
        "from tenure.cli.main import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    for words, extra in ((["node", "list"], "cli"), (["migrate", "up"], "coordinator")):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == Exit.SETUP
        assert done.stderr.startswith("error: missing_extra:")
        assert f"pip install 'tenure[{extra}]'" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_missing_module_of_our_own_is_no_missing_extra() -> None:
    def missing(name: str) -> None:
        with needs("cli"):
            raise ModuleNotFoundError(name=name)

    with pytest.raises(ModuleNotFoundError):
        missing("tenure.cli.nothing")
    with pytest.raises(MissingExtra):
        missing("httpx2")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), Exit.USAGE),
        (SetupError("x"), Exit.SETUP),
        (NotConfigured("x"), Exit.SETUP),
        (Unreachable("x"), Exit.UNREACHABLE),
        (Refused(problem(409, Code.IDEMPOTENCY_CONFLICT, "x")), Exit.REFUSED),
        (Refused(problem(401, Code.UNAUTHENTICATED, "x")), Exit.SETUP),
        (ClientError("x", code="result_timeout"), Exit.NOT_YET),
        (InvalidPayload("x"), Exit.USAGE),
    ],
)
def test_exit_codes_follow_from_stable_codes(error: ClientError, code: Exit) -> None:
    assert exit_code_of(error) is code


@pytest.mark.parametrize("someone_looks", [True, False])
def test_only_a_person_is_told_that_a_silent_coordinator_is_asked_again_and_only_once(
    someone_looks: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENURE_TOKEN", "a-token")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: someone_looks)
    log = logging.getLogger("tenure.client")
    monkeypatch.setattr(log, "handlers", [])
    open_client()
    log.info("no answer. Asking again.")
    log.info("no answer. Asking again.")
    assert capsys.readouterr().err == ("no answer. Asking again.\n" if someone_looks else "")


def test_the_local_stack_is_found_in_the_working_directory(tmp_path: Path) -> None:
    write_connection(tmp_path / ".tenure")
    found = find_connection()
    assert (found.url, found.token) == ("http://127.0.0.1:9", "secret")


def test_the_local_stack_is_found_where_the_setting_says(tmp_path: Path) -> None:
    write_connection(tmp_path / "elsewhere")
    found = find_connection(environment={"TENURE_STATE_DIR": str(tmp_path / "elsewhere")})
    assert found.token == "secret"


def test_an_executor_that_was_told_nothing_joins_the_local_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_connection(tmp_path / ".tenure")
    with pytest.raises(SetupError, match="with the role executor needs"):
        completed("executor", {})
    found = {"url": "http://127.0.0.1:9", "broker_url": "amqp://x", "tokens": {"executor": "t"}}
    path.write_text(json.dumps(found))
    values, places = completed("executor", {"slots": 3})
    assert values == {
        "slots": 3,
        "url": "http://127.0.0.1:9",
        "broker_url": "amqp://x",
        "token": "t",
    }
    assert places["token"] == ".tenure/connection.json"
    for told in ("TENURE_URL", "TENURE_TOKEN_FILE", "TENURE_BROKER_URL"):
        with monkeypatch.context() as environment:
            environment.setenv(told, "x")
            assert completed("executor", {})[0] == {}
    path.unlink()
    with pytest.raises(SetupError, match="Go to where `tenure up` runs"):
        completed("executor", {})


def test_a_folder_whose_stack_has_ended_is_told_from_one_that_never_had_any(tmp_path: Path) -> None:
    environment = {"TENURE_STATE_DIR": str(tmp_path / "state")}
    with pytest.raises(SetupError, match="Go to where `tenure up` runs"):
        find_connection(environment=environment)
    stack = StateDirectory(tmp_path / "state")
    stack.acquire()
    with pytest.raises(
        SetupError, match=r"has ended or is not ready yet.* Start it with `tenure up`"
    ):
        find_connection(environment=environment)
    stack.release()
    with pytest.raises(SetupError, match="has ended or is not ready yet"):
        find_connection(environment=environment)


def test_a_variable_that_is_no_setting_is_said_before_a_stack_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENURE_SLOT", "3")
    assert run(["up"]) == Exit.SETUP
    assert capsys.readouterr().err.endswith("Did you mean TENURE_SLOTS?\n")
    assert list(tmp_path.iterdir()) == []


def test_a_local_stack_that_was_killed_is_told_from_one_that_answers_late(tmp_path: Path) -> None:
    lock = write_connection(tmp_path / ".tenure").with_name("lock")
    lock.write_text(f"{os.getpid()}\n")
    assert find_connection().token == "secret"
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    lock.write_text(ended.stdout)
    with pytest.raises(SetupError, match="Start it again with `tenure up`"):
        find_connection()
    with pytest.raises(SetupError, match="Start it again with `tenure up`"):
        completed("executor", {})


def test_the_environment_comes_before_the_local_stack(tmp_path: Path) -> None:
    write_connection(tmp_path / ".tenure")
    found = find_connection(environment={"TENURE_URL": "http://far:1", "TENURE_TOKEN": "theirs"})
    assert (found.url, found.token) == ("http://far:1", "theirs")


def test_a_token_of_the_local_stack_is_never_sent_to_another_address(tmp_path: Path) -> None:
    write_connection(tmp_path / ".tenure")
    with pytest.raises(NotConfigured, match="TENURE_TOKEN"):
        find_connection(environment={"TENURE_URL": "http://far:1"})


def test_tokens_that_others_may_read_are_not_used(tmp_path: Path) -> None:
    write_connection(tmp_path / ".tenure", mode=0o644)
    with pytest.raises(SetupError, match="chmod 600"):
        find_connection()


def test_a_token_file_is_read_and_both_forms_at_once_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    environment = {"TENURE_TOKEN_FILE": str(file)}
    assert find_connection(environment=environment).token == "from-file"
    with pytest.raises(NotConfigured, match="both"):
        find_connection(environment=environment | {"TENURE_TOKEN": "x"})
    with pytest.raises(NotConfigured, match="cannot be read"):
        find_connection(environment={"TENURE_TOKEN_FILE": str(tmp_path / "missing")})


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("90s", timedelta(seconds=90)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("+2d", timedelta(days=2)),
    ],
)
def test_lengths_count_from_now(text: str, length: timedelta) -> None:
    assert read_instant(text, "--deadline", now=NOW) == NOW + length


def test_instants_have_a_zone_or_are_local() -> None:
    assert read_instant("2026-12-24T18:00:00Z", "--deadline") == datetime(
        2026, 12, 24, 18, tzinfo=UTC
    )
    assert read_instant("2026-12-24 18:00", "--deadline").tzinfo is not None


@pytest.mark.parametrize("text", ["", "+", "soon", "1w", "m", "99999999999d", "-5s"])
def test_what_is_no_point_in_time_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--deadline"):
        read_instant(text, "--deadline", now=NOW)


def test_lengths_of_age_count_back() -> None:
    assert read_past("1h30m", "--older-than", now=NOW) == NOW - timedelta(minutes=90)
    instant = "2026-12-24T18:00:00Z"
    assert read_past(instant, "--older-than", now=NOW) == datetime(2026, 12, 24, 18, tzinfo=UTC)
    with pytest.raises(UsageError, match="--older-than"):
        read_past("a while", "--older-than", now=NOW)
