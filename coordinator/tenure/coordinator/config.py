"""Settings of the coordinator: ``TENURE_*`` in the environment, secrets also by ``…_FILE``."""

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_core import from_json
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from tenure.contract.ids import TENANT_PATTERN, TenantId
from tenure.contract.tasks import DEFAULT_PAYLOAD_LIMIT_BYTES
from tenure.contract.topology import DEFAULT_PREFIX
from tenure.coordinator.core.model import LeasePolicy
from tenure.coordinator.errors import SettingsInvalid
from tenure.coordinator.identities import Identities, Identity, Role

PREFIX: Final = "TENURE_"
_SECRETS: Final = ("database_url", "broker_url", "tokens")

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Connections = Annotated[int, Field(ge=1, le=200)]


class TokenEntry(BaseModel):
    """One bearer token: ``{"name", "token", "tenant", "role"}``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(min_length=1, max_length=100, pattern=r"^[\x21-\x7e]+$")
    token: SecretStr = Field(min_length=16, max_length=512)
    tenant: str = Field(pattern=f"^{TENANT_PATTERN.pattern}$")
    role: Role


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
                text = Path(path).read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                raise SettingsInvalid(
                    f"{variable}_FILE cannot be read: {error}.",
                    next_step="Name a text file that this process may read.",
                ) from error
            if name == "tokens":
                try:
                    found[name] = from_json(text)
                except ValueError as error:
                    raise SettingsInvalid(
                        f"{variable}_FILE holds no JSON.",
                        next_step="Write a list of {name, token, tenant, role}.",
                    ) from error
            else:
                found[name] = text
        return found


class CoordinatorSettings(BaseSettings):
    """Everything the coordinator can be told. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    database_url: SecretStr
    broker_url: SecretStr
    tokens: tuple[TokenEntry, ...] = Field(min_length=1)
    name_prefix: str = Field(default=DEFAULT_PREFIX, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")
    listen: str = "127.0.0.1:8420"
    log_format: Literal["auto", "console", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    payload_limit_bytes: int = Field(
        default=DEFAULT_PAYLOAD_LIMIT_BYTES, ge=1024, le=16 * 2**20, description="input or output"
    )
    batch_limit_bytes: int = Field(
        default=8 * 2**20, ge=2**16, le=2**28, description="body of a request with many items"
    )
    max_waiting_requests: int = Field(
        default=1000, ge=1, description="in the lanes; above it requests are refused as overloaded"
    )
    max_waiting_bytes: int = Field(default=256 * 2**20, ge=2**20, description="of their bodies")
    max_waiters: int = Field(default=10_000, ge=0, description="requests waiting for a result")
    tail_interval_seconds: Seconds = 0.1
    request_deadline_seconds: Seconds = 10.0
    drain_seconds: Seconds = 5.0

    read_connections: Connections = Field(default=4, description="for what people look at")
    node_connections: Connections = Field(default=3, description="for renewals alone")
    commit_connections: Connections = Field(default=8, description="for the lanes and the loops")

    policy_version: int = Field(default=1, ge=1)
    lease_seconds: Seconds = 30.0
    clock_tolerance_seconds: Annotated[float, Field(ge=0, le=60)] = 1.0
    node_silence_seconds: Seconds = 30.0
    retry_base_seconds: Seconds = 1.0
    retry_cap_seconds: Seconds = 300.0

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

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        host_and_port(value)
        return value

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port; port 0 takes a free one."""
        return host_and_port(self.listen)

    def identities(self) -> Identities:
        """Who may ask, by token."""
        return Identities(
            (
                entry.token.get_secret_value(),
                Identity(name=entry.name, tenant=TenantId(entry.tenant), role=entry.role),
            )
            for entry in self.tokens
        )

    def policy(self) -> LeasePolicy:
        """Terms of leases and retries, in microseconds (LEASE-08)."""
        return LeasePolicy(
            version=self.policy_version,
            lease_microseconds=_microseconds(self.lease_seconds),
            clock_tolerance_microseconds=_microseconds(self.clock_tolerance_seconds),
            node_silence_microseconds=_microseconds(self.node_silence_seconds),
            retry_base_microseconds=_microseconds(self.retry_base_seconds),
            retry_cap_microseconds=_microseconds(self.retry_cap_seconds),
        )


def load_settings(**values: Any) -> CoordinatorSettings:
    """Settings from ``values``, the environment and the files it names, in this order.

    Raises SettingsInvalid: names what is missing or wrong, never a value.
    """
    try:
        settings = CoordinatorSettings(**values)
    except (ValidationError, SettingsError) as error:
        raise SettingsInvalid(
            f"The settings cannot be used: {_faults(error)}.",
            next_step="Set them in the environment, secrets also by file (TENURE_TOKENS_FILE).",
        ) from None  # the cause would show values
    tokens = [entry.token.get_secret_value() for entry in settings.tokens]
    if len(set(tokens)) != len(tokens):
        raise SettingsInvalid("Two entries of TENURE_TOKENS have one token.")
    return settings


def host_and_port(value: str) -> tuple[str, int]:
    """``127.0.0.1:8420`` or ``[::1]:8420``. Raises ValueError otherwise."""
    host, separator, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("write host:port, like 127.0.0.1:8420")
    return host, int(port)


def _faults(error: ValidationError | SettingsError) -> str:
    if isinstance(error, SettingsError):
        return str(error)
    return "; ".join(
        f"{PREFIX}{'.'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    )


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
