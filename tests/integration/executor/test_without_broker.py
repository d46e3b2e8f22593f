"""Executors that ask for their work: without a broker, and while theirs is away."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import ExecutorSettings, load_settings
from tenure.settings.errors import SettingsInvalid
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import EXECUTOR_TOKEN, executing, registered, result, status_pages
from tests.support.isolated_app import Done, Job
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually

JOB = TaskType("job", input=Job, output=Done)
NEVER = 86_400


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as made:
        yield made


def settings(api: Fleet, folder: Path, **values: Any) -> ExecutorSettings:
    """It is never told by a message, and does not compare."""
    return load_settings(
        url=api.coordinator.url,
        token=EXECUTOR_TOKEN,
        state_dir=folder,
        node="node-1",
        slots=4,
        comparison_seconds=NEVER,
        drain_seconds=60.0,
        **values,
    )


class Program:
    """Says what it is told, or waits until it is cancelled."""

    def __init__(self) -> None:
        self.app = Executor("asking", version="1")
        self.began: list[str] = []

        @self.app.task(JOB, effects="none")
        async def job(input: Job, context: Context[None]) -> Done:
            self.began.append(context.task_id)
            if input.do == "wait":
                await asyncio.Event().wait()
            return Done(said=input.do, number=context.ordinal or 0)


@pytest.mark.requirement("OPS-07")
async def test_without_a_broker_tasks_are_done_and_cancelled(
    api: Fleet, database: FreshDatabase, tmp_path: Path
) -> None:
    program = Program()
    async with (
        status_pages() as pages,
        executing(
            program.app, settings(api, tmp_path, no_broker=True, executor_listen=pages.address)
        ),
    ):
        await registered(api, "node-1")
        for word in ("one", "two"):
            task_id = await api.submit(type="job", input={"do": word})
            assert (await result(api, task_id))["output"] == {"said": word, "number": 1}
        waiting = await api.submit(type="job", input={"do": "wait"})
        await eventually(lambda: waiting in program.began)
        await api.application.post(f"/v1/tasks/{waiting}/cancel")
        assert (await result(api, waiting))["state"] == "cancelled"
        assert (await pages.get("/readyz")).status_code == 200
    assert len(program.began) == 3, "each was begun once"
    owner = await asyncpg.connect(database.owner_url)
    try:
        assert await owner.fetchval("select count(*) from tenure.log where copy") == 0
        assert await owner.fetchval("select queue from tenure.incarnations") == ""
    finally:
        await owner.close()


async def test_while_the_broker_is_away_work_is_asked_for(api: Fleet, tmp_path: Path) -> None:
    program = Program()
    away = settings(api, tmp_path, broker_url="amqp://127.0.0.1:1/")
    async with executing(program.app, away):
        await registered(api, "node-1")
        task_id = await api.submit(type="job", input={"do": "one"})
        assert (await result(api, task_id))["output"]["said"] == "one"


@pytest.mark.parametrize("values", [{}, {"no_broker": True, "broker_url": "amqp://127.0.0.1/"}])
def test_an_executor_has_a_broker_or_says_that_it_has_none(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsInvalid, match="TENURE_NO_BROKER"):
        load_settings(token=EXECUTOR_TOKEN, **values)
