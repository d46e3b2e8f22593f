"""Waiting clients are woken by what ends, one look at the log serves all of them, none is lost."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from tenure.contract.ids import EventId, TenantId
from tenure.contract.states import EntityType
from tenure.coordinator.core.decisions import Happened
from tenure.coordinator.errors import Overloaded, Unavailable
from tenure.coordinator.store.views import Ended
from tenure.coordinator.waiters import Waiters


class Log:
    """A log to follow: the positions at which tasks ended."""

    def __init__(self) -> None:
        self.head = 0
        self.ends: list[tuple[int, str]] = []
        self.asked: list[int] = []
        self.away = False
        self.while_asked: Callable[[], None] = lambda: None

    def append(self, task_id: str | None = None) -> int:
        self.head += 1
        if task_id is not None:
            self.ends.append((self.head, task_id))
        return self.head

    async def ended_since(self, position: int) -> Ended:
        self.asked.append(position)
        if self.away:
            raise Unavailable("away")
        head = self.head
        ended = tuple(task for at, task in self.ends if at > position)
        self.while_asked()
        return Ended(head, head, ended)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def waiters(log: Log) -> Waiters:
    return Waiters(log.ended_since, interval_seconds=0.01, max_waiters=3)


async def test_nobody_waits_and_the_log_is_not_asked(waiters: Waiters, log: Log) -> None:
    await waiters.tick()
    async with waiters.waiting("a"):
        await waiters.tick()  # registered, but its state was not read yet
        waiters.watch_from(log.head)
        await waiters.tick()
    await waiters.tick()
    assert log.asked == [0]


async def test_one_look_wakes_those_whose_task_ended(waiters: Waiters, log: Log) -> None:
    async with waiters.waiting("a") as first, waiters.waiting("b") as second:
        waiters.watch_from(log.head)
        log.append("a")
        await waiters.tick()
        assert first.woken.is_set()
        assert not second.woken.is_set()
        assert len(log.asked) == 1


@pytest.mark.parametrize("later_first", [True, False])
async def test_what_ends_between_the_reads_of_two_waiters_is_not_lost(
    waiters: Waiters, log: Log, later_first: bool
) -> None:
    """They read the state at different heads, and say so in either order."""
    async with waiters.waiting("early") as early, waiters.waiting("late"):
        early_head = log.head
        log.append("early")  # after early read the state
        late_head = log.head
        for head in sorted((early_head, late_head), reverse=later_first):
            waiters.watch_from(head)
        await waiters.tick()
        assert early.woken.is_set()


async def test_a_beginning_set_during_a_look_is_kept(waiters: Waiters, log: Log) -> None:
    async with waiters.waiting("a") as waiter:
        log.append()
        log.append("a")
        waiters.watch_from(2)
        log.while_asked = lambda: waiters.watch_from(1)
        await waiters.tick()
        assert not waiter.woken.is_set()
        log.while_asked = lambda: None
        await waiters.tick()
        assert waiter.woken.is_set()


async def test_the_tail_moves_on(waiters: Waiters, log: Log) -> None:
    async with waiters.waiting("a"):
        waiters.watch_from(log.append())
        log.append("b")
        await waiters.tick()
        log.append()
        await waiters.tick()
        assert log.asked == [1, 2]


async def test_a_database_that_is_away_moves_nothing(waiters: Waiters, log: Log) -> None:
    async with waiters.waiting("a") as waiter:
        waiters.watch_from(log.head)
        log.append("a")
        log.away = True
        await waiters.tick()
        assert not waiter.woken.is_set()
        log.away = False
        await waiters.tick()
        assert waiter.woken.is_set()
        assert log.asked == [0, 0]


async def test_lost_history_wakes_everybody(waiters: Waiters, log: Log) -> None:
    log.head = 5
    async with waiters.waiting("a") as waiter:
        waiters.watch_from(log.head)
        log.head = 2
        await waiters.tick()
        assert waiter.woken.is_set()
        await waiters.tick()
        assert log.asked == [5, 2]


def happened(entity: EntityType, entity_id: str, state: str) -> Happened:
    return Happened(
        event_id=EventId("e"),
        entity_type=entity,
        entity_id=entity_id,
        tenant=TenantId("t"),
        epoch=1,
        sequence=1,
        actor="x",
        previous_state=None,
        next_state=state,
    )


@pytest.mark.parametrize(
    ("entity", "state", "wakes"),
    [
        (EntityType.TASK, "delivered", True),
        (EntityType.TASK, "held", True),
        (EntityType.TASK, "open", False),
        (EntityType.ATTEMPT, "delivered", False),
    ],
)
async def test_own_commits_wake_directly(
    waiters: Waiters, log: Log, entity: EntityType, state: str, wakes: bool
) -> None:
    async with waiters.waiting("a") as waiter:
        waiters.on_commit([happened(entity, "a", state)])
        assert waiter.woken.is_set() is wakes
        assert log.asked == []


async def test_closing_wakes_everybody(waiters: Waiters) -> None:
    async with waiters.waiting("a") as first, waiters.waiting("b") as second:
        waiters.close()
        assert waiters.closing
        assert first.woken.is_set()
        assert second.woken.is_set()


async def test_no_more_may_wait_than_allowed(waiters: Waiters) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(waiters.waiting("a"))
        with pytest.raises(Overloaded):
            await stack.enter_async_context(waiters.waiting("a"))
        assert len(waiters) == 3
    assert len(waiters) == 0


async def test_the_tail_sleeps_until_somebody_waits(waiters: Waiters, log: Log) -> None:
    running = asyncio.create_task(waiters.run())
    try:
        async with waiters.waiting("a") as waiter:
            waiters.watch_from(log.head)
            log.append("a")
            await waiter.woken.wait()
        asked = len(log.asked)
        async with waiters.waiting("b") as waiter:
            waiters.watch_from(log.head)
            log.append("b")
            await waiter.woken.wait()
        assert log.asked[asked] == 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
