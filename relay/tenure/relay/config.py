"""Settings of the relay: see docs/settings.md."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tenure.contract.topology import DEFAULT_PREFIX, SHARD_COUNT
from tenure.relay.core.parking import ParkingPolicy, ParkingTerms
from tenure.relay.core.rows import Limits
from tenure.settings.addresses import ListenAddress, host_and_port
from tenure.settings.process import (
    BrokerSettings,
    DatabaseSettings,
    LogSettings,
    NamePrefix,
    load,
)

Seconds = Annotated[float, Field(gt=0, le=300)]


class RelaySettings(LogSettings, BrokerSettings, DatabaseSettings):
    """Everything the relay can be told. Durations in seconds, sizes in bytes."""

    process: ClassVar[str] = "relay"

    name_prefix: NamePrefix = Field(
        default=DEFAULT_PREFIX, description="of every name on the broker; as the coordinator has it"
    )
    relay_listen: ListenAddress = Field(
        default="127.0.0.1:8421",
        description="host:port of health and metrics; port 0 takes a free one",
    )

    relay_claim_seconds: Seconds = Field(
        default=4.0, description="how long a claim lasts: about how long a takeover takes"
    )
    relay_confirm_timeout_seconds: Seconds = Field(
        default=10.0, description="after it a publish is given up and made again"
    )
    relay_drain_seconds: Seconds = Field(
        default=3.0, description="how long a stop waits for what is unconfirmed"
    )
    relay_max_in_flight: int = Field(
        default=1_000, ge=1, le=100_000, description="unconfirmed publishes, one a stream"
    )
    relay_window_rows: int = Field(
        default=16_384, ge=SHARD_COUNT, description="rows held between cursors and reads"
    )
    relay_window_bytes: int = Field(
        default=32 * 2**20, ge=2**20, description="of the bodies of these rows"
    )
    relay_max_body_bytes: int = Field(
        default=8 * 2**20, ge=1024, description="a larger message is not sent: it is parked"
    )
    relay_backoff_base_seconds: Seconds = Field(
        default=0.1, description="about how long a stream waits after its first failure"
    )
    relay_backoff_cap_seconds: Seconds = Field(
        default=30.0, description="the longest that a stream waits"
    )

    relay_parking: Literal["hold", "flow"] = Field(
        default="hold",
        description="hold or flow: whether later messages of a stream wait for one that is parked",
    )
    relay_park_after_seconds: Annotated[float, Field(gt=0, le=86_400)] = Field(
        default=30.0, description="how long a message may fail before it is parked"
    )
    relay_max_parked_rows: int = Field(
        default=2_000, ge=1, le=100_000, description="of each shard; beyond it the shard waits"
    )

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.relay_backoff_base_seconds > self.relay_backoff_cap_seconds:
            raise ValueError(
                "TENURE_RELAY_BACKOFF_BASE_SECONDS is above TENURE_RELAY_BACKOFF_CAP_SECONDS"
            )
        return self

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
            parking=ParkingTerms(
                policy=ParkingPolicy(self.relay_parking),
                after=round(self.relay_park_after_seconds * 1_000_000),
                rows_per_shard=self.relay_max_parked_rows,
            ),
        )


def load_settings(**values: Any) -> RelaySettings:
    """From ``values``, the environment and the files these name. Raises SettingsInvalid."""
    return load(RelaySettings, values)
