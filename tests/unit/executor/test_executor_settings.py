"""Settings come from the environment, secrets also from files, and never appear in errors."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from tenure.contract.reports import NodeFacts
from tenure.executor.config import ExecutorSettings, load_settings
from tenure.settings.errors import SettingsInvalid

REQUIRED = {"token": "a-secret-token", "broker_url": "amqp://user:secret@127.0.0.1/vhost"}


def test_only_the_token_and_the_broker_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in REQUIRED.items():
        monkeypatch.setenv(f"TENURE_{name.upper()}", value)
    settings = load_settings()
    assert settings.url == "http://127.0.0.1:8420"
    assert settings.listen_address is None
    assert settings.resources is None
    assert settings.slots >= 1
    assert "secret" not in repr(settings)


def test_a_secret_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file\n")
    monkeypatch.setenv("TENURE_TOKEN_FILE", str(file))
    settings = load_settings(broker_url=REQUIRED["broker_url"])
    assert settings.token.current() == "from-a-file"
    monkeypatch.setenv("TENURE_TOKEN", "twice")
    with pytest.raises(SettingsInvalid, match="both set"):
        load_settings(broker_url=REQUIRED["broker_url"])
    monkeypatch.delenv("TENURE_TOKEN")
    monkeypatch.setenv("TENURE_TOKEN_FILE", str(tmp_path / "missing"))
    with pytest.raises(SettingsInvalid, match="cannot be read"):
        load_settings(broker_url=REQUIRED["broker_url"])


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("url", "ftp://x", "TENURE_URL"),
        ("broker_url", "http://secret", "TENURE_BROKER_URL"),
        ("broker_url", "amqps://u:p@host/?no_verify_ssl=1", "always verified"),
        ("node", "not a name", "TENURE_NODE"),
        ("slots", 0, "TENURE_SLOTS"),
        ("executor_listen", "8422", "host:port"),
        ("slot", 1, "TENURE_SLOT"),
    ],
)
def test_a_wrong_setting_is_named_and_its_value_is_not_shown(
    name: str, value: object, says: str
) -> None:
    with pytest.raises(SettingsInvalid, match=says) as caught:
        load_settings(**{**REQUIRED, name: value})
    assert "secret" not in caught.value.message


def test_a_node_without_a_name_gets_one_of_its_own() -> None:
    settings = ExecutorSettings.model_validate(REQUIRED)
    first, second = (settings.node_id("my app", f"{n}2345678-aaaa") for n in (0, 1))
    assert first != second
    assert first.endswith("my-app.02345678")
    named = ExecutorSettings.model_validate({**REQUIRED, "node": "n1"})
    assert named.node_id("my app", "12345678-aaaa") == "n1"


def test_what_is_not_limited_on_one_side_only_is_large_there() -> None:
    settings = ExecutorSettings.model_validate({**REQUIRED, "cpu": "500m"})
    assert settings.resources is not None
    assert settings.resources.cpu_millis == 500
    assert settings.resources.memory_bytes == 2**60


def test_a_node_states_its_facts() -> None:
    settings = ExecutorSettings.model_validate(
        {**REQUIRED, "location": "eu", "networks": "db, internet", "labels": "gpu=a100,disk="}
    )
    assert settings.facts.location == "eu"
    assert settings.facts.networks == ("db", "internet")
    assert settings.facts.labels == {"gpu": "a100", "disk": ""}
    assert ExecutorSettings.model_validate(REQUIRED).facts == NodeFacts()


@pytest.mark.parametrize(
    "odd", [{"pool": "a b"}, {"networks": "a;b"}, {"labels": "gpu"}, {"cpu": "2 cores"}]
)
def test_what_cannot_be_stated_of_a_node_stops_the_start(odd: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        ExecutorSettings.model_validate({**REQUIRED, **odd})
