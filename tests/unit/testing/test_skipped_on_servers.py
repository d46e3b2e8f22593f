"""What real servers cannot do as memory does is skipped, and says why."""

import pytest

from tenure.cli.testing.fleet import RealClock, ServerFleet, make_server_fleet
from tenure.cli.testing.servers import Servers
from tenure.executor.testing import FleetTask
from tests.support.kit_app import Shipped, app


async def never() -> None:
    raise AssertionError("nothing begins")


async def test_hours_do_not_pass_on_servers() -> None:
    with pytest.raises(pytest.skip.Exception, match="3600 s take 3600 s"):
        await RealClock(never).advance(seconds=3600)


def test_leases_on_servers_have_one_length() -> None:
    with pytest.raises(pytest.skip.Exception, match="leases are 8 s long"):
        make_server_fleet(app, Servers(), lease_seconds=60)


async def test_a_queue_keeps_its_order_on_servers() -> None:
    with pytest.raises(pytest.skip.Exception, match="a queue of RabbitMQ keeps its order"):
        await ServerFleet(app, Servers()).reorder(FleetTask("a", Shipped))
