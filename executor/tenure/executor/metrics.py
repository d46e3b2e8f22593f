"""What an executor tells Prometheus. Labels are bounded: task types, outcomes, kinds, codes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

MetricT = TypeVar("MetricT", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class Labelled(Generic[MetricT]):
    """A metric with labels. The library looks a child up for longer than it counts."""

    labels: Callable[..., MetricT]


class ExecutorMetrics:
    """All metrics of one executor process, with a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.messages = self._counters(
            "messages", "Messages by what was made of them.", ("source", "why")
        )
        self.duplicates = self._counter("duplicates", "Assignments that were known already.")
        self.attempts = self._counters(
            "attempts", "Attempts by how they ended here.", ("task_type", "outcome")
        )
        self.lease_lost = self._counters(
            "lease_lost",
            "Attempts whose authority was over before their end was applied, by why.",
            ("task_type", "why"),
        )
        self.refused_effects = self._counters(
            "refused_effects",
            "Attempts ended because a receiver, or the last check before it, refused an effect.",
            ("task_type", "code"),
        )
        self.suspects = self._counters(
            "suspects", "Attempts run alone, since earlier ones were lost.", ("task_type",)
        )
        handler_seconds = Histogram(
            "tenure_executor_handler_seconds",
            "Seconds that handlers ran.",
            ("task_type",),
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
            registry=self.registry,
        )
        self.handler_seconds: Labelled[Histogram] = Labelled(cache(handler_seconds.labels))
        self.reports = self._counters("reports", "Answered reports.", ("kind", "outcome"))
        self.report_batch = Histogram(
            "tenure_executor_report_batch_items",
            "Reports in one request.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.renewals = self._counters("renewals", "Answered renewals.", ("outcome",))
        self.renewal_rounds = self._counters(
            "renewal_rounds", "Requests to renew, heartbeats included.", ("outcome",)
        )
        self.heard_at = self._gauge(
            "heard_timestamp_seconds", "When the coordinator answered a heartbeat last."
        )
        self.consumer_sessions = self._counter(
            "consumer_sessions", "Times that messages began to be consumed."
        )
        self.inbox_replaced = self._counter("inbox_replaced", "Inbox files found broken or gone.")
        self.slots = self._gauge("slots", "Tasks that may run at once.")
        self.slots_used = self._gauge("slots_used", "Tasks that run.")
        running = self._gauge("running", "Tasks of a type that run.", ("task_type",))
        self.running: Labelled[Gauge] = Labelled(cache(running.labels))
        self.concurrency = self._gauge(
            "concurrency", "Tasks of a type that may run at once.", ("task_type",)
        )
        self._usable = self._gauge("usable", "1 while the server can be used.", ("server",))

    def heard(self) -> None:
        """The coordinator answered a heartbeat."""
        self.heard_at.set(time.time())

    def render(self, usable: Sequence[tuple[str, bool]]) -> bytes:
        """The page; ``usable`` tells of each server whether it can be used now."""
        for server, answer in usable:
            self._usable.labels(server=server).set(answer)
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"tenure_executor_{name}", text, registry=self.registry)

    def _counters(self, name: str, text: str, labels: Sequence[str]) -> Labelled[Counter]:
        counter = Counter(f"tenure_executor_{name}", text, labels, registry=self.registry)
        return Labelled(cache(counter.labels))

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"tenure_executor_{name}", text, labels, registry=self.registry)
