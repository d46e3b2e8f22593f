"""When a failed task is tried again, over a real database and any number of replicas."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import pairwise

import pytest

from tenure.contract.codes import Reason
from tenure.contract.ids import AttemptId, FencingToken, IncarnationId, NodeId, TaskId
from tenure.coordinator.core.commands import Fail, Take
from tenure.coordinator.core.snapshot import LeasePolicy
from tests.support.authority import Bench, Held, replica
from tests.support.isolation import FreshDatabase
from tests.support.waiting import eventually

BASE, CAP = 40_000, 400_000
POLICY = LeasePolicy(retry_base_microseconds=BASE, retry_cap_microseconds=CAP)
REPLICAS = 8
TASKS = 12
MAX_ATTEMPTS = 7


@asynccontextmanager
async def replicas(database: FreshDatabase, number: int) -> AsyncIterator[list[Bench]]:
    """Replicas that each look for waiting tasks by themselves, as the coordinators do."""
    async with AsyncExitStack() as stack:
        benches = [
            await stack.enter_async_context(replica(database, POLICY)) for _ in range(number)
        ]
        loops = [asyncio.create_task(bench.scheduler.run()) for bench in benches]
        try:
            yield benches
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)


async def fail_whatever_comes(bench: Bench) -> None:
    """An executor whose handler always fails: takes and fails what is assigned, by one replica."""
    rows = await bench.pool.fetch("select * from tenure.attempts where state = 'submitted'")
    for row in rows:
        held = Held(
            TaskId(str(row["task_id"])),
            AttemptId(str(row["attempt_id"])),
            NodeId(row["node_id"]),
            IncarnationId(str(row["incarnation"])),
            FencingToken(row["fencing_token"]),
        )
        await bench.report(Take, held)
        await bench.report(Fail, held, reason="r", message="", retryable=True)


@pytest.mark.requirement("STATE-05")
async def test_attempts_are_the_stored_delay_apart_however_many_replicas_there_are(
    emptied_database: FreshDatabase,
) -> None:
    async with replicas(emptied_database, REPLICAS) as benches:
        first = benches[0]
        await first.register(slots=TASKS, max_attempts=MAX_ATTEMPTS)
        for _ in range(TASKS):
            await first.submit()

        async def all_have_ended() -> bool:
            await asyncio.gather(*(fail_whatever_comes(bench) for bench in benches))
            return not await first.owner.fetchval(
                "select count(*) from tenure.tasks where ended_at is null"
            )

        await eventually(all_have_ended)
        rows = await first.owner.fetch("select * from tenure.attempts order by task_id, ordinal")
        tasks = await first.owner.fetch("select * from tenure.tasks")
    assert {(task["state"], task["reason"], task["failures"]) for task in tasks} == {
        ("failed", Reason.ATTEMPTS_EXHAUSTED, MAX_ATTEMPTS)
    }
    assert len(rows) == TASKS * MAX_ATTEMPTS
    by_failure: dict[int, list[int]] = {}
    for earlier, later in pairwise(rows):
        if earlier["task_id"] != later["task_id"]:
            assert earlier["retry_delay_microseconds"] is None  # the last one
            continue
        delay = earlier["retry_delay_microseconds"]
        assert later["submitted_at"] - earlier["ended_at"] >= timedelta(microseconds=delay)
        by_failure.setdefault(earlier["ordinal"], []).append(delay)
    for failure, delays in by_failure.items():
        assert max(delays) < min(CAP, BASE * 2 ** (failure - 1))
        # Spread: what failed together comes back apart, but for two that draw the same.
        assert len(set(delays)) >= len(delays) - 1
    assert sum(by_failure[MAX_ATTEMPTS - 1]) > sum(by_failure[1])  # and grown


@pytest.mark.requirement("STATE-05")
async def test_a_delay_counts_from_the_commit_and_is_told_with_its_event(
    emptied_database: FreshDatabase,
) -> None:
    async with replica(emptied_database, POLICY) as bench:
        await bench.register()
        held = await bench.running()
        asked = 3_600_000_000
        await bench.report(Fail, held, reason="r", message="", retryable=True, retry_delay=asked)
        task, attempt = await bench.task(held.task_id), await bench.attempt(held)
        assert task["not_before"] - attempt["ended_at"] == timedelta(hours=1)
        assert attempt["retry_delay_microseconds"] == asked
        assert b'"retry_after_seconds":3600.0' in (await bench.events(held.task_id))[-1]["body"]
        assert await bench.scheduler.step() == 0
