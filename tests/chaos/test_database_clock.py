"""The database's clock is set while a coordinator and an executor work: authority ends with it,
work goes on under a higher token, and a clock that is set back stops nobody."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import BaseModel

from tenure.coordinator.store.verify import verify
from tenure.executor import Context, Executor, TaskType
from tests.support.clusters import ShiftedClock, on, started
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import attempts, executing, registered, result, settings_of
from tests.support.isolation import BrokerSpace, DatabaseServer, FreshDatabase
from tests.support.services import local_postgres
from tests.support.waiting import eventually


class Text(BaseModel):
    """Input and output."""

    text: str = ""


STAY = TaskType("stay", input=Text, output=Text)


class Program:
    """The first attempt that is to stay does so until it is told to end."""

    def __init__(self) -> None:
        self.app = Executor("program", version="1")
        self.began: list[str] = []
        self.ended: list[str] = []

        @self.app.task(STAY, effects="idempotent")
        async def stay(input: Text, context: Context[None]) -> Text:
            self.began.append(context.attempt_id)
            if input.text == "stay" and len(self.began) == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    self.ended.append(context.attempt_id)
            return input


@asynccontextmanager
async def shifted_fleet(
    directory: Path, broker: BrokerSpace
) -> AsyncIterator[tuple[Fleet, ShiftedClock, FreshDatabase]]:
    clock = ShiftedClock(directory / f"clock-{secrets.token_hex(4)}")
    async with local_postgres(directory) as first:
        server = DatabaseServer(first.url())
        await server.prepare()
        database = await server.create_migrated(f"clock_{secrets.token_hex(4)}")
        await first.stop()
        async with started(first.directory, environment=clock.environment) as shifted:
            there = on(shifted, database)
            async with fleet(there, broker, retry_base_seconds=0.1, retry_cap_seconds=0.1) as api:
                yield api, clock, there


@pytest.mark.direct
@pytest.mark.requirement("LEASE-05")
@pytest.mark.requirement("LEASE-09")
async def test_when_the_databases_clock_is_set_work_ends_and_goes_on(
    broker: BrokerSpace, server_directory: Path, tmp_path: Path
) -> None:
    program = Program()
    async with (
        shifted_fleet(server_directory, broker) as (api, clock, database),
        executing(program.app, settings_of(api, broker, tmp_path, drain_seconds=1.0)),
    ):
        await registered(api, "node-1")
        staying = await api.submit(type="stay", input={"text": "stay"})
        await eventually(lambda: len(program.began) == 1)
        clock.shift("+2h")
        # The lease was over two hours ago: the executor is told with its next renewal.
        await eventually(lambda: program.ended == program.began[:1])
        assert (await result(api, staying))["state"] == "delivered"
        lost, done = sorted(await attempts(api, staying), key=lambda each: int(each["ordinal"]))
        assert (lost["state"], done["state"]) == ("expired", "delivered")
        assert done["fencing_token"] > lost["fencing_token"]
        clock.shift("-30m")
        for _ in range(3):
            task_id = await api.submit(type="stay", input={"text": "back"})
            assert (await result(api, task_id))["state"] == "delivered"
            assert len(await attempts(api, task_id)) == 1
        assert (await verify(database.owner_url)).broken == {}
