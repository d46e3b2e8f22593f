"""Settings come from many places in one order, and what nobody knows stops the start by name."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tenure.coordinator.config import CoordinatorSettings, MigrateSettings
from tenure.executor.config import ExecutorSettings
from tenure.relay.config import RelaySettings
from tenure.settings import names
from tenure.settings.errors import SettingsInvalid
from tenure.settings.explain import DEFAULT, explain
from tenure.settings.process import ProcessSettings, load, places_of
from tests.support import exported, settings_tables
from tests.support.settings_tables import MODELS

BROKER = "amqp://user:broker-secret@broker/vhost"
TOKEN = "executor-token-of-the-test"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TENURE_"):
            monkeypatch.delenv(name)


def executor(**values: Any) -> ExecutorSettings:
    return load(ExecutorSettings, values)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration file of an executor."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    path = tmp_path / "tenure.toml"
    path.write_text(
        f'broker_url = "{BROKER}"\ntoken_file = "token"\nslots = 2\nlog_level = "error"\n'
        'state_dir = "state"\n[executor]\nslots = 3\n[relay]\nrelay_listen = "127.0.0.1:1"\n'
    )
    return path


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.process)
def test_the_list_of_names_is_what_the_models_have(model: type[ProcessSettings]) -> None:
    """A setting that is not in ``tenure.settings.names`` would stop its neighbours' start."""
    assert set(model.model_fields) - {"config"} == names.PROCESSES[model.process]


def test_the_page_about_settings_has_the_table_of_every_process() -> None:
    page = exported.SETTINGS.read_text(encoding="utf-8")
    assert sorted(settings_tables.blocks(page)) == sorted(names.PROCESSES)


def test_the_file_on_the_page_about_settings_is_a_good_one(tmp_path: Path) -> None:
    page = exported.SETTINGS.read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "tenure.toml").write_text(example)
    (tmp_path / "secrets").mkdir()
    for name, secret in {
        "broker": BROKER,
        "coordinator-database": "postgresql://c@d/",
        "relay-database": "postgresql://r@d/",
        "tokens.json": '[{"name":"n","token":"a-token-of-sixteen","tenant":"t","role":"operator"}]',
    }.items():
        (tmp_path / "secrets" / name).write_text(secret)
    given = {"config": tmp_path / "tenure.toml"}
    assert load(CoordinatorSettings, given).lease_seconds == 60
    assert load(RelaySettings, given).database_url.current() == "postgresql://r@d/"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.process)
def test_every_setting_says_what_it_is(model: type[ProcessSettings]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_the_process_table_goes_before_the_top_and_the_environment_before_both(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_CONFIG", str(file))
    settings = executor()
    assert settings.broker_url is not None
    assert settings.broker_url.current() == BROKER
    assert settings.token.current() == TOKEN
    assert settings.state_dir == file.parent / "state"
    assert (settings.slots, settings.log_level) == (3, "error")
    monkeypatch.setenv("TENURE_SLOTS", "4")
    assert executor().slots == 4
    assert executor(slots=5).slots == 5


def test_a_higher_place_replaces_a_secret_in_either_form(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_TOKEN", "from-the-environment")
    assert executor(config=file).token.current() == "from-the-environment"


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_NODE", "")
    monkeypatch.setenv("TENURE_TOKEN_FILE", "")
    assert executor(broker_url=BROKER, token=TOKEN).node is None


def test_each_value_says_where_it_was_found_and_secrets_are_masked(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_LOG_LEVEL", "debug")
    settings = executor(config=file, node="n1")
    places = places_of(ExecutorSettings, {"config": file, "node": "n1"})
    found = {one.name: one for one in explain(settings, places)}
    assert found["slots"].place == f"{file} [executor] slots"
    assert found["log_level"].place == "TENURE_LOG_LEVEL"
    assert found["token"].place == f"{file} token_file=token"
    assert found["node"].place == "given as node"
    assert found["url"].place == DEFAULT
    assert found["broker_url"].value == "amqp://user:********@broker/vhost"
    assert TOKEN not in str(found)


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("TENURE_BROKER_ULR", "Did you mean TENURE_BROKER_URL?"),
        ("TENURE_TOKEN_FIEL", "Did you mean TENURE_TOKEN_FILE?"),
        ("tenure_slot", "Did you mean TENURE_SLOTS?"),
        ("TENURE_QQQ", "docs/settings.md"),
        ("TENURE_SLOTS_FILE", "Did you mean"),  # no secret
        ("TENURE_PORT", ""),  # not what Kubernetes would write
    ],
)
def test_an_unknown_variable_stops_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, suggestion: str
) -> None:
    monkeypatch.setenv(variable, "anything")
    with pytest.raises(SettingsInvalid, match=variable) as caught:
        executor(broker_url=BROKER, token=TOKEN)
    assert suggestion in caught.value.next_step


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TENURE_RELAY_LISTEN", "127.0.0.1:1"),  # a neighbour's
        ("TENURE_TEST_SERVICES", "local"),
        ("TENURE_COMPOSE_OWNER_PASSWORD", "secret"),
        ("TENURE_PG_BIN", "bin"),
        ("TENURE_PORT", "tcp://10.0.0.1:8420"),  # by Kubernetes, for a service called tenure
        ("TENURE_SERVICE_HOST", "10.0.0.1"),
        ("TENURE_SERVICE_PORT_HTTP", "8420"),
        ("TENURE_COORDINATOR_PORT_8420_TCP_ADDR", "10.0.0.1"),
        ("TENURE_COORDINATOR_PORT", "udp://10.0.0.1:8420"),
    ],
)
def test_variables_of_neighbours_and_of_kubernetes_are_let_be(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert executor(broker_url=BROKER, token=TOKEN).slots


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slot = 1", "no setting slot.*slots"),
        ("[executr]\nslots = 1", "no setting executr.*executor"),
        ("[executor]\nslts = 1", "executor. there is no setting slts|slots"),
        ("[relay]\nlisten = 'a:1'", r"\[relay\]: there is no setting listen"),
        ("slots_file = 'x'", "no setting slots_file"),
        ("executor = 1", "name of a table"),
        ("slots = 'many'", "slots: Input should be a valid integer"),
        ("token = 'a'\ntoken_file = 'b'", "token and token_file are both set"),
        ("token_file = 1", "write the path of a file"),
        ("slots = ", "cannot be read"),
    ],
)
def test_a_faulty_file_stops_the_start_by_name(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "tenure.toml"
    file.write_text(text)
    with pytest.raises(SettingsInvalid, match=f"(?s){says}") as caught:
        executor(config=file)
    assert str(file) in caught.value.message


def test_a_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_CONFIG", "absent.toml")
    with pytest.raises(SettingsInvalid, match=r"absent\.toml does not exist"):
        executor()


def test_a_token_table_of_a_file_is_the_json_of_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "tenure.toml"
    file.write_text(
        'broker_url = "amqp://b/"\n[coordinator]\ndatabase_url = "postgresql://d/"\n'
        '[[coordinator.tokens]]\nname = "shop"\ntoken = "a-token-of-sixteen"\n'
        'tenant = "acme"\nrole = "application"\n'
    )
    settings = load(CoordinatorSettings, {"config": file})
    assert settings.tokens.shown() == "shop (application of acme)"
    assert settings.identities().find("a-token-of-sixteen") is not None


def test_migrations_have_settings_of_their_own(file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="TENURE_DATABASE_URL is missing"):
        load(MigrateSettings, {"config": file})
    (tmp_path / "password").write_text("new\n")
    file.write_text(
        '[migrate]\ndatabase_url = "postgresql://owner@d/"\nrelay_password_file = "password"\n'
    )
    settings = load(MigrateSettings, {"config": file})
    assert settings.roles().relay_password == "new"
    assert settings.roles().coordinator_password is None
    with pytest.raises(SettingsInvalid, match="name one role"):
        load(MigrateSettings, {"config": file, "relay_role": "tenure_coordinator"})
