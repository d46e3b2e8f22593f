"""What the relay may be told, and what it says about what it may not."""

from pathlib import Path

import pytest

from tenure.relay.config import load_settings
from tenure.settings.errors import SettingsInvalid

DATABASE = "postgresql://relay:database-secret@localhost/tenure"
BROKER = "amqp://tenure:broker-secret@localhost/tenure"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "BROKER_URL", "RELAY_LISTEN", "NAME_PREFIX"):
        monkeypatch.delenv(f"TENURE_{name}", raising=False)
        monkeypatch.delenv(f"TENURE_{name}_FILE", raising=False)


def test_settings_come_from_the_environment_and_secrets_from_files_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "broker"
    secret.write_text(BROKER + "\n")
    monkeypatch.setenv("TENURE_DATABASE_URL", DATABASE)
    monkeypatch.setenv("TENURE_BROKER_URL_FILE", str(secret))
    monkeypatch.setenv("TENURE_RELAY_LISTEN", "[::1]:9000")
    settings = load_settings()
    assert settings.database_url.current() == DATABASE
    assert settings.broker_url.current() == BROKER
    assert settings.listen_address == ("::1", 9000)
    assert "secret" not in repr(settings)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings()
    assert caught.value.code == "settings_invalid"
    assert "TENURE_DATABASE_URL" in caught.value.message
    assert "TENURE_BROKER_URL" in caught.value.message


def test_a_secret_given_twice_is_a_contradiction(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENURE_DATABASE_URL", DATABASE)
    monkeypatch.setenv("TENURE_DATABASE_URL_FILE", str(tmp_path / "file"))
    with pytest.raises(SettingsInvalid, match="both set"):
        load_settings(broker_url=BROKER)


def test_an_unreadable_secret_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENURE_BROKER_URL_FILE", str(tmp_path / "absent"))
    with pytest.raises(SettingsInvalid, match=r"TENURE_BROKER_URL_FILE=.* cannot be read"):
        load_settings(database_url=DATABASE)


@pytest.mark.parametrize(
    ("values", "variable"),
    [
        ({"database_url": "mysql://relay:database-secret@localhost/tenure"}, "DATABASE_URL"),
        ({"broker_url": "http://tenure:broker-secret@localhost/"}, "BROKER_URL"),
        ({"broker_url": "amqps://a:broker-secret@localhost/?no_verify_ssl=1"}, "BROKER_URL"),
        ({"relay_listen": "8421"}, "RELAY_LISTEN"),
        ({"relay_claim_seconds": 0}, "RELAY_CLAIM_SECONDS"),
        ({"relay_window_rows": 1}, "RELAY_WINDOW_ROWS"),
        ({"relay_backoff_cap_seconds": 0.01}, "RELAY_BACKOFF_CAP_SECONDS"),
        ({"name_prefix": "spaces are not good"}, "NAME_PREFIX"),
        ({"no_such_setting": 1}, "NO_SUCH_SETTING"),
    ],
)
def test_a_wrong_setting_is_named_and_no_secret_shown(
    values: dict[str, object], variable: str
) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(**{"database_url": DATABASE, "broker_url": BROKER} | values)
    assert f"TENURE_{variable}" in caught.value.message
    assert "-secret" not in str(caught.value)


def test_limits_are_in_microseconds_and_shared_by_all_shards() -> None:
    settings = load_settings(
        database_url=DATABASE,
        broker_url=BROKER,
        relay_window_rows=6400,
        relay_backoff_base_seconds=0.25,
    )
    limits = settings.limits()
    assert limits.rows_per_shard == 100
    assert limits.backoff_base == 250_000
