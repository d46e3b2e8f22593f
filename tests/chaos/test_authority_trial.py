"""A short trial of the whole authority: see ``make trial-authority`` for the long one."""

from pathlib import Path

import pytest

from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.trials.authority import Asked, run


@pytest.mark.requirement("INC-01")
@pytest.mark.requirement("INC-02")
@pytest.mark.requirement("LEASE-02")
@pytest.mark.timeout(300)
async def test_under_kills_suspensions_and_lost_answers_every_task_ends_and_nothing_is_broken(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    found = await run(Asked(seed=11, seconds=5, tasks=100), database, broker, tmp_path)
    assert found["faults"] == [], found
    assert found["kills"] >= 4, found
