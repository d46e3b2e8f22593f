"""The fleet in memory and the one on servers tell the same story of the same fault, and with a
receiver that is a real database the one in memory shows what that refuses."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tenure.cli.testing.fleet import ServerFleet
from tenure.cli.testing.servers import Servers
from tenure.executor import StaleToken
from tenure.executor.testing import Fleet, MakeFleet, MemoryFleet, Story
from tenure.executor.testing.fleet import Where
from tests.support.armed_app import WRITE, Row, executor
from tests.support.downstream import downstream
from tests.support.isolation import FreshDatabase
from tests.support.kit_app import SHIP, SHIP_UNGUARDED, Order, Warehouse, app

QUICK = ("duplicate", "kill_relay_after_confirm")
SLOW = ("expire_lease", "late_receipt", "zombie", "kill_node")
"""Leases run out by a real clock in these: `make test-kit` tries them too, half a minute more."""
FAULTS = QUICK + SLOW if os.environ.get("TENURE_TEST_KIT") == "all" else QUICK


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Those that the plugin starts for `--tenure-servers=local`."""
    started = Servers()
    yield started
    started.stop()


async def told(fleet: Fleet, fault: str, parcels: list[int]) -> dict[str, Any]:
    """What a test sees of a fault, but for names and times."""
    async with fleet:
        task = await fleet.submit(SHIP, Order(number=17))
        answer = await getattr(fleet, fault)(task)
        output = await fleet.result(task)
        story = await fleet.story(task)
    return {
        "answer": answer if isinstance(answer, int) else answer.ordinal,
        "output": output,
        "parcels": parcels,
        **seen(story),
    }


def seen(story: Story) -> dict[str, Any]:
    """A story without names and times; what happens to one entity is in its order."""
    return {
        "task": (story.state, story.reason, story.output),
        "attempts": [
            (each.ordinal, each.fencing_token, each.state, each.reason, each.began,
             type(each.raised))
            for each in story.attempts
        ],
        "receipts": {(each.ordinal, each.admitted, each.code) for each in story.receipts},
        "events": sorted(
            (
                (each.ordinal or 0, number, each.previous_state, each.next_state, each.reason)
                for ordinal in {each.ordinal for each in story.events}
                for number, each in enumerate(e for e in story.events if e.ordinal == ordinal)
            ),
            key=lambda event: event[:2],
        ),
    }  # fmt: skip


@pytest.mark.timeout(180)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_tells_the_same_story_in_memory_and_on_servers(
    servers: Servers, fault: str
) -> None:
    at_hand, far = Warehouse(), Warehouse()
    in_memory = await told(MemoryFleet(app, resources=at_hand), fault, at_hand.parcels)
    on_servers = await told(ServerFleet(app, servers, resources=far), fault, far.parcels)
    assert on_servers == in_memory


@pytest.mark.timeout(180)
async def test_nothing_begins_on_servers_before_the_test_waits(servers: Servers) -> None:
    warehouse = Warehouse()
    async with ServerFleet(app, servers, resources=warehouse) as fleet:
        tasks = [await fleet.submit(SHIP_UNGUARDED, Order(number=n)) for n in range(3)]
        assert [(await fleet.story(task)).attempts for task in tasks] == [()] * 3
        await fleet.run_until_idle()
        outputs = [await fleet.result(task) for task in tasks]
    assert [each.number for each in outputs] == [0, 1, 2]
    assert len(warehouse.parcels) == 3


@pytest.mark.parametrize("at", ["handler", "effect"])
async def test_a_real_database_refuses_the_zombie_of_a_fleet_in_memory(
    tenure_fleet: MakeFleet, empty_database: FreshDatabase, at: Where
) -> None:
    async with (
        downstream(empty_database.admin_url) as ledger,
        tenure_fleet(executor(ledger.writer_url)) as fleet,
    ):
        task = await fleet.submit(WRITE, Row(value="once"))
        zombie = await fleet.zombie(task, at=at)
        assert isinstance(zombie.raised, StaleToken)
        assert zombie.raised.seen_token == zombie.fencing_token + 1
        assert await ledger.effects(task.task_id) == ["once"]
        await fleet.result(task)
