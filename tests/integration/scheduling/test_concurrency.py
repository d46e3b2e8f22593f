"""A node's concurrency for each task type, over the real database and with a real executor."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from tenure.contract.ids import TaskId
from tenure.executor import Context, Executor, TaskType
from tests.support.authority import Bench, Held, replica
from tests.support.commands import tenure, tenure_json
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import attempts, executing, registered, result, settings_of
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


async def given_out(bench: Bench, task_ids: list[TaskId]) -> list[Held]:
    """What nodes have of these, once nothing more is given out."""
    while await bench.scheduler.step():
        pass
    found = [await bench.holder(task_id) for task_id in task_ids]
    return [one for one in found if one is not None]


async def number_running(bench: Bench, type_name: str) -> int:
    value: int = await bench.owner.fetchval(
        "select count(*) from tenure.reservations where type = $1", type_name
    )
    return value


@pytest.mark.requirement("SCHED-01")
async def test_a_node_gets_no_more_of_a_type_than_it_runs_at_once(bench: Bench) -> None:
    await bench.register(slots=10, types=("resize", "ocr"), concurrency={"resize": 2})
    resized = [await bench.submit(type="resize") for _ in range(5)]
    read = [await bench.submit(type="ocr") for _ in range(3)]
    first = await given_out(bench, [*resized, *read])
    assert Counter(one.task_id in resized for one in first) == {True: 2, False: 3}
    # What ends makes room, however it ends.
    delivered, lost = [one for one in first if one.task_id in resized]
    await bench.take(delivered)
    await bench.deliver(delivered)
    assert await number_running(bench, "resize") == 1
    await given_out(bench, resized)
    assert await number_running(bench, "resize") == 2
    await bench.end_lease(lost)
    await bench.expire(lost.task_id)
    assert await number_running(bench, "resize") == 1
    await given_out(bench, resized)
    assert await number_running(bench, "resize") == 2


@pytest.mark.requirement("SCHED-03")
async def test_what_one_node_does_not_take_at_once_another_one_gets(bench: Bench) -> None:
    few = await bench.register("few", slots=9, concurrency={"sha256": 1})
    many = await bench.register("many", slots=3)
    tasks = [await bench.submit() for _ in range(6)]
    held = await given_out(bench, tasks)
    assert Counter(one.incarnation for one in held) == {few: 1, many: 3}


class Nothing(BaseModel):
    """Input and output."""


async def test_an_executor_with_free_slots_runs_so_many_of_a_type_and_no_lease_waits(
    api: Fleet, broker: BrokerSpace, tmp_path: Path
) -> None:
    """By the handler's declaration; the operator's setting goes before it."""
    app = Executor("bench", version="1")
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    release = asyncio.Event()

    def declare(name: str, concurrency: int) -> None:
        @app.task(
            TaskType(name, input=Nothing, output=Nothing), effects="none", concurrency=concurrency
        )
        async def handle(input: Nothing, context: Context[None]) -> Nothing:
            running[name] += 1
            most[name] = max(most[name], running[name])
            await release.wait()
            running[name] -= 1
            return input

    declare("resize", 2)
    declare("ocr", 3)
    settings = settings_of(api, broker, tmp_path, slots=8, concurrency="ocr=1")
    async with executing(app, settings):
        await registered(api, "node-1")
        tasks = [await api.submit(type="resize", input={}) for _ in range(4)]
        waiting = [await api.submit(type="ocr", input={}) for _ in range(3)]
        await eventually(lambda: running == {"resize": 2, "ocr": 1})
        # The next one waits at the coordinator, which says why, and not on the node under a lease.
        taken = [one for one in (*tasks, *waiting) if await attempts(api, one)]
        assert len(taken) == 3
        left = next(one for one in tasks if one not in taken)
        code, out, err = await tenure(api, "why", left)
        assert code == 0, err
        assert "type_at_concurrency" in out
        shown = await tenure_json(api, "node", "show", "node-1")
        assert shown["current"]["concurrency"] == {"resize": 2, "ocr": 1}
        release.set()
        for task_id in (*tasks, *waiting):
            assert (await result(api, task_id))["state"] == "delivered"
            assert len(await attempts(api, task_id)) == 1
    assert most == {"resize": 2, "ocr": 1}
