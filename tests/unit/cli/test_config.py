"""``tenure config``: whether processes could start, and where each value was found."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tenure.cli.exits import Exit
from tenure.cli.main import run

BROKER = "amqp://user:geheim@broker/vhost"


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for a relay, in an environment without settings of Tenure."""
    for name in list(os.environ):
        if name.startswith("TENURE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tenure.toml"
    file.write_text(
        f'broker_url = "{BROKER}"\n[relay]\ndatabase_url = "postgresql://relay:geheim@db/tenure"\n'
    )
    return file


def asked(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run(words)
    out, err = capsys.readouterr()
    assert "geheim" not in out + err
    return code, out


def test_a_process_that_is_not_meant_to_be_here_does_no_harm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out = asked(["config", "check", "--config", "tenure.toml", "-o", "json"], capsys)
    found = {one["process"]: one for one in json.loads(out)}
    assert code == Exit.DONE
    assert found["relay"]["ok"]
    assert not found["coordinator"]["ok"]
    assert "TENURE_TOKENS is missing" in found["coordinator"]["says"]


def test_a_process_that_is_left_out_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = asked(["config", "check", "--config", "tenure.toml"], capsys)
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == Exit.DONE
    assert lines["relay"].split()[1:] == ["ok"]
    assert "left out: TENURE_" in lines["coordinator"]


def test_a_process_that_was_named_must_be_able_to_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["config", "check", "--config", "tenure.toml"]
    assert asked([*words[:2], "relay", *words[2:]], capsys)[0] == Exit.DONE
    code, out = asked([*words[:2], "executor", *words[2:]], capsys)
    assert code == Exit.SETUP
    assert "TENURE_TOKEN is missing" in out


def test_without_any_settings_nothing_can_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(["config", "check"], capsys)[0] == Exit.SETUP


def test_a_wrong_value_fails_whoever_else_could_start(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with settings.open("a") as file:
        file.write("[executor]\nslots = 0\n")
    code, out = asked(["config", "check", "--config", "tenure.toml"], capsys)
    assert code == Exit.SETUP
    assert "[executor] slots" in out


def test_every_value_is_shown_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENURE_CONFIG", "tenure.toml")
    monkeypatch.setenv("TENURE_NAME_PREFIX", "shop")
    code, out = asked(["config", "show", "relay", "-o", "json"], capsys)
    assert code == Exit.DONE
    found = {one["name"]: (one["value"], one["from"]) for one in json.loads(out)}
    assert found["name_prefix"] == ("shop", "TENURE_NAME_PREFIX")
    assert found["relay_listen"] == ("127.0.0.1:8421", "default")
    assert found["broker_url"] == ("amqp://user:********@broker/vhost", "tenure.toml broker_url")
    assert found["database_url"][1] == "tenure.toml [relay] database_url"
    code, out = asked(["config", "show", "relay"], capsys)
    assert "TENURE_RELAY_LISTEN" in out


def test_an_executor_of_the_local_stack_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".tenure").mkdir()
    connection = tmp_path / ".tenure" / "connection.json"
    connection.touch(mode=0o600)
    local = {
        "url": "http://127.0.0.1:9",
        "broker_url": BROKER,
        "tokens": {"executor": "geheim" * 3},
    }
    connection.write_text(json.dumps(local))
    code, out = asked(["config", "show", "executor", "-o", "json"], capsys)
    assert code == Exit.DONE
    found = {one["name"]: one["from"] for one in json.loads(out)}
    assert found["token"] == ".tenure/connection.json"


def test_a_completion_script_is_good_shell(capsys: pytest.CaptureFixture[str]) -> None:
    code, script = asked(["--install-completion", "--shell", "bash", "--print"], capsys)
    assert code == Exit.DONE
    completed = subprocess.run(
        ["bash", "-s"],  # too long for an argument
        input=f"{script}\ncomplete -p tenure\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tenure" in completed.stdout
    for word in ("doctor", "migrate", "--executor"):
        assert word in script


def test_a_completion_is_installed_where_the_shell_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out = asked(["--install-completion", "--shell", "fish"], capsys)
    assert code == Exit.DONE
    assert (tmp_path / ".config/fish/completions/tenure.fish").exists()
    assert "tenure.fish" in out
