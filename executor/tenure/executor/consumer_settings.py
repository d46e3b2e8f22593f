"""Settings of a consumer process: see docs/settings.md."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from tenure.settings.addresses import HttpUrl, ListenAddress, host_and_port
from tenure.settings.process import BrokerSettings, LogSettings, load
from tenure.settings.secrets import Password

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class ConsumerSettings(LogSettings, BrokerSettings):
    """Everything a consumer of events can be told. Durations in seconds."""

    process: ClassVar[str] = "consumer"

    url: HttpUrl = Field(default="http://127.0.0.1:8420", description="of the coordinator")
    token: Password = Field(description="bearer token with the role read_only or application")
    consumer_listen: ListenAddress | None = Field(
        default=None, description="host:port of health and metrics; none: no listener"
    )
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=30.0, description="how long a stop waits for handlers that were begun"
    )
    consumer_reconcile_seconds: Seconds = Field(
        default=300.0,
        description="how often a stream that goes on is compared with the coordinator's",
    )
    consumer_evidence_seconds: Seconds = Field(
        default=30.0,
        description="how often the coordinator is told how far streams have come: after a restore"
        " it learns from it that history was lost",
    )

    @property
    def listen_address(self) -> tuple[str, int] | None:
        """Host and port of health and metrics; port 0 takes a free one; None: no listener."""
        return host_and_port(self.consumer_listen) if self.consumer_listen else None


def load_settings(**values: Any) -> ConsumerSettings:
    """From ``values``, the environment and the files these name. Raises SettingsInvalid."""
    return load(ConsumerSettings, values)
