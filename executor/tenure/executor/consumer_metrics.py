"""What a consumer of events tells Prometheus."""

from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_KEPT: Final = ("parked", "behind", "retry")


class ConsumerMetrics:
    """All metrics of one consumer process, with a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter(
            "tenure_consumer_events",
            "Events by what was made of them.",
            ("outcome",),
            registry=self.registry,
        )
        self.asked = Counter(
            "tenure_consumer_asked",
            "Streams that were read from the coordinator, by why.",
            ("why",),
            registry=self.registry,
        )
        self.missed = Counter(
            "tenure_consumer_missed",
            "Events that no message had brought.",
            registry=self.registry,
        )
        self.gaps_left = Counter(
            "tenure_consumer_gaps_left",
            "Gaps that the coordinator could not fill.",
            ("why",),
            registry=self.registry,
        )
        self.failures = Counter(
            "tenure_consumer_failures", "Failures of handlers.", registry=self.registry
        )
        self.handler_seconds = Histogram(
            "tenure_consumer_handler_seconds",
            "Seconds that handlers ran.",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60),
            registry=self.registry,
        )
        self.delay = Gauge(
            "tenure_consumer_delay_seconds",
            "From when an event was recorded until it was handled, of the last one.",
            registry=self.registry,
        )
        self._kept = Gauge(
            "tenure_consumer_kept", "Events kept in the inbox.", ("state",), registry=self.registry
        )
        self._usable = Gauge(
            "tenure_consumer_usable",
            "1 while the server can be used.",
            ("server",),
            registry=self.registry,
        )

    def set_kept(self, counts: Mapping[str, int]) -> None:
        """How many events wait in the inbox, by state."""
        for state in _KEPT:
            self._kept.labels(state).set(counts.get(state, 0))

    def render(self, usable: Sequence[tuple[str, bool]]) -> bytes:
        """The page; ``usable`` tells of each server whether it can be used now."""
        for server, answer in usable:
            self._usable.labels(server=server).set(answer)
        return generate_latest(self.registry)
