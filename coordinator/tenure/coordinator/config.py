"""Settings of the coordinator, and of migrations: see docs/settings.md."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, model_validator
from pydantic import ValidationError as InvalidTokens

from tenure.contract.ids import TENANT_PATTERN, TenantId
from tenure.contract.tasks import DEFAULT_PAYLOAD_LIMIT_BYTES
from tenure.contract.topology import DEFAULT_PREFIX
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.identities import CurrentIdentities, Identities, Identity, Role
from tenure.coordinator.store.roles import Roles
from tenure.settings.addresses import DatabaseUrl, ListenAddress, host_and_port
from tenure.settings.process import (
    BrokerSettings,
    DatabaseSettings,
    LogSettings,
    NamePrefix,
    ProcessSettings,
    load,
)
from tenure.settings.secrets import Password, Secret

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Connections = Annotated[int, Field(ge=1, le=200)]


class TokenEntry(BaseModel):
    """One bearer token: ``{"name", "token", "tenant", "role"}``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(min_length=1, max_length=100, pattern=r"^[\x21-\x7e]+$")
    token: SecretStr = Field(min_length=16, max_length=512)
    tenant: str = Field(pattern=f"^{TENANT_PATTERN.pattern}$")
    role: Role


_ENTRIES = TypeAdapter(Annotated[tuple[TokenEntry, ...], Field(min_length=1)])


class Tokens(Secret[tuple[TokenEntry, ...]]):
    """All bearer tokens, as a JSON list."""

    @classmethod
    def parse(cls, text: str) -> tuple[TokenEntry, ...]:
        """The entries. Raises ValueError, which says where and never what."""
        try:
            entries = _ENTRIES.validate_json(text)
        except InvalidTokens as error:
            faults = error.errors(include_url=False, include_input=False, include_context=False)
            # Without the cause, which would show values.
            raise ValueError(
                "; ".join(_said(*fault["loc"], fault["msg"]) for fault in faults)
            ) from None
        tokens = {entry.token.get_secret_value() for entry in entries}
        if len(tokens) != len(entries):
            raise ValueError("two entries have one token")
        return entries

    def shown(self) -> str:
        """Who has a token, and for what."""
        return ", ".join(
            f"{entry.name} ({entry.role.value} of {entry.tenant})" for entry in self.current()
        )

    def identities(self) -> Identities:
        """Who may ask, by token, as of now."""
        return Identities(
            (
                entry.token.get_secret_value(),
                Identity(name=entry.name, tenant=TenantId(entry.tenant), role=entry.role),
            )
            for entry in self.current()
        )


class CoordinatorSettings(LogSettings, BrokerSettings, DatabaseSettings):
    """Everything the coordinator can be told. Durations in seconds, sizes in bytes."""

    process: ClassVar[str] = "coordinator"

    tokens: Tokens = Field(
        description='bearer tokens: JSON list of `{"name", "token", "tenant", "role"}`, the role'
        " one of application, executor, operator, read_only"
    )
    name_prefix: NamePrefix = Field(
        default=DEFAULT_PREFIX, description="of every name on the broker"
    )
    listen: ListenAddress = Field(
        default="127.0.0.1:8420", description="host:port of HTTP; port 0 takes a free one"
    )

    payload_limit_bytes: int = Field(
        default=DEFAULT_PAYLOAD_LIMIT_BYTES,
        ge=1024,
        le=16 * 2**20,
        description="of a task's input or output as JSON",
    )
    batch_limit_bytes: int = Field(
        default=8 * 2**20, ge=2**16, le=2**28, description="body of a request with many items"
    )
    max_waiting_requests: int = Field(
        default=1000, ge=1, description="in the lanes; above it requests are refused as overloaded"
    )
    max_waiting_bytes: int = Field(
        default=256 * 2**20, ge=2**20, description="of the bodies of requests in the lanes"
    )
    max_waiters: int = Field(default=10_000, ge=0, description="requests waiting for a result")
    tail_interval_seconds: Seconds = Field(
        default=0.1, description="how often waiting requests look for ended tasks, all together"
    )
    request_deadline_seconds: Seconds = Field(
        default=10.0, description="after it a request is answered as unavailable"
    )
    drain_seconds: Seconds = Field(
        default=5.0, description="how long a stop waits for requests that are under way"
    )

    read_connections: Connections = Field(
        default=4, description="to the database, for what people look at"
    )
    node_connections: Connections = Field(
        default=3, description="to the database, for renewals alone"
    )
    commit_connections: Connections = Field(
        default=8, description="to the database, for the lanes and the loops"
    )

    lease_seconds: Seconds = Field(
        default=30.0,
        description="how long a lease lasts. This and the next four are for a new database; later"
        " `tenure policy set` changes the terms",
    )
    clock_tolerance_seconds: Annotated[float, Field(ge=0, le=60)] = Field(
        default=1.0, description="by how much clocks may differ: authority ends that much earlier"
    )
    node_silence_seconds: Seconds = Field(
        default=30.0, description="after it a silent node gets nothing new"
    )
    retry_base_seconds: Seconds = Field(
        default=1.0, description="about how long the second attempt waits"
    )
    retry_cap_seconds: Seconds = Field(
        default=300.0, description="the longest that any attempt waits"
    )

    node_retired_seconds: Annotated[float, Field(gt=0, le=30 * 86_400)] = Field(
        default=600.0,
        description="after it a silent start of a node that holds nothing is gone, and its queue"
        " goes",
    )

    @model_validator(mode="after")
    def _terms_agree(self) -> Self:
        if self.lease_seconds <= self.clock_tolerance_seconds:
            raise ValueError(
                "TENURE_LEASE_SECONDS must be longer than TENURE_CLOCK_TOLERANCE_SECONDS: a lease"
                " would be over when it begins"
            )
        if self.retry_base_seconds > self.retry_cap_seconds:
            raise ValueError("TENURE_RETRY_BASE_SECONDS is above TENURE_RETRY_CAP_SECONDS")
        if self.payload_limit_bytes > self.batch_limit_bytes:
            raise ValueError(
                "TENURE_PAYLOAD_LIMIT_BYTES is above TENURE_BATCH_LIMIT_BYTES: one item would not"
                " fit into a batch"
            )
        return self

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port; port 0 takes a free one."""
        return host_and_port(self.listen)

    def identities(self) -> CurrentIdentities:
        """Who may ask, by token; a file of tokens is looked at again while the process runs."""
        return CurrentIdentities(self.tokens.identities)

    def policy(self) -> LeasePolicy:
        """Terms that a new database gets, in microseconds (LEASE-08)."""
        return LeasePolicy(
            lease_microseconds=_microseconds(self.lease_seconds),
            clock_tolerance_microseconds=_microseconds(self.clock_tolerance_seconds),
            node_silence_microseconds=_microseconds(self.node_silence_seconds),
            retry_base_microseconds=_microseconds(self.retry_base_seconds),
            retry_cap_microseconds=_microseconds(self.retry_cap_seconds),
        )


class MigrateSettings(ProcessSettings):
    """What `tenure migrate` can be told."""

    process: ClassVar[str] = "migrate"

    database_url: DatabaseUrl = Field(
        description="the login that owns the schema, directly: not through a pooler in transaction"
        " mode"
    )
    coordinator_role: str = Field(
        default="tenure_coordinator", min_length=1, description="role of the coordinators"
    )
    relay_role: str = Field(default="tenure_relay", min_length=1, description="role of the relays")
    coordinator_password: Password | None = Field(
        default=None, description="new password of that role; none: left as it is"
    )
    relay_password: Password | None = Field(
        default=None, description="new password of that role; none: left as it is"
    )

    @model_validator(mode="after")
    def _a_role_each(self) -> Self:
        if self.coordinator_role == self.relay_role:
            raise ValueError("TENURE_COORDINATOR_ROLE and TENURE_RELAY_ROLE name one role")
        return self

    def roles(self) -> Roles:
        """The services' roles, and their new passwords."""
        return Roles(
            coordinator=self.coordinator_role,
            relay=self.relay_role,
            coordinator_password=_current(self.coordinator_password),
            relay_password=_current(self.relay_password),
        )


def load_settings(**values: Any) -> CoordinatorSettings:
    """From ``values``, the environment and the files these name. Raises SettingsInvalid."""
    return load(CoordinatorSettings, values)


def _said(*parts: int | str) -> str:
    """``(0, "token", "too short")`` as words."""
    return " ".join(f"entry {part}" if isinstance(part, int) else part for part in parts)


def _current(password: Password | None) -> str | None:
    return None if password is None else password.current()


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
