"""What real servers cannot do as memory does is skipped, and says why."""

import pytest

from tenure.cli.testing.fleet import RealClock, ServerFleet
from tenure.cli.testing.servers import Servers
from tests.support.kit_app import app


async def never() -> None:
    raise AssertionError("nothing begins")


async def test_hours_do_not_pass_on_servers() -> None:
    with pytest.raises(pytest.skip.Exception, match="3600 s take 3600 s"):
        await RealClock(never).advance(seconds=3600)


def test_leases_that_run_out_while_they_are_granted_are_not_tried() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"a lease of 0\.5 s runs out"):
        ServerFleet(app, Servers(), lease_seconds=0.5)
    ServerFleet(app, Servers(), lease_seconds=600)
