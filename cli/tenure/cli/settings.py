"""The option that names a configuration file, and settings that a command can do without."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from tenure.cli.connection import CONNECTION_FILE, read_connection_file, state_directory
from tenure.cli.exits import SetupError

if TYPE_CHECKING:
    from tenure.settings.process import ProcessSettings

SettingsT = TypeVar("SettingsT", bound="ProcessSettings")

Config = Annotated[
    Path | None,
    Parameter(name="--config", help="Configuration file, TOML. [default: TENURE_CONFIG]"),
]


def given(**values: Any) -> dict[str, Any]:
    """The options that were given: what is None is left to the environment and the file."""
    return {name: value for name, value in values.items() if value is not None}


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
