"""Secrets are read anew, and addresses are judged before anybody connects."""

import logging
from pathlib import Path

import pytest
import trustme

from tenure.executor.config import ExecutorSettings
from tenure.settings.addresses import (
    BrokerUrl,
    DatabaseUrl,
    broker_address,
    host_and_port,
    masked,
)
from tenure.settings.errors import SettingsInvalid
from tenure.settings.process import load
from tenure.settings.secrets import Password


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """The certificate of an authority."""
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return path


def test_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("first\n")
    password = Password.from_file(path)
    assert password.current() == "first"
    path.write_text("second\n")
    assert password.current() == "second"


def test_a_file_in_the_middle_of_its_replacement_leaves_the_last_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "url"
    path.write_text("amqp://a:first@b/")
    url = BrokerUrl.from_file(path)
    for broken in ("http://a:second@b/", None):
        if broken is None:
            path.unlink()
        else:
            path.write_text(broken)
        assert url.current() == url.current() == "amqp://a:first@b/"
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 2  # once each
    assert "second" not in str(said)
    path.write_text("amqp://a:third@b/")
    assert url.current() == "amqp://a:third@b/"


def test_a_secret_is_never_shown() -> None:
    assert "geheim" not in repr(Password("geheim"))
    assert Password("geheim").shown() == "********"
    assert DatabaseUrl("postgresql://u:geheim@h:1/d?x=1").shown() == (
        "postgresql://u:********@h:1/d?x=1"
    )
    assert masked("postgresql:///d?user=u&password=geheim&sslpassword=geheim") == (
        "postgresql:///d?user=u&password=********&sslpassword=********"
    )


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://u:geheim@h/d", "postgresql://"),
        ("postgresql://u:ge/he@im@h:x/d", "special characters"),
        ("postgresql://u:geheim@h/d?sslmode=verify_full", "sslmode is one of"),
        ("postgresql://u:geheim@h/d?sslrootcert=CA", "sslmode=verify-full"),
        ("postgresql://u:geheim@h/d?sslmode=prefer&sslrootcert=CA", "sslmode=verify-full"),
        ("postgresql://u:geheim@h/d?sslmode=verify-full&sslrootcert=absent", "cannot be read"),
    ],
)
def test_a_database_url_that_cannot_work_is_refused(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        DatabaseUrl(url)
    assert "geheim" not in str(caught.value)


def test_a_root_certificate_is_looked_at_before_the_start(authority: Path) -> None:
    url = f"postgresql://u:p@h/d?sslmode=verify-full&sslrootcert={authority}"
    assert DatabaseUrl(url).current() == url
    authority.write_text("no certificate")
    with pytest.raises(ValueError, match="no certificate in PEM form"):
        DatabaseUrl(url)


@pytest.mark.parametrize(
    "url", ["http://u:geheim@h", "amqp:///vhost", "amqps://u:geheim@h/?no_verify_ssl=0"]
)
def test_a_broker_url_that_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"amqp|no_verify_ssl") as caught:
        BrokerUrl(url)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("amqp://u:geheim@h/", "asks for no TLS"),
        ("amqps://u:geheim@h/?cafile=other", "TENURE_BROKER_CA_FILE and cafile"),
    ],
)
def test_an_authority_that_nobody_would_ask_is_a_contradiction(
    authority: Path, url: str, says: str
) -> None:
    values = {"broker_url": url, "token": "t" * 16, "broker_ca_file": authority}
    with pytest.raises(SettingsInvalid, match=says) as caught:
        load(ExecutorSettings, values)
    assert "geheim" not in str(caught.value)
    (authority.parent / "empty.pem").touch()
    values |= {"broker_url": "amqps://h/", "broker_ca_file": authority.parent / "empty.pem"}
    with pytest.raises(SettingsInvalid, match=r"BROKER_CA_FILE: .* no certificate"):
        load(ExecutorSettings, values)


def test_the_broker_library_gets_heartbeat_name_and_authority(authority: Path) -> None:
    made = broker_address("amqps://a:b@c/d", ca_file=Path("ca.pem"), name="tenure-relay")
    assert made() == "amqps://a:b@c/d?heartbeat=10&name=tenure-relay&cafile=ca.pem"
    assert broker_address("amqp://a/d?heartbeat=3")() == "amqp://a/d?heartbeat=3"
    values = {"broker_url": "amqps://h/", "token": "t" * 16, "broker_ca_file": authority}
    assert "cafile=" in load(ExecutorSettings, values).broker_url_now()


def test_an_address_is_host_and_port() -> None:
    assert host_and_port("[::1]:80") == ("::1", 80)
    assert host_and_port("0.0.0.0:0") == ("0.0.0.0", 0)


@pytest.mark.parametrize("value", ["", "localhost", ":80", "host:port", "host:99999"])
def test_a_malformed_address_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        host_and_port(value)
