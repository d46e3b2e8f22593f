"""Executors are replaced by a new build while a thousand tasks wait, over real servers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tenure.executor import Executor, TaskType
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import executing, result, settings_of
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying
from tests.support.sessions import session
from tests.support.waiting import eventually

TASKS = 1000
BUILDS = {"1": "1a" * 32, "2": "2b" * 32}


class Number(BaseModel):
    number: int


def program(version: str, match: Literal["compatible", "exact"]) -> Executor:
    """One version of the application's executor, which adds its version to each number."""
    app = Executor("adder", version=version)

    @app.task(TaskType("add", input=Number, output=Number), match=match, max_attempts=int(version))
    async def add(input: Number, context: object) -> Number:
        return Number(number=input.number + int(version))

    return app


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with (
        fleet(database, broker) as found,
        relaying(database.relay_url, broker.url, broker.name_prefix),
    ):
        yield found


@pytest.mark.timeout(300)
@pytest.mark.requirement("SCHED-01")
@pytest.mark.requirement("OPS-02")
@pytest.mark.parametrize("match", ["compatible", "exact"])
async def test_waiting_tasks_keep_their_profile_when_executors_are_replaced(
    api: Fleet,
    database: FreshDatabase,
    broker: BrokerSpace,
    tmp_path: Path,
    match: Literal["compatible", "exact"],
) -> None:
    def build(version: str, slots: int) -> Any:
        settings = settings_of(
            api, broker, tmp_path, slots=slots, node=None, build_digest=BUILDS[version]
        )
        return executing(program(version, match), settings)

    async with build("1", 1):
        await eventually(lambda: some_node_runs(api))
        # Once it has done something, it drains when it is asked to end.
        first = await result(api, await api.submit(type="add", input={"number": 0}))
        assert first["output"] == {"number": 1}
    tasks = [{"type": "add", "input": {"number": n}} for n in range(TASKS)]
    submitted = await api.application.post("/v1/tasks/batch", {"tasks": tasks})
    ids = [one["submitted"]["task_id"] for one in submitted.json()["results"]]
    assert len(ids) == TASKS
    async with session(database.owner_url) as owner:

        async def delivered() -> int:
            number: int = await owner.fetchval(
                "select count(*) from tenure.tasks where state = 'delivered'"
            )
            return number

        async def all_delivered() -> bool:
            return await delivered() == TASKS + 1

        async with build("2", 100):
            await eventually(lambda: some_node_runs(api))
            if match == "compatible":
                await eventually(all_delivered)
            else:
                why = (await api.reader.get(f"/v1/tasks/{ids[0]}/why")).json()["explanation"]
                miss = why["filters"][2]["nearest"]
                assert (why["standing"], miss["code"]) == ("excluded", "build_differs")
                assert why["profile_digest"] in miss["wanted"]
                backlog = (await api.reader.get("/v1/backlog")).json()
                assert [group["tasks"] for group in backlog["groups"]] == [TASKS]
        if match == "exact":
            assert await delivered() == 1
            async with build("1", 100):
                await eventually(all_delivered)
        # Under the terms of the first build, whichever did the work.
        rows = await owner.fetch(
            "select t.max_attempts, n.executable_version, count(*) from tenure.tasks t"
            " join tenure.attempts a on a.attempt_id = t.current_attempt_id"
            " join tenure.incarnations n on n.incarnation = a.incarnation"
            " where t.task_id = any ($1::uuid[]) group by 1, 2",
            ids,
        )
        worker = "2" if match == "compatible" else "1"
        assert [tuple(row) for row in rows] == [(1, worker, TASKS)]


async def some_node_runs(api: Fleet) -> bool:
    nodes = (await api.operator.get("/v1/nodes")).json()["nodes"]
    return any(node["state"] == "active" for node in nodes)
