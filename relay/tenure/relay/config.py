"""Settings of the relay: ``TENURE_*`` in the environment, secrets also by ``…_FILE``."""

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from tenure.contract.topology import DEFAULT_PREFIX, SHARD_COUNT
from tenure.relay.core.window import Limits
from tenure.relay.errors import SettingsInvalid

PREFIX: Final = "TENURE_"
_SECRETS: Final = ("database_url", "broker_url")

Seconds = Annotated[float, Field(gt=0, le=300)]


class _SecretFiles(PydanticBaseSettingsSource):
    """``TENURE_X_FILE`` names a file that holds the value of ``TENURE_X``."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False  # asked for by the base class; __call__ reads them all

    def __call__(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in _SECRETS:
            variable = f"{PREFIX}{name.upper()}"
            path = os.environ.get(f"{variable}_FILE")
            if path is None:
                continue
            if variable in os.environ:
                raise SettingsInvalid(
                    f"{variable} and {variable}_FILE are both set.", next_step="Keep one of them."
                )
            try:
                found[name] = Path(path).read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                raise SettingsInvalid(
                    f"{variable}_FILE cannot be read: {error}.",
                    next_step="Name a text file that this process may read.",
                ) from error
        return found


class RelaySettings(BaseSettings):
    """Everything the relay can be told. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    database_url: SecretStr
    broker_url: SecretStr
    name_prefix: str = Field(default=DEFAULT_PREFIX, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")
    relay_listen: str = "127.0.0.1:8421"
    log_format: Literal["auto", "console", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    relay_claim_seconds: Seconds = Field(
        default=4.0, description="how long a claim lasts: about how long a takeover takes"
    )
    relay_confirm_timeout_seconds: Seconds = 10.0
    relay_drain_seconds: Seconds = 3.0
    relay_max_in_flight: int = Field(
        default=1_000, ge=1, le=100_000, description="unconfirmed publishes, one a stream"
    )
    relay_window_rows: int = Field(
        default=16_384, ge=SHARD_COUNT, description="rows held between cursors and reads"
    )
    relay_window_bytes: int = Field(default=32 * 2**20, ge=2**20, description="of their bodies")
    relay_max_body_bytes: int = Field(
        default=8 * 2**20, ge=1024, description="a larger message is not sent; it blocks its stream"
    )
    relay_backoff_base_seconds: Seconds = 0.1
    relay_backoff_cap_seconds: Seconds = 30.0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What a caller passes, then the environment, then the files it names."""
        return (init_settings, env_settings, _SecretFiles(settings_cls))

    @field_validator("database_url")
    @classmethod
    def _postgresql_url(cls, value: SecretStr) -> SecretStr:
        if urlsplit(value.get_secret_value()).scheme not in ("postgresql", "postgres"):
            raise ValueError("write postgresql://user:password@host:port/database")
        return value

    @field_validator("broker_url")
    @classmethod
    def _amqp_url(cls, value: SecretStr) -> SecretStr:
        url = urlsplit(value.get_secret_value())
        if url.scheme not in ("amqp", "amqps") or not url.hostname:
            raise ValueError("write amqp://user:password@host:port/vhost, or amqps://")
        if "no_verify_ssl" in parse_qs(url.query):
            raise ValueError("certificates are always verified: remove no_verify_ssl")
        return value

    @field_validator("relay_listen")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        host_and_port(value)
        return value

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port; port 0 takes a free one."""
        return host_and_port(self.relay_listen)

    def limits(self) -> Limits:
        """Bounds of the window, durations in microseconds."""
        return Limits(
            rows=self.relay_window_rows,
            body_bytes=self.relay_window_bytes,
            shards=SHARD_COUNT,
            in_flight=self.relay_max_in_flight,
            backoff_base=round(self.relay_backoff_base_seconds * 1_000_000),
            backoff_cap=round(self.relay_backoff_cap_seconds * 1_000_000),
        )


def load_settings(**values: Any) -> RelaySettings:
    """Settings from ``values``, the environment and the files it names, in this order.

    Raises SettingsInvalid: names what is missing or wrong, never a value.
    """
    try:
        return RelaySettings(**values)
    except (ValidationError, SettingsError) as error:
        raise SettingsInvalid(
            f"The settings cannot be used: {_faults(error)}.",
            next_step="Set them in the environment, secrets also by file (TENURE_BROKER_URL_FILE).",
        ) from None  # the cause would show values


def host_and_port(value: str) -> tuple[str, int]:
    """``127.0.0.1:8421`` or ``[::1]:8421``. Raises ValueError otherwise."""
    host, separator, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("write host:port, like 127.0.0.1:8421")
    return host, int(port)


def _faults(error: ValidationError | SettingsError) -> str:
    if isinstance(error, SettingsError):
        return str(error)
    return "; ".join(
        f"{PREFIX}{'.'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    )
