"""A lane whose database stays away: it goes on trying, however long that is."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tenure.contract.states import TaskState
from tenure.coordinator import lanes
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decisions import Accepted, Outcome
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.store.commit import Committed
from tenure.coordinator.store.load import Loaded
from tests.support.rows import CANCEL, NOW, waiting

OUTAGE = 1_500
"""More failures in a row than a float has powers of two."""


class Watching:
    """Counts failed batches."""

    def __init__(self) -> None:
        self.stalls = 0

    def batch_committed(self, lane: str, items: int, applied: int) -> None:
        raise AssertionError

    def refused(self, lane: str, code: str) -> None:
        raise AssertionError

    def evidence_kept(self, code: str) -> None:
        raise AssertionError

    def stalled(self, lane: str, error: str) -> None:
        self.stalls += 1


async def test_a_lane_outlives_any_number_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_PAUSE_CAP_SECONDS", 0.0)
    watching = Watching()

    async def load(commands: Sequence[AnyCommand]) -> Loaded:
        if watching.stalls < OUTAGE:
            raise OSError("no route to host")
        return Loaded(NOW, True, (waiting(state=TaskState.DELIVERED),))

    async def commit(items: Sequence[tuple[AnyCommand, Accepted]], seen: Any) -> Committed:
        raise AssertionError

    lane = lanes.Lane("reports", load, commit, LeasePolicy, watching, lambda events: None)
    running = asyncio.create_task(lane.run())
    outcomes: list[Outcome] = await lane.submit([CANCEL])
    assert outcomes[0].reply is not None
    assert outcomes[0].reply.outcome == "ended"
    assert watching.stalls == OUTAGE
    lane.close()
    await running
