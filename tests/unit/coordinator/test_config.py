"""Settings come from the environment and files, and errors name what is wrong, never a value."""

import json
from pathlib import Path

import pytest

from tenure.coordinator.config import load_settings
from tenure.coordinator.identities import LOOK_AGAIN_SECONDS, CurrentIdentities, Role
from tenure.settings.errors import SettingsInvalid

SECRET = "a-token-that-is-secret"
TOKENS = [{"name": "shop", "token": SECRET, "tenant": "acme", "role": "application"}]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_DATABASE_URL", "postgresql://u:database-password@127.0.0.1/tenure")
    monkeypatch.setenv("TENURE_BROKER_URL", "amqp://u:broker-password@127.0.0.1/tenure")
    monkeypatch.setenv("TENURE_TOKENS", json.dumps(TOKENS))


def test_settings_come_from_the_environment() -> None:
    settings = load_settings()
    assert settings.listen_address == ("127.0.0.1", 8420)
    identity = settings.identities().find(SECRET)
    assert identity is not None
    assert (identity.name, identity.tenant, identity.role) == ("shop", "acme", Role.APPLICATION)
    assert settings.identities().find(SECRET + "x") is None


def test_secrets_come_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in (
        ("DATABASE_URL", "postgresql://127.0.0.1/from-a-file\n"),
        ("TOKENS", json.dumps(TOKENS) + "\n"),
    ):
        monkeypatch.delenv(f"TENURE_{name}")
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setenv(f"TENURE_{name}_FILE", str(path))
    settings = load_settings()
    assert settings.database_url.current() == "postgresql://127.0.0.1/from-a-file"
    assert settings.identities().find(SECRET) is not None


def test_a_secret_given_twice_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENURE_TOKENS_FILE", str(tmp_path / "tokens"))
    with pytest.raises(SettingsInvalid, match="TENURE_TOKENS and TENURE_TOKENS_FILE"):
        load_settings()


@pytest.mark.parametrize("content", [None, "no JSON", b"\xff"])
def test_an_unreadable_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | bytes | None
) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    monkeypatch.delenv("TENURE_TOKENS")
    monkeypatch.setenv("TENURE_TOKENS_FILE", str(path))
    with pytest.raises(SettingsInvalid, match="TENURE_TOKENS_FILE"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "mysql://u:database-password@127.0.0.1/tenure"),
        ("BROKER_URL", "http://u:broker-password@127.0.0.1"),
        ("BROKER_URL", "amqps://u:broker-password@127.0.0.1/?no_verify_ssl=1"),
        ("LISTEN", "8420"),
        ("LISTEN", "127.0.0.1:port"),
        ("NAME_PREFIX", "a b"),
        ("TOKENS", "no JSON"),
        ("TOKENS", "[]"),
        ("TOKENS", json.dumps([TOKENS[0] | {"role": "king"}])),
        ("TOKENS", json.dumps([TOKENS[0] | {"token": "short"}])),
        ("TOKENS", json.dumps([TOKENS[0] | {"tenant": "No Tenant"}])),
        ("TOKENS", json.dumps([TOKENS[0] | {"surprise": 1}])),
        ("TOKENS", json.dumps([*TOKENS, TOKENS[0] | {"name": "other"}])),
        ("LEASE_SECONDS", "0"),
        ("MAX_WAITING_REQUESTS", "none"),
    ],
)
def test_a_wrong_setting_is_named_and_its_value_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TENURE_{name}", value)
    with pytest.raises(SettingsInvalid) as caught:
        load_settings()
    assert name in str(caught.value).upper()
    assert caught.value.code == "settings_invalid"
    for secret in (SECRET, "database-password", "broker-password"):
        assert secret not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_DATABASE_URL")
    with pytest.raises(SettingsInvalid, match="TENURE_DATABASE_URL is missing"):
        load_settings()


@pytest.mark.requirement("LEASE-08")
def test_the_policy_is_made_of_the_settings() -> None:
    policy = load_settings(lease_seconds=0.5, clock_tolerance_seconds=0).policy()
    assert policy.lease_microseconds == 500_000
    assert policy.clock_tolerance_microseconds == 0


def test_tokens_are_replaced_without_a_restart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "tokens"
    path.write_text(json.dumps(TOKENS))
    monkeypatch.delenv("TENURE_TOKENS")
    monkeypatch.setenv("TENURE_TOKENS_FILE", str(path))
    now = [0.0]
    identities = CurrentIdentities(load_settings().tokens.identities, clock=lambda: now[0])
    assert identities.find(SECRET) is not None
    path.write_text(json.dumps([TOKENS[0] | {"token": "another-token-of-16"}]))
    assert identities.find("another-token-of-16") is not None  # a new token at once
    assert identities.find(SECRET) is None
    path.write_text(json.dumps(TOKENS))
    assert identities.find("another-token-of-16") is not None
    now[0] += LOOK_AGAIN_SECONDS
    assert identities.find("another-token-of-16") is None  # one taken back, a second later
    path.write_text("half writ")
    now[0] += LOOK_AGAIN_SECONDS
    assert identities.find(SECRET) is not None


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"lease_seconds": 1.0, "clock_tolerance_seconds": 1.0}, "TENURE_LEASE_SECONDS"),
        ({"retry_base_seconds": 10.0, "retry_cap_seconds": 5.0}, "TENURE_RETRY_CAP_SECONDS"),
        ({"payload_limit_bytes": 2**20, "batch_limit_bytes": 2**16}, "TENURE_BATCH_LIMIT_BYTES"),
    ],
)
def test_settings_that_contradict_are_named(values: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsInvalid, match=says):
        load_settings(**values)
