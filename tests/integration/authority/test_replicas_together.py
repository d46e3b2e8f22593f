"""Three replicas decide about the same tasks and nodes at once, and no rule is broken."""

import asyncio
import random
from asyncio import gather
from contextlib import AsyncExitStack
from uuid import uuid4

import asyncpg
import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import TaskId
from tenure.contract.states import TERMINAL_ATTEMPT_STATES, TaskState
from tenure.coordinator.core.commands import Reject
from tenure.coordinator.store.verify import verify
from tenure.coordinator.sweeper import Sweeper
from tests.support.authority import Bench, Held, replica
from tests.support.isolation import FreshDatabase

REPLICAS = 3
WORKERS = 4
TASKS = 12
"""Of each worker."""


class Worker:
    """Submits tasks and does something else with each attempt, each step by any replica."""

    def __init__(self, benches: list[Bench], owner: asyncpg.Pool, seed: int) -> None:
        self._benches = benches
        self._owner = owner
        self._random = random.Random(seed)

    @property
    def anyone(self) -> Bench:
        return self._random.choice(self._benches)

    async def run(self) -> None:
        for _ in range(TASKS):
            task_id = await self.anyone.submit()
            while not await self._is_over(task_id):
                held = await self.anyone.holder(task_id)
                if held is None:
                    await self.anyone.scheduler.step()
                else:
                    await self._go_on(held)

    async def _is_over(self, task_id: TaskId) -> bool:
        state: str = await self._owner.fetchval(
            "select state from tenure.tasks where task_id = $1", task_id
        )
        return state != TaskState.OPEN

    async def _end_lease(self, held: Held) -> None:
        """As time would, unless the attempt has ended."""
        await self._owner.execute(
            "update tenure.attempts set expires_at = clock_timestamp() - interval '1 ms'"
            " where attempt_id = $1 and ended_at is null",
            held.attempt_id,
        )

    async def _go_on(self, held: Held) -> None:
        """One life of an attempt; somebody else may have ended it at any point."""
        report_id = str(uuid4())
        anyone, task_id = self.anyone, held.task_id
        match self._random.randrange(7):
            case 0:
                await anyone.report(Reject, held, reason="node_draining", message="")
            case 1:
                await gather(anyone.cancel(task_id), self.anyone.cancel(task_id))
                await anyone.take(held)
                await self.anyone.confirm_cancel(held)
            case 2:
                await anyone.take(held)
                await self._end_lease(held)
                await gather(anyone.expire(task_id), self.anyone.expire(task_id))
                await self.anyone.deliver(held, "late")
            case 3:
                await anyone.take(held)
                await self.anyone.fail(held)
                await self.anyone.try_again(task_id)
            case _:
                await anyone.take(held)
                await gather(anyone.renew(held), self.anyone.renew(held))
                # The same report through two replicas, and another delivery beside it.
                await gather(
                    anyone.deliver(held, 1, report_id),
                    self.anyone.deliver(held, 1, report_id),
                    self.anyone.deliver(held, 2),
                )


@pytest.mark.requirement("LEASE-02")
@pytest.mark.requirement("STATE-06")
async def test_three_replicas_at_once_break_no_invariant(database: FreshDatabase) -> None:
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(asyncpg.create_pool(database.owner_url))
        benches = [await stack.enter_async_context(replica(database)) for _ in range(REPLICAS)]
        for number in range(2):
            await benches[number].register(f"node-{number}", slots=WORKERS * REPLICAS)
        over = asyncio.Event()

        async def sweep(bench: Bench) -> None:
            sweeper = Sweeper(bench.pool, bench.authority)
            while not over.is_set():
                await sweeper.step()
                await bench.scheduler.step()

        async with asyncio.TaskGroup() as group:
            for bench in benches:
                group.create_task(sweep(bench))
            async with asyncio.TaskGroup() as workers:
                for seed in range(WORKERS * REPLICAS):
                    workers.create_task(Worker(benches, owner, seed).run())
            over.set()
        findings = await verify(database.owner_url)
        assert findings.broken == {}
        assert findings.rows["tasks"] == WORKERS * REPLICAS * TASKS
        ends = await owner.fetch("select distinct state from tenure.attempts")
        assert {row["state"] for row in ends} == TERMINAL_ATTEMPT_STATES
        refused = {code for bench in benches for code in bench.observer.codes}
        assert Code.INTERNAL_REFUSED not in refused
