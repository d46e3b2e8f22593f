"""docs/operations.md lists what is there, each once: metrics of every process."""

import re

import pytest
from prometheus_client import CollectorRegistry

from tenure.coordinator.metrics import Metrics
from tenure.executor.consumer_metrics import ConsumerMetrics
from tenure.executor.metrics import ExecutorMetrics
from tenure.relay.metrics import RelayMetrics
from tests.support.repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "operations.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("title", "registry"),
    [
        ("Coordinator", Metrics().registry),
        ("Relay", RelayMetrics().registry),
        ("Executor", ExecutorMetrics().registry),
        ("Consumer of events", ConsumerMetrics().registry),
    ],
)
def test_the_page_lists_every_metric(title: str, registry: CollectorRegistry) -> None:
    section = PAGE.split(f"\n### {title}\n")[1].split("\n##")[0]
    listed = re.findall(r"^\| `(tenure_\w+)`", section, re.MULTILINE)
    shown = [
        family.name + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
    ]
    assert sorted(listed) == sorted(shown)


def test_every_metric_that_the_page_names_exists() -> None:
    known = {
        family.name + ("_total" if family.type == "counter" else "")
        for registry in (
            Metrics().registry,
            RelayMetrics().registry,
            ExecutorMetrics().registry,
            ConsumerMetrics().registry,
        )
        for family in registry.collect()
    }
    assert set(re.findall(r"`(tenure_[a-z_]+)`", PAGE)) <= known
