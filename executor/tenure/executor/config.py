"""Settings of an executor process: ``TENURE_*`` in the environment, secrets also by ``…_FILE``."""

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from tenure.contract.ids import NODE_PATTERN, NodeId
from tenure.contract.reports import Resources
from tenure.contract.tasks import DEFAULT_PAYLOAD_LIMIT_BYTES
from tenure.executor.errors import SettingsInvalid

PREFIX: Final = "TENURE_"
_SECRETS: Final = ("token", "broker_url")

Seconds = Annotated[float, Field(gt=0, le=86_400)]


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


class ExecutorSettings(BaseSettings):
    """Everything an executor can be told. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    url: str = "http://127.0.0.1:8420"
    token: SecretStr
    broker_url: SecretStr
    state_dir: Path = Path(".tenure")
    log_format: Literal["auto", "console", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    node: str | None = Field(
        default=None,
        pattern=f"^{NODE_PATTERN.pattern}$",
        description="name of this node, unique within the tenant; none: made up for this start",
    )
    slots: int = Field(
        default_factory=lambda: os.cpu_count() or 1,
        ge=1,
        le=100_000,
        description="tasks that run at once",
    )
    cpu_millis: int | None = Field(
        default=None, ge=0, description="offered, thousandths of a core; none: not limited"
    )
    memory_bytes: int | None = Field(default=None, ge=0, description="offered; none: not limited")
    executor_listen: str | None = Field(
        default=None, description="host:port of health and metrics; none: no listener"
    )
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    output_limit_bytes: int = Field(
        default=DEFAULT_PAYLOAD_LIMIT_BYTES, ge=1024, description="of a task's output as JSON"
    )
    inbox_retention_seconds: float = Field(
        default=7 * 86_400,
        gt=0,
        le=366 * 86_400,
        description="how long ended rows stay: longer than any way a message may come back",
    )
    comparison_seconds: Seconds = Field(
        default=10.0, description="how often the coordinator is asked what this node should have"
    )

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

    @field_validator("url")
    @classmethod
    def _http_url(cls, value: str) -> str:
        url = urlsplit(value)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("write http://host:port, or https://")
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

    @field_validator("executor_listen")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value:
            host_and_port(value)
        return value or None

    @property
    def listen_address(self) -> tuple[str, int] | None:
        """Host and port of health and metrics; port 0 takes a free one; None: no listener."""
        return host_and_port(self.executor_listen) if self.executor_listen else None

    @property
    def resources(self) -> Resources | None:
        """What the node offers besides its slots; None: not limited."""
        if self.cpu_millis is None and self.memory_bytes is None:
            return None
        return Resources(
            cpu_millis=10**9 if self.cpu_millis is None else self.cpu_millis,
            memory_bytes=2**60 if self.memory_bytes is None else self.memory_bytes,
        )

    def node_id(self, executor_name: str, incarnation: str) -> NodeId:
        """The node's name: as set, else host, program and a part of the incarnation, so that two
        processes of one machine never take each other's name."""
        if self.node is not None:
            return NodeId(self.node)
        made = f"{socket.gethostname()}.{executor_name}"
        made = re.sub(r"[^A-Za-z0-9._-]", "-", made).lstrip("._-")[:100] or "node"
        return NodeId(f"{made}.{incarnation[:8]}")


def load_settings(**values: Any) -> ExecutorSettings:
    """Settings from ``values``, the environment and the files it names, in this order.

    Raises SettingsInvalid: names what is missing or wrong, never a value.
    """
    try:
        return ExecutorSettings(**values)
    except (ValidationError, SettingsError) as error:
        raise SettingsInvalid(
            f"The settings cannot be used: {_faults(error)}.",
            next_step="Set them in the environment, secrets also by file (TENURE_TOKEN_FILE).",
        ) from None  # the cause would show values


def host_and_port(value: str) -> tuple[str, int]:
    """``127.0.0.1:8422`` or ``[::1]:8422``. Raises ValueError otherwise."""
    host, separator, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("write host:port, like 127.0.0.1:8422")
    return host, int(port)


def _faults(error: ValidationError | SettingsError) -> str:
    if isinstance(error, SettingsError):
        return str(error)
    return "; ".join(
        f"{PREFIX}{'.'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    )
