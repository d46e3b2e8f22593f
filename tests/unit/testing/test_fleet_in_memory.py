"""The fleet in memory does what the authority and executors do, on a clock that the test moves."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.contract.states import AttemptState, TaskState
from tenure.executor import Context, Executor, Fail, Scope, TaskType
from tenure.executor.errors import RunEnded
from tenure.executor.testing import Fleet, MakeFleet, NotDelivered, NotOpen, Stuck
from tests.support.kit_app import (
    PATIENCE_SECONDS,
    SHIP,
    SHIP_APART,
    SHIP_IN_A_THREAD,
    SHIP_UNGUARDED,
    Order,
    Shipped,
    Warehouse,
    app,
)

FIRST = 2**32 + 1
"""The first token of a task in epoch 1."""


HANDLER_WAITS = (
    r"(?s)a handler does not end\nThe handler of attempt 1 has begun and not ended.*what does it"
    r" wait for.*\ntask .* is open"
)
ENDED_ALREADY = (
    r"(?s)waited for an attempt whose handler is about to begin, and nothing happens\nThe task is"
    r" delivered already: ask .* before .*\ntask .* is delivered"
)


class Nothing(BaseModel):
    """Input and output of handlers that a test is not about."""


WAIT = TaskType("wait", input=Nothing, output=Nothing)


@pytest.mark.parametrize("task_type", [SHIP, SHIP_IN_A_THREAD], ids=["awaited", "in a thread"])
async def test_a_handler_delivers_its_output(
    tenure_fleet: MakeFleet, task_type: TaskType[Order, Shipped]
) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, resources=warehouse) as fleet:
        task = await fleet.submit(task_type, Order(number=17))
        assert await fleet.result(task) == Shipped(number=17, token=FIRST)
        story = await fleet.story(task)
    assert warehouse.parcels == [FIRST]
    assert [str(each.next_state) for each in story.events] == [
        "open", "submitted", "accepted", "running", "delivered", "delivered",
    ]  # fmt: skip
    assert [receipt.admitted for receipt in story.receipts] == [True]


async def test_a_process_of_its_own_delivers(tenure_fleet: MakeFleet) -> None:
    async with tenure_fleet(app, resources=None, patience_seconds=PATIENCE_SECONDS) as fleet:
        task = await fleet.submit(SHIP_APART, Order(number=3))
        assert (await fleet.result(task)).number == 3
        attempt = (await fleet.story(task)).attempt(1)
        assert (attempt.began, attempt.raised) == (True, None)


async def test_what_a_process_of_its_own_ends_with_is_told(tenure_fleet: MakeFleet) -> None:
    async with tenure_fleet(app, resources=None, patience_seconds=PATIENCE_SECONDS) as fleet:
        refused = await fleet.submit(SHIP_APART, Order(number=3, fate="fails"))
        broken = await fleet.submit(SHIP_APART, Order(number=3, fate="breaks"))
        await fleet.run_until_idle()
        assert isinstance((await fleet.story(refused)).attempt(1).raised, Fail)
        attempt = (await fleet.story(broken)).attempt(1)
    assert isinstance(attempt.raised, RunEnded)
    assert "ValueError: broken" in str(attempt)


async def test_nothing_begins_before_the_test_waits(tenure_fleet: MakeFleet) -> None:
    async with tenure_fleet(app, resources=Warehouse()) as fleet:
        task = await fleet.submit(SHIP, Order(number=1))
        await asyncio.sleep(0)
        assert (await fleet.story(task)).attempts == ()


async def test_what_is_no_task_is_refused(tenure_fleet: MakeFleet) -> None:
    nothing: Any = "tests.support.kit_app:app"
    async with tenure_fleet(app, resources=Warehouse()) as fleet:
        for wanted in (fleet.result, fleet.story, fleet.cancel, fleet.expire_lease):
            with pytest.raises(TypeError, match="is no task: give what"):
                await wanted(nothing)


async def test_a_fleet_that_is_not_open_says_so(tenure_fleet: MakeFleet) -> None:
    fleet = tenure_fleet(app, resources=Warehouse())
    with pytest.raises(NotOpen, match="async with"):
        await fleet.submit(SHIP, Order(number=1))


async def test_a_retry_waits_for_its_time_on_the_fleets_clock(tenure_fleet: MakeFleet) -> None:
    async with tenure_fleet(app, resources=Warehouse()) as fleet:
        begin = fleet.clock.now
        task = await fleet.submit(SHIP_UNGUARDED, Order(number=1, fate="comes back"))
        assert (await fleet.result(task)).token == FIRST + 1
        assert fleet.clock.now - begin == timedelta(seconds=600)


async def test_a_failure_is_told_with_the_history(tenure_fleet: MakeFleet) -> None:
    async with tenure_fleet(app, resources=Warehouse()) as fleet:
        task = await fleet.submit(SHIP, Order(number=1, fate="fails"))
        with pytest.raises(NotDelivered) as caught:
            await fleet.result(task)
    story = caught.value.story
    assert (story.state, story.reason) == (TaskState.FAILED, "no-such-order")
    assert "attempt 1  on node-1  token 4294967297  failed (no-such-order)" in str(caught.value)


async def test_what_fails_too_often_stays_failed(tenure_fleet: MakeFleet) -> None:
    async with tenure_fleet(app, resources=Warehouse()) as fleet:
        task = await fleet.submit(SHIP_UNGUARDED, Order(number=1, fate="breaks"))
        await fleet.run_until_idle()
        story = await fleet.story(task)
    assert (story.state, story.reason) == (TaskState.FAILED, "attempts_exhausted")
    assert [type(each.raised) for each in story.attempts] == [ValueError, ValueError]


async def test_a_key_that_was_seen_is_the_same_task(tenure_fleet: MakeFleet) -> None:
    async with tenure_fleet(app, resources=Warehouse()) as fleet:
        first = await fleet.submit(SHIP, Order(number=1), idempotency_key="a")
        assert await fleet.submit(SHIP, Order(number=1), idempotency_key="a") == first
        with pytest.raises(AssertionError, match="idempotency_conflict"):
            await fleet.submit(SHIP, Order(number=2), idempotency_key="a")


async def test_more_tasks_than_slots_are_all_done(tenure_fleet: MakeFleet) -> None:
    warehouse = Warehouse()
    async with tenure_fleet(app, nodes=2, slots=2, resources=warehouse) as fleet:
        tasks = [await fleet.submit(SHIP, Order(number=number)) for number in range(20)]
        outputs = [await fleet.result(task) for task in tasks]
    assert [each.number for each in outputs] == list(range(20))
    assert len(warehouse.parcels) == 20


class Waiting:
    """An executor whose handler goes on until it is told to, and its lifespan."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.checkpoint: Any = None
        self.app = Executor("waiting", version="1")

        @self.app.task(WAIT, effects="none")
        async def wait(input: Nothing, context: Context[None]) -> Nothing:
            self.checkpoint = context.last_checkpoint
            await context.checkpoint({"attempt": context.ordinal})
            self.begun.set()
            await self.may_end.wait()
            context.check_authority()
            return Nothing()


async def at_work(fleet: Fleet, waiting: Waiting) -> Any:
    """A task whose handler runs, by letting the fleet go on in the background."""
    task = await fleet.submit(WAIT, Nothing())
    going_on = asyncio.create_task(fleet.ended(task))
    await waiting.begun.wait()
    going_on.cancel()
    await asyncio.gather(going_on, return_exceptions=True)
    return task


async def test_leases_are_renewed_while_time_passes(tenure_fleet: MakeFleet) -> None:
    waiting = Waiting()
    async with tenure_fleet(waiting.app) as fleet:
        task = await at_work(fleet, waiting)
        await fleet.clock.advance(seconds=3600)
        waiting.may_end.set()
        await fleet.result(task)
        assert len((await fleet.story(task)).attempts) == 1


async def test_a_handler_at_work_is_ended_with_its_lease(tenure_fleet: MakeFleet) -> None:
    waiting = Waiting()
    async with tenure_fleet(waiting.app) as fleet:
        task = await at_work(fleet, waiting)
        attempt = await fleet.expire_lease(task)
        assert attempt.state is AttemptState.EXPIRED
        assert isinstance(attempt.raised, asyncio.CancelledError)
        waiting.may_end.set()
        await fleet.result(task)
    assert waiting.checkpoint == {"attempt": 1}, "the second attempt goes on from the first's"


async def test_a_cancelled_handler_is_ended_and_confirms(tenure_fleet: MakeFleet) -> None:
    waiting = Waiting()
    async with tenure_fleet(waiting.app) as fleet:
        task = await at_work(fleet, waiting)
        await fleet.cancel(task)
        story = await fleet.ended(task)
    assert story.state is TaskState.CANCELLED
    assert isinstance(story.attempt(1).raised, asyncio.CancelledError)


async def test_a_handler_that_does_not_end_is_stuck_and_shown(tenure_fleet: MakeFleet) -> None:
    waiting = Waiting()
    async with tenure_fleet(waiting.app, patience_seconds=1.0) as fleet:
        task = await fleet.submit(WAIT, Nothing())
        with pytest.raises(Stuck, match=HANDLER_WAITS):
            await fleet.result(task)


async def test_a_fault_in_a_task_that_has_ended_is_stuck_and_shown(
    tenure_fleet: MakeFleet,
) -> None:
    async with tenure_fleet(app, resources=Warehouse()) as fleet:
        task = await fleet.submit(SHIP, Order(number=1))
        await fleet.result(task)
        with pytest.raises(Stuck, match=ENDED_ALREADY):
            await fleet.zombie(task)


async def test_a_deadline_ends_a_task_that_waits(tenure_fleet: MakeFleet) -> None:
    waiting = Waiting()
    async with tenure_fleet(waiting.app, nodes=1, slots=1) as fleet:
        first = await at_work(fleet, waiting)
        deadline = fleet.clock.now + timedelta(hours=1)
        second = await fleet.submit(WAIT, Nothing(), deadline=deadline)
        await fleet.clock.advance(seconds=3600)
        assert (await fleet.story(second)).state is TaskState.EXPIRED
        waiting.may_end.set()
        await fleet.result(first)


async def test_the_lifespan_is_opened_by_every_node_and_closed() -> None:
    from contextlib import asynccontextmanager

    from tenure.executor.testing import MemoryFleet

    opened: list[str] = []
    other = Executor("other", version="1")

    @other.lifespan
    @asynccontextmanager
    async def resources() -> Any:
        opened.append("opened")
        yield None
        opened.append("closed")

    @other.task(WAIT, effects="none")
    async def wait(input: Nothing, context: Context[None]) -> Nothing:
        return input

    async with MemoryFleet(other, nodes=2) as fleet:
        await fleet.result(await fleet.submit(WAIT, Nothing()))
    assert opened == ["opened", "opened", "closed", "closed"]


@pytest.mark.requirement("LEASE-11")
async def test_a_handler_is_told_what_its_submission_permits_and_its_trace(
    tenure_fleet: MakeFleet,
) -> None:
    trace = "00-5f0c9a1e7d3b48269c41d0e2f7a8b613-4e1d9c20b7a35f68-01"
    told: list[str | None] = []
    narrow = Executor("narrow", version="1")

    @narrow.task(WAIT, effects="idempotent", scope=Scope(operations=("read", "write")))
    async def wait(input: Nothing, context: Context[None]) -> Nothing:
        told.append(context.traceparent)
        async with context.side_effect("write"):
            return input

    async with tenure_fleet(narrow) as fleet:
        free = await fleet.submit(WAIT, Nothing(), traceparent=trace)
        bound = await fleet.submit(WAIT, Nothing(), scope=Scope(operations=("read",)))
        assert await fleet.result(free) == Nothing()
        with pytest.raises(NotDelivered, match="out_of_scope"):
            await fleet.result(bound)
    assert sorted(told, key=str) == [trace, None]
