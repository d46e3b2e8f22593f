"""Each fault of the fleet in memory produces what it says: events, tokens, states."""

from pathlib import Path

import pytest

from tenure.contract.states import AttemptState, TaskState
from tenure.executor import AuthorityOver, StaleToken, TaskType
from tenure.executor.testing import Fleet, MakeFleet, MemoryFleet
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

FIRST = 2**32 + 1


def told_of(fleet: Fleet) -> list[str]:
    """How attempts ended on the nodes, in the order in which they did."""
    assert isinstance(fleet, MemoryFleet)
    return [
        sample.labels["outcome"]
        for node in fleet.nodes
        for metric in node.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "tenure_executor_attempts_total"
    ]


BOTH = pytest.mark.parametrize(
    "task_type", [SHIP, SHIP_IN_A_THREAD], ids=["awaited", "in a thread"]
)


@BOTH
async def test_an_expired_lease_is_followed_by_a_larger_token(
    tenure_fleet: MakeFleet, task_type: TaskType[Order, Shipped]
) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, resources=warehouse) as fleet:
        task = await fleet.submit(task_type, Order(number=1))
        attempt = await fleet.expire_lease(task)
        assert (attempt.state, attempt.reason) == (AttemptState.EXPIRED, "lease_expired")
        assert not attempt.began
        assert (await fleet.result(task)).token == FIRST + 1
        seconds = {each.seconds for each in (await fleet.story(task)).events}
    assert warehouse.parcels == [FIRST + 1]
    assert seconds == {0.0, 30.0}


@BOTH
async def test_a_late_receipt_is_evidence_only(
    tenure_fleet: MakeFleet, task_type: TaskType[Order, Shipped]
) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, resources=warehouse) as fleet:
        task = await fleet.submit(task_type, Order(number=1))
        receipt = await fleet.late_receipt(task)
        assert (receipt.ordinal, receipt.admitted, receipt.code) == (1, False, "lease_expired")
        assert receipt.output == {"number": 1, "token": FIRST}
        assert (await fleet.result(task)).token == FIRST + 1
        assert (await fleet.story(task)).evidence == (receipt,)
    assert warehouse.parcels == [FIRST, FIRST + 1], "both attempts had their effect"


@BOTH
async def test_a_doubled_assignment_begins_once(
    tenure_fleet: MakeFleet, task_type: TaskType[Order, Shipped]
) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, resources=warehouse) as fleet:
        task = await fleet.submit(task_type, Order(number=1))
        assert await fleet.duplicate(task) == 2
        assert len((await fleet.story(task)).attempts) == 1
    assert warehouse.parcels == [FIRST]


@BOTH
async def test_an_assignment_that_was_overtaken_begins_nothing(
    tenure_fleet: MakeFleet, task_type: TaskType[Order, Shipped]
) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, resources=warehouse) as fleet:
        task = await fleet.submit(task_type, Order(number=1))
        overtaken = await fleet.reorder(task)
        assert (overtaken.ordinal, overtaken.began) == (1, False)
        assert overtaken.state is AttemptState.CANCELLED
        assert told_of(fleet) == ["delivered", "not_taken"], "the second came first"
        assert (await fleet.result(task)).token == FIRST + 1
    assert warehouse.parcels == [FIRST + 1]


@BOTH
async def test_what_a_killed_relay_had_published_comes_twice_and_begins_once(
    tenure_fleet: MakeFleet, task_type: TaskType[Order, Shipped]
) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, resources=warehouse) as fleet:
        task = await fleet.submit(task_type, Order(number=1))
        assert await fleet.kill_relay_after_confirm(task) == 2
        assert (await fleet.result(task)).token == FIRST
    assert warehouse.parcels == [FIRST]


@BOTH
async def test_a_zombie_is_refused_by_its_receiver(
    tenure_fleet: MakeFleet, task_type: TaskType[Order, Shipped]
) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, resources=warehouse) as fleet:
        task = await fleet.submit(task_type, Order(number=1))
        zombie = await fleet.zombie(task)
        assert isinstance(zombie.raised, StaleToken), "not by its own check, which knows nothing"
        assert (zombie.ordinal, zombie.state) == (1, AttemptState.EXPIRED)
        story = await fleet.story(task)
    assert [each.node_id for each in story.attempts] == ["node-1", "node-2"]
    assert warehouse.parcels == [FIRST + 1]


async def test_the_successor_of_a_zombie_runs_elsewhere_however_short_leases_are(
    tenure_fleet: MakeFleet,
) -> None:
    async with tenure_fleet(app, lease_seconds=3, resources=Warehouse()) as fleet:
        task = await fleet.submit(SHIP, Order(number=1))
        await fleet.zombie(task)
        attempts = (await fleet.story(task)).attempts
    assert [each.node_id for each in attempts] == ["node-1", "node-2"]


async def test_a_zombie_can_be_stopped_between_its_read_and_its_write(
    tenure_fleet: MakeFleet,
) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, resources=warehouse) as fleet:
        task = await fleet.submit(SHIP, Order(number=1))
        zombie = await fleet.zombie(task, at="effect")
        assert isinstance(zombie.raised, StaleToken)
        await fleet.result(task)
    assert warehouse.read_by == [FIRST, FIRST + 1], "it had read when it was stopped"
    assert warehouse.parcels == [FIRST + 1]


async def test_a_zombie_gets_through_where_nobody_checks(tenure_fleet: MakeFleet) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, resources=warehouse) as fleet:
        task = await fleet.submit(SHIP_UNGUARDED, Order(number=1))
        zombie = await fleet.zombie(task)
        assert zombie.raised is None
        evidence = [(each.ordinal, each.code) for each in (await fleet.story(task)).evidence]
    assert evidence == [(1, "lease_expired")], "the coordinator takes its output for evidence"
    assert warehouse.parcels == [FIRST + 1, FIRST]


async def test_a_zombie_in_a_process_of_its_own_is_refused_by_its_receiver(
    tenure_fleet: MakeFleet, tmp_path: Path
) -> None:
    async with tenure_fleet(app, resources=None, patience_seconds=PATIENCE_SECONDS) as fleet:
        task = await fleet.submit(SHIP_APART, Order(number=1, folder=str(tmp_path)))
        zombie = await fleet.zombie(task)
        assert isinstance(zombie.raised, StaleToken)
        assert (zombie.began, zombie.state) == (True, AttemptState.EXPIRED)
    assert parcels_in(tmp_path) == [FIRST + 1]


async def test_a_zombie_of_a_program_gets_through_where_nobody_checks(
    tenure_fleet: MakeFleet, tmp_path: Path
) -> None:
    async with tenure_fleet(app, resources=None, patience_seconds=PATIENCE_SECONDS) as fleet:
        task = await fleet.submit(SHIP_BY_PROGRAM, Order(number=1, folder=str(tmp_path)))
        zombie = await fleet.zombie(task)
        assert (zombie.began, zombie.raised) == (True, None)
        evidence = [each.ordinal for each in (await fleet.story(task)).evidence]
    assert evidence == [1]
    assert parcels_in(tmp_path) == [FIRST, FIRST + 1]


@pytest.mark.parametrize(
    ("task_type", "where"),
    [
        (SHIP_IN_A_THREAD, "in a thread"),
        (SHIP_APART, "in a process of its own"),
        (SHIP_BY_PROGRAM, "as a program"),
    ],
)
async def test_only_a_coroutine_is_stopped_at_its_effect(
    tenure_fleet: MakeFleet, task_type: TaskType[Order, Shipped], where: str
) -> None:
    async with tenure_fleet(app, resources=Warehouse()) as fleet:
        task = await fleet.submit(task_type, Order(number=1))
        with pytest.raises(ValueError, match=f"runs {where}: only a coroutine"):
            await fleet.zombie(task, at="effect")


async def test_a_zombie_needs_a_second_node(tenure_fleet: MakeFleet) -> None:
    async with tenure_fleet(app, nodes=1, resources=Warehouse()) as fleet:
        task = await fleet.submit(SHIP, Order(number=1))
        with pytest.raises(ValueError, match="second node"):
            await fleet.zombie(task)


@BOTH
async def test_work_that_was_done_and_not_reported_is_done_again(
    tenure_fleet: MakeFleet, task_type: TaskType[Order, Shipped]
) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, nodes=1, resources=warehouse) as fleet:
        task = await fleet.submit(task_type, Order(number=1))
        lost = await fleet.kill_node(task)
        assert (lost.ordinal, lost.state, lost.raised) == (1, AttemptState.EXPIRED, None)
        story = await fleet.ended(task)
        assert story.state is TaskState.DELIVERED
        assert len({each.attempt_id for each in story.attempts}) == 2
    assert warehouse.parcels == [FIRST, FIRST + 1]


async def test_faults_add_up(tenure_fleet: MakeFleet) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, resources=warehouse) as fleet:
        task = await fleet.submit(SHIP, Order(number=1))
        first = await fleet.expire_lease(task)
        second = await fleet.kill_node(task)
        third = await fleet.zombie(task)
        tokens = [each.fencing_token for each in (first, second, third)]
        assert (await fleet.result(task)).token == FIRST + 3
    assert tokens == [FIRST, FIRST + 1, FIRST + 2]
    assert not isinstance(third.raised, AuthorityOver)
    assert warehouse.parcels == [FIRST + 1, FIRST + 3]
