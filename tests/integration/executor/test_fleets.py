"""The fleet in memory and the one on servers tell the same story of the same fault, and with a
receiver that is a real database the one in memory shows what that refuses."""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.cli.testing.fleet import ServerFleet
from tenure.cli.testing.servers import Servers
from tenure.executor import Context, Executor, StaleToken, TaskType
from tenure.executor.testing import Fleet, MakeFleet, MemoryFleet, Story
from tenure.executor.testing.messages import Where
from tests.support.armed_app import WRITE, Row, executor
from tests.support.downstream import downstream
from tests.support.isolation import FreshDatabase
from tests.support.kit_app import (
    PATIENCE_SECONDS,
    SHIP,
    SHIP_APART,
    SHIP_BY_PROGRAM,
    SHIP_IN_A_THREAD,
    SHIP_UNGUARDED,
    Order,
    Shipped,
    Warehouse,
    app,
    parcels_in,
)


class Left(BaseModel):
    """How long its lease lasts yet, as a handler sees it."""

    seconds: float


LOOK = TaskType("look", input=Left, output=Left)
look = Executor("looks", version="1")


@look.task(LOOK, effects="none")
async def left(input: Left, context: Context[None]) -> Left:
    """Look at once."""
    return Left(seconds=(context.expires_at - datetime.now(UTC)).total_seconds())


@dataclass(frozen=True)
class Trial:
    """A fault, and what it is done to."""

    fault: str
    task_type: TaskType[Order, Shipped] = SHIP
    options: dict[str, Any] = field(default_factory=dict)
    lease_seconds: float | None = None

    def __str__(self) -> str:
        return "-".join([self.fault, self.task_type.name, *self.options.values()])


QUICK = (
    Trial("duplicate"),
    Trial("kill_relay_after_confirm"),
    Trial("reorder"),
    Trial("zombie", options={"at": "effect"}, lease_seconds=9),
)
SLOW = (
    Trial("expire_lease"),
    Trial("late_receipt"),
    Trial("zombie"),
    Trial("zombie", SHIP_IN_A_THREAD),
    Trial("zombie", SHIP_APART),
    Trial("zombie", SHIP_BY_PROGRAM),
    Trial("expire_lease", SHIP_APART),
    Trial("kill_node"),
)
"""Leases run out by a real clock in these: `make test-kit` tries them too, ten seconds each."""
TRIALS = QUICK + SLOW if os.environ.get("TENURE_TEST_KIT") == "all" else QUICK


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Those that the plugin starts for `--tenure-servers=local`."""
    started = Servers()
    yield started
    started.stop()


async def told(make: Callable[[Warehouse], Fleet], trial: Trial, folder: Path) -> dict[str, Any]:
    """What a test sees of a fault, but for names and times. ``folder`` is made."""
    warehouse = Warehouse()
    await asyncio.to_thread(folder.mkdir)
    async with make(warehouse) as fleet:
        task = await fleet.submit(trial.task_type, Order(number=17, folder=str(folder)))
        answer = await getattr(fleet, trial.fault)(task, **trial.options)
        output = await fleet.result(task)
        story = await fleet.story(task)
    return {
        "answer": answer if isinstance(answer, int) else answer.ordinal,
        "output": output,
        "parcels": (warehouse.parcels, warehouse.read_by, parcels_in(folder)),
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


@pytest.mark.parametrize("trial", TRIALS, ids=str)
async def test_a_fault_tells_the_same_story_in_memory_and_on_servers(
    servers: Servers, trial: Trial, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "lease_seconds": trial.lease_seconds,
        "patience_seconds": PATIENCE_SECONDS,
    }

    def at_hand(warehouse: Warehouse) -> Fleet:
        return MemoryFleet(app, resources=warehouse, **options)

    def far(warehouse: Warehouse) -> Fleet:
        return ServerFleet(app, servers, resources=warehouse, **options)

    in_memory = await told(at_hand, trial, tmp_path / "memory")
    on_servers = await told(far, trial, tmp_path / "servers")
    assert on_servers == in_memory


@pytest.mark.skipif(TRIALS == QUICK, reason="`make test-kit` tries it: a lease more to wait for")
async def test_other_tasks_go_on_while_an_assignment_is_held_back(servers: Servers) -> None:
    """More of them than there are slots, and all are waited for in the same queues."""
    warehouse = Warehouse()
    async with ServerFleet(app, servers, slots=2, resources=warehouse) as fleet:
        before = [await fleet.submit(SHIP_UNGUARDED, Order(number=n)) for n in range(8)]
        task = await fleet.submit(SHIP, Order(number=17))
        after = [await fleet.submit(SHIP_UNGUARDED, Order(number=n)) for n in range(8)]
        overtaken = await fleet.reorder(task)
        assert (overtaken.ordinal, overtaken.began) == (1, False)
        for other in (*before, *after):
            assert len((await fleet.ended(other)).attempts) == 1
        assert (await fleet.result(task)).number == 17
    assert len(warehouse.parcels) == 17


@pytest.mark.skipif(TRIALS == QUICK, reason="`make test-kit` tries it: two leases more to wait for")
@pytest.mark.parametrize("task_type", [SHIP, SHIP_APART], ids=["awaited", "in a process"])
async def test_faults_add_up_on_servers_too(
    servers: Servers, task_type: TaskType[Order, Shipped]
) -> None:
    """One node and a lease of another length than usual are enough for these."""
    async with ServerFleet(app, servers, nodes=1, lease_seconds=5, resources=Warehouse()) as fleet:
        task = await fleet.submit(task_type, Order(number=17))
        first = await fleet.reorder(task)
        assert (first.began, first.reason) == (False, "acceptance_timeout")
        task = await fleet.submit(task_type, Order(number=17))
        lost = await fleet.expire_lease(task)
        overtaken = await fleet.reorder(task)
        assert [each.ordinal for each in (lost, overtaken)] == [1, 2]
        assert (await fleet.result(task)).token == overtaken.fencing_token + 1


async def test_leases_on_servers_are_as_long_as_the_test_wants(servers: Servers) -> None:
    async with ServerFleet(look, servers, lease_seconds=3) as fleet:
        assert (await fleet.result(await fleet.submit(LOOK, Left(seconds=0)))).seconds <= 3


async def test_what_takes_long_is_skipped_on_servers(servers: Servers) -> None:
    async with ServerFleet(app, servers, lease_seconds=600, resources=Warehouse()) as fleet:
        comes_back = await fleet.submit(SHIP_UNGUARDED, Order(number=1, fate="comes back"))
        with pytest.raises(pytest.skip.Exception, match=r"on real servers (600|5\d\d) s take"):
            await fleet.result(comes_back)
        for fault in ("expire_lease", "late_receipt", "zombie", "kill_node"):
            task = await fleet.submit(SHIP, Order(number=1))
            with pytest.raises(pytest.skip.Exception, match="600 s take 600 s"):
                await getattr(fleet, fault)(task)


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
