"""Settings of each process as commands read them, and the option for a configuration file."""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from tenure.cli.connection import (
    CONNECTION_FILE,
    no_stack,
    read_connection_file,
    refuse_killed,
    state_directory,
)
from tenure.cli.exits import SetupError, needs
from tenure.contract.errors import TenureError

if TYPE_CHECKING:
    from tenure.settings.process import ProcessSettings

Process = Literal["coordinator", "relay", "executor", "consumer", "migrate"]

Config = Annotated[
    Path | None,
    Parameter(name="--config", help="Configuration file, TOML. [default: TENURE_CONFIG]"),
]

_MODELS: Final[dict[Process, tuple[str, str, str]]] = {
    "coordinator": ("coordinator", "tenure.coordinator.config", "CoordinatorSettings"),
    "relay": ("relay", "tenure.relay.config", "RelaySettings"),
    "executor": ("executor", "tenure.executor.config", "ExecutorSettings"),
    "consumer": ("executor", "tenure.executor.consumer_settings", "ConsumerSettings"),
    "migrate": ("coordinator", "tenure.coordinator.config", "MigrateSettings"),
}
"""Of each process: the extra it needs, and where its model is."""


def given(**values: Any) -> dict[str, Any]:
    """The options that were given: what is None is left to the environment and the file."""
    return {name: value for name, value in values.items() if value is not None}


def model_of(process: Process) -> "type[ProcessSettings]":
    """The model of a process. Raises MissingExtra."""
    extra, module, name = _MODELS[process]
    with needs(extra):
        found: type[ProcessSettings] = getattr(import_module(module), name)
    return found


def read(process: Process, values: dict[str, Any]) -> "tuple[ProcessSettings, dict[str, str]]":
    """The settings of a process and where each was found; see ``completed``.

    Raises SettingsInvalid, SetupError.
    """
    values, places = completed(process, values)
    from tenure.settings.process import load

    return load(model_of(process), values), places


def completed(process: Process, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """``values`` with what the local stack in the state directory knows, where nobody told of
    servers; and where each setting was found.

    Raises SettingsInvalid, SetupError.
    """
    model = model_of(process)  # first: it says which extra is missing
    from tenure.settings.process import places_of

    places = places_of(model, values)
    known: dict[str, str] = {}
    roles = {"executor": "executor", "consumer": "read_only"}
    if process in roles and not {"url", "token", "broker_url"} & places.keys():
        known = _local_client(roles[process])
        if "no_broker" in places:
            del known["broker_url"]
    elif process == "migrate" and "database_url" not in places:
        known = {"database_url": local_database_url()}
    file = str(state_directory() / CONNECTION_FILE)
    return values | known, places | dict.fromkeys(known, file)


def local_database_url() -> str:
    """The database of the local stack in the state directory. Raises SetupError."""
    file = state_directory() / CONNECTION_FILE
    if file.exists():
        url = read_connection_file(file).get("database_url")
        if isinstance(url, str):
            return url
    raise SetupError(
        f"no database is known: TENURE_DATABASE_URL is not set and there is no {file}.",
        next_step="Set TENURE_DATABASE_URL to the login that owns the schema.",
        code="not_configured",
    )


def _local_client(role: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Addresses of the local stack and its token of a role, for a process that was told none.

    Raises SetupError where none runs.
    """
    file = state_directory(environment=environment) / CONNECTION_FILE
    if not file.exists():
        unset = "TENURE_URL, TENURE_TOKEN and TENURE_BROKER_URL are not set"
        raise no_stack(file, unset, "them")
    content = read_connection_file(file)
    refuse_killed(file)
    try:
        return {
            "url": str(content["url"]),
            "broker_url": str(content["broker_url"]),
            "token": str(content["tokens"][role]),
        }
    except (KeyError, TypeError) as error:
        raise SetupError(
            f"{file} lacks what a process with the role {role} needs.",
            next_step="Start the stack again with `tenure up`.",
            code="not_configured",
        ) from error


def is_incomplete(error: TenureError) -> bool:
    """Whether only something is missing, which may not be meant to be here."""
    from tenure.settings.errors import SettingsMissing

    missing = ("not_configured", "missing_extra")
    return isinstance(error, SettingsMissing) or error.code in missing
