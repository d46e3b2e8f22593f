"""What the relay tells Prometheus. Labels are bounded: outcomes and servers.

The lag comes from the database at a scrape, is that of all relays together, and is kept for some
seconds, so that many scrapers cost one query.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from tenure.relay.core.outcome import DELAYING, Outcome
from tenure.relay.core.parking import Unparking
from tenure.relay.core.window import Window
from tenure.relay.errors import LogUnavailable
from tenure.relay.log import Lag

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
LAG_KEPT_SECONDS: Final = 5.0


class RelayMetrics:
    """All metrics of one relay, with a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.read = self._counter("rows_read", "Rows read from the log.")
        self.published = self._counter("published", "Rows published, each once.")
        outcomes = Counter(
            "tenure_relay_publishes",
            "Publishes by how they ended; a row may need several.",
            ("outcome",),
            registry=self.registry,
        )
        self.outcomes = {outcome: outcomes.labels(outcome=outcome.value) for outcome in Outcome}
        parked = Counter(
            "tenure_relay_parked",
            "Rows set aside because they could not be published, by how that failed.",
            ("outcome",),
            registry=self.registry,
        )
        self.parked = {outcome: parked.labels(outcome=outcome.value) for outcome in DELAYING}
        unparked = Counter(
            "tenure_relay_unparked",
            "Parked rows that were due, by what became of them.",
            ("result",),
            registry=self.registry,
        )
        self.unparked = {what: unparked.labels(result=what.value) for what in Unparking}
        self.duplicates_possible = self._counter(
            "duplicates_possible", "Publishes that may have arrived and are repeated."
        )
        self.late_confirms = self._counter(
            "late_confirms", "Confirms of publishes that had been given up: duplicates."
        )
        self.claims_lost = self._counter("claims_lost", "Claims that ended unasked.")
        self.claims = self._gauge("claims", "Shards this relay holds.")
        self.share = self._gauge("share", "Shards that are due to this relay among all.")
        self.handed_over = self._counter("handed_over", "Shards handed over to other relays.")
        self.replayed = self._counter("replayed", "Rows published once more, for replays.")
        replay_outcomes = Counter(
            "tenure_relay_replay_publishes",
            "Publishes for replays by how they ended; a row may need several.",
            ("outcome",),
            registry=self.registry,
        )
        self.replay_outcomes = {
            outcome: replay_outcomes.labels(outcome=outcome.value) for outcome in Outcome
        }
        self.replays = self._gauge("replays", "Replays this relay works on.")
        self._in_flight = self._gauge("in_flight", "Publishes without an answer.")
        self._unconfirmed = self._gauge(
            "unconfirmed_seconds",
            "Since when the broker has confirmed nothing although publishes wait for that.",
        )
        self._rows = self._gauge("window_rows", "Rows between the cursors and what was read.")
        self._bytes = self._gauge("window_bytes", "Bytes of the bodies held.")
        failing = Gauge(
            "tenure_relay_failing_streams",
            "Streams whose next row is tried again and again, by how it failed last.",
            ("outcome",),
            registry=self.registry,
        )
        self._failing = {outcome: failing.labels(outcome=outcome.value) for outcome in DELAYING}
        self._parked_rows = self._gauge(
            "parked_rows", "Parked rows of the shards this relay holds."
        )
        self._full_shards = self._gauge(
            "full_shards", "Shards with so many parked rows that what fails holds them up."
        )
        self._lag_rows = self._gauge(
            "lag_rows", "Rows that no relay has published (each shard up to 20,000)."
        )
        self._lag_seconds = self._gauge("lag_seconds", "Age of the oldest of these rows.")
        self._connected = Gauge(
            "tenure_relay_connected",
            "1 while the server can be used.",
            ("server",),
            registry=self.registry,
        )
        self._lag_until = 0.0

    async def render(
        self,
        window: Window,
        lag: Callable[[], Awaitable[Lag]],
        *,
        database_well: bool,
        broker_usable: bool,
        unconfirmed_seconds: float,
    ) -> bytes:
        """The text of ``/metrics``. Without the database the lag stays as it was last known."""
        self._in_flight.set(window.in_flight)
        self._unconfirmed.set(unconfirmed_seconds)
        self._rows.set(window.rows)
        self._bytes.set(window.body_bytes)
        self._parked_rows.set(window.parked)
        self._full_shards.set(window.full_shards)
        failing_streams = window.failing_streams
        for outcome, gauge in self._failing.items():
            gauge.set(failing_streams[outcome])
        self._connected.labels(server="broker").set(broker_usable)
        self._connected.labels(server="database").set(database_well)
        now = time.monotonic()
        if database_well and now >= self._lag_until:
            self._lag_until = now + LAG_KEPT_SECONDS
            try:
                found = await lag()
            except LogUnavailable:
                pass  # the loop says so
            else:
                self._lag_rows.set(found.rows)
                self._lag_seconds.set(found.seconds)
        return generate_latest(self.registry)

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(f"tenure_relay_{name}", what, registry=self.registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"tenure_relay_{name}", what, registry=self.registry)
