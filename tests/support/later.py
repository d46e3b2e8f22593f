"""The clock that time limits of processes go by, set forward by a test."""

import time
from types import SimpleNamespace

import pytest


def is_later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """So many seconds have passed for whoever watches over processes."""
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + seconds, sleep=time.sleep)
    monkeypatch.setattr("tenure.executor.isolation.deadlines.time", clock)
