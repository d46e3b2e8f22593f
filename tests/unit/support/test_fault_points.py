"""Every named fault point is struck by a test that waits for it."""

from tenure.contract.faultpoints import FaultPoint
from tests.chaos import (
    test_coordinator_killed,
    test_executor_killed,
    test_parking_killed,
    test_relay_killed,
)


def test_every_fault_point_is_struck_by_a_test_of_its_process() -> None:
    struck = {
        *test_coordinator_killed.POINTS,
        *test_relay_killed.POINTS,
        *test_parking_killed.POINTS,
        *test_executor_killed.POINTS,
    }
    assert struck == set(FaultPoint)
