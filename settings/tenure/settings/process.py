"""What the models of all processes have in common: their sources, shared settings, and errors."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from tenure.settings import names
from tenure.settings.addresses import (
    BrokerUrl,
    CertificatesFile,
    DatabaseUrl,
    broker_address,
    masked,
)
from tenure.settings.errors import SettingsInvalid, SettingsMissing
from tenure.settings.sources import Source, given_of, sources

SettingsT = TypeVar("SettingsT", bound="ProcessSettings")

NamePrefix = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]


class ProcessSettings(BaseSettings):
    """Base of the models: one a process. Durations in seconds, sizes in bytes.

    In this order: what the caller passes, the environment, the process's table of the configuration
    file, the top of that file, the default.
    """

    model_config = SettingsConfigDict(
        env_prefix=names.PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )
    process: ClassVar[str]

    config: Path | None = Field(default=None, description="configuration file, TOML")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Our own sources, which know where each value was found."""
        return sources(settings_cls, cls.process, given_of(init_settings), env_settings)


class LogSettings(ProcessSettings):
    """How a process logs."""

    log_format: Literal["auto", "console", "json"] = Field(
        default="auto", description="`auto`: for people on a terminal, else JSON lines"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="what is less important is not logged"
    )


class DatabaseSettings(ProcessSettings):
    """How a process reaches the authority's database."""

    database_url: DatabaseUrl = Field(
        description="`postgresql://user:password@host:port/database`, for TLS with"
        " `?sslmode=verify-full&sslrootcert=FILE`"
    )
    pooled: bool = Field(
        default=False,
        description="the database is reached through a connection pooler in transaction mode:"
        " nothing is prepared by name, and nothing waits for notifications",
    )


class OptionalBrokerSettings(ProcessSettings):
    """How a process reaches the broker, if it does."""

    broker_url: BrokerUrl | None = Field(
        default=None,
        description="`amqp://user:password@host:port/vhost`; `amqps://` for TLS, always verified",
    )
    broker_ca_file: CertificatesFile | None = Field(
        default=None,
        description="certificates of the authorities that vouch for the broker, PEM; none: the"
        " system's",
    )

    @model_validator(mode="after")
    def _authority_is_used(self) -> Self:
        if self.broker_ca_file is None or self.broker_url is None:
            return self
        url = self.broker_url.current()
        if not url.startswith("amqps://"):
            raise ValueError(
                f"TENURE_BROKER_CA_FILE is set, but TENURE_BROKER_URL ({masked(url)}) asks for no"
                " TLS: write amqps://, or unset the file"
            )
        if "cafile=" in url:
            raise ValueError(
                "TENURE_BROKER_CA_FILE and cafile in TENURE_BROKER_URL are both set: keep one"
            )
        return self

    def broker_url_now(self) -> str:
        """The broker's URL for one new connection, with everything the AMQP library needs. Only
        where there is one."""
        assert self.broker_url is not None
        return broker_address(
            self.broker_url.current, ca_file=self.broker_ca_file, name=f"tenure-{self.process}"
        )()


class BrokerSettings(OptionalBrokerSettings):
    """How a process reaches the broker that it cannot work without."""

    broker_url: BrokerUrl = Field(
        description="`amqp://user:password@host:port/vhost`; `amqps://` for TLS, always verified"
    )


def load(model: type[SettingsT], values: dict[str, Any]) -> SettingsT:
    """Settings from ``values``, the environment and the files these name, in this order.

    Raises SettingsInvalid: names what is missing or wrong and where it was found, never a secret.
    """
    try:
        return model(**values)
    except SettingsError as error:
        raise SettingsInvalid(f"The settings cannot be used: {error}.") from None
    except ValidationError as error:
        kinds = {fault["type"] for fault in error.errors()}
        raised = SettingsMissing if kinds == {"missing"} else SettingsInvalid
        raise raised(
            f"The settings cannot be used: {_faults(error, places_of(model, values))}.",
            next_step=_NEXT_STEP if "missing" in kinds else "",
        ) from None  # the cause would show values


def sources_of(model: type[ProcessSettings], values: dict[str, Any]) -> tuple[Source, ...]:
    """The sources that ``load`` would read, the first goes first. Raises SettingsInvalid."""
    from pydantic_settings import EnvSettingsSource

    return sources(model, model.process, values, EnvSettingsSource(model))


def places_of(model: type[ProcessSettings], values: dict[str, Any]) -> dict[str, str]:
    """Where each setting was found; what is not here has its default."""
    places: dict[str, str] = {}
    for source in reversed(sources_of(model, values)):
        places |= source.places
    return places


_NEXT_STEP = (
    "Set it in the environment or in the configuration file (TENURE_CONFIG); secrets also by file,"
    " like TENURE_TOKEN_FILE."
)


def _faults(error: ValidationError, places: dict[str, str]) -> str:
    said = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        message = fault["msg"].removeprefix("Value error, ")
        if not fault["loc"]:
            said.append(message)
            continue
        name, *inner = (str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            near = names.near_variable(names.variable(name))
            message = f"there is no such setting{f', did you mean {near}' if near else ''}"
        if fault["type"] == "missing":
            said.append(f"{names.variable(name)} is missing")
            continue
        place = places.get(name, names.variable(name))
        if place.startswith("given as "):
            place = names.variable(name)
        said.append(f"{'.'.join([place, *inner])}: {message}")
    return "; ".join(said)
