"""How a client finds its coordinator."""

import json
from pathlib import Path

import pytest

from tenure.client import NotConfigured
from tenure.client.settings import Connection, connection_from_environment


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    """The state directory of a local stack that runs."""
    file = tmp_path / "connection.json"
    tokens = {"application": "app", "operator": "op"}
    file.write_text(json.dumps({"url": "http://127.0.0.1:7", "tokens": tokens}))
    file.chmod(0o600)
    return tmp_path


def test_the_environment_names_coordinator_and_token(stack: Path) -> None:
    told = {"TENURE_TOKEN": "t", "TENURE_STATE_DIR": str(stack)}
    assert connection_from_environment(told) == Connection("http://127.0.0.1:8420", "t")
    told["TENURE_URL"] = "https://far"
    assert connection_from_environment(told) == Connection("https://far", "t")


def test_a_local_stack_is_found_by_its_folder(stack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Connection("http://127.0.0.1:7", "app")
    assert connection_from_environment({"TENURE_STATE_DIR": str(stack)}) == found
    stack.rename(stack.parent / ".tenure")
    monkeypatch.chdir(stack.parent)
    assert connection_from_environment({}) == found


def test_another_address_never_gets_the_token_of_the_local_stack(stack: Path) -> None:
    with pytest.raises(NotConfigured, match="TENURE_TOKEN is not set"):
        connection_from_environment({"TENURE_URL": "https://far", "TENURE_STATE_DIR": str(stack)})


def test_without_anything_the_error_names_both_ways(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured, match="no local stack runs here"):
        connection_from_environment({"TENURE_STATE_DIR": str(tmp_path)})


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": "u", "tokens": {}}'])
def test_a_broken_file_is_named(stack: Path, content: str) -> None:
    (stack / "connection.json").write_text(content)
    with pytest.raises(NotConfigured, match=r"connection\.json"):
        connection_from_environment({"TENURE_STATE_DIR": str(stack)})


def test_a_file_that_others_may_read_is_refused(stack: Path) -> None:
    (stack / "connection.json").chmod(0o644)
    with pytest.raises(NotConfigured, match="other accounts"):
        connection_from_environment({"TENURE_STATE_DIR": str(stack)})
