"""Where settings come from, besides what a caller passes: environment first, then a file.

A file is TOML. Its top level is for every process that reads it, a table named after a process is
for that one alone and goes first:

    broker_url_file = "/run/secrets/broker"
    [coordinator]
    lease_seconds = 60

Paths in it are seen from the file's own folder.

Every source knows where each value was found, for errors and for ``tenure config show``.
"""

import os
import tomllib
from pathlib import Path
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    TomlConfigSettingsSource,
)

from tenure.settings import names
from tenure.settings.errors import SettingsInvalid
from tenure.settings.secrets import SecretFile

CONFIG_VARIABLE: Final = "TENURE_CONFIG"


class Source(PydanticBaseSettingsSource):
    """One place where settings are found: values and the words for where, by field."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False  # asked for by the base class; __call__ gives them all

    def __call__(self) -> dict[str, Any]:
        return self.values

    def found(self, name: str, value: Any, place: str) -> None:
        """Take in one value."""
        self.values[name] = value
        self.places[name] = place


class Given(Source):
    """What the caller passes: the command line, or a program."""

    def __init__(self, settings_cls: type[BaseSettings], given: dict[str, Any]) -> None:
        super().__init__(settings_cls)
        for name, value in given.items():
            self.found(name, value, f"given as {name}")


class Environment(Source):
    """``TENURE_*``; for secrets also ``TENURE_X_FILE``. An empty variable counts as none."""

    def __init__(self, settings_cls: type[BaseSettings], variables: EnvSettingsSource) -> None:
        super().__init__(settings_cls)
        refuse_unknown_variables()
        for name, value in variables().items():
            self.found(name, value, names.variable(name))
        for name in sorted(names.SECRETS & set(settings_cls.model_fields)):
            variable = names.variable(name)
            path = os.environ.get(f"{variable}_FILE")
            if not path:
                continue
            if name in self.values:
                _refuse_both(variable, f"{variable}_FILE")
            self.found(name, SecretFile(path), f"{variable}_FILE={path}")


class ConfigFile(Source):
    """One level of a configuration file: the top, or the table of a process."""

    def __init__(
        self, settings_cls: type[BaseSettings], content: dict[str, Any], path: Path, table: str = ""
    ) -> None:
        super().__init__(settings_cls)
        words = f" [{table}]" if table else ""
        for key, value in content.items():
            name = key.removesuffix("_file") if key not in settings_cls.model_fields else key
            if name not in settings_cls.model_fields:
                continue  # another process's; misspelt ones were refused before
            if name == key:
                if name in names.PATHS and isinstance(value, str):
                    value = path.parent / value
                self.found(name, value, f"{path}{words} {key}")
            elif name in content:
                _refuse_both(f"{path}{words}: {name}", key)
            elif not isinstance(value, str) or not value:
                raise SettingsInvalid(f"{path}{words} {key}: write the path of a file.")
            else:
                held = path.parent / value  # as it stands where it is absolute
                self.found(name, SecretFile(held), f"{path}{words} {key}={value}")


def sources(
    settings_cls: type[BaseSettings], process: str, given: dict[str, Any], variables: Any
) -> tuple[Source, ...]:
    """All sources of one process, the first goes first. Raises SettingsInvalid."""
    assert isinstance(variables, EnvSettingsSource)
    environment = Environment(settings_cls, variables)
    found: list[Source] = [Given(settings_cls, given), environment]
    path = given.get("config") or environment.values.get("config")
    if path:
        content = read_config_file(Path(path), settings_cls)
        table = content.get(process, {})
        top = {key: value for key, value in content.items() if key not in names.PROCESSES}
        found.append(ConfigFile(settings_cls, table, Path(path), process))
        found.append(ConfigFile(settings_cls, top, Path(path)))
    return tuple(found)


def read_config_file(path: Path, settings_cls: type[BaseSettings]) -> dict[str, Any]:
    """The file's content, every key of which some process knows. Raises SettingsInvalid."""
    if not path.is_file():
        raise SettingsInvalid(
            f"The configuration file {path} does not exist.",
            next_step=f"Correct --config or {CONFIG_VARIABLE}.",
        )
    try:
        content = TomlConfigSettingsSource(settings_cls, path).toml_data
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsInvalid(f"The configuration file {path} cannot be read: {error}.") from error
    top = names.with_files(names.settings_names())
    for key, value in content.items():
        if key not in names.PROCESSES:
            _refuse_unknown_key(path, "", key, top, names.PROCESSES)
        elif not isinstance(value, dict):
            raise SettingsInvalid(f"{path}: {key} is the name of a table: write [{key}].")
        else:
            known = names.with_files(names.PROCESSES[key])
            for inner in value:
                _refuse_unknown_key(path, f" [{key}]", inner, known, ())
    return content


def _refuse_unknown_key(path: Path, words: str, key: str, known: Any, tables: Any) -> None:
    if key in known:
        return
    near = names.near_key(key, {*known, *tables})
    raise SettingsInvalid(
        f"{path}{words}: there is no setting {key}.",
        next_step=f"Did you mean {near}?" if near else "See docs/settings.md for all of them.",
    )


def refuse_unknown_variables() -> None:
    """Raises SettingsInvalid for a variable that begins as ours do and is no setting."""
    unknown = sorted(
        name for name, value in os.environ.items() if not names.is_known_variable(name, value)
    )
    if not unknown:
        return
    near = [name for one in unknown if (name := names.near_variable(one))]
    raise SettingsInvalid(
        f"Unknown settings in the environment: {', '.join(unknown)}.",
        next_step=(
            f"Did you mean {', '.join(near)}?"
            if near
            else "Variables that begin with TENURE_ are Tenure's own: see docs/settings.md."
        ),
    )


def _refuse_both(one: str, other: str) -> None:
    raise SettingsInvalid(f"{one} and {other} are both set.", next_step="Keep one of them.")


def given_of(init_settings: PydanticBaseSettingsSource) -> dict[str, Any]:
    """What the caller passed to the model."""
    assert isinstance(init_settings, InitSettingsSource)
    return dict(init_settings.init_kwargs)
