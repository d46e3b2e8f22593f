"""Executors that are alive and cannot be heard: one whose way to the coordinator is blocked, and
one that is suspended in front of its write. Their successors' work stands; theirs does not."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest
from pydantic import BaseModel

from tenure.cli.chaos.toxic import toxic
from tenure.cli.drills.strikes import Act, Strike
from tenure.contract.codes import Code
from tenure.contract.faultpoints import FaultPoint
from tenure.contract.ids import fencing_token
from tenure.executor import Context, Executor, TaskType
from tenure.executor.errors import AuthorityOver
from tenure.executor.guards.sql import SqlGuard
from tests.support.armed import reached, stopped
from tests.support.armed_app import DOWNSTREAM, STRIKE
from tests.support.armed_app import executor as armed_executor
from tests.support.coordinator import Fleet, fleet
from tests.support.downstream import Downstream, downstream
from tests.support.executors import (
    EXECUTOR_TOKEN,
    Running,
    attempts,
    executing,
    registered,
    result,
    settings_of,
)
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying
from tests.support.repository import REPOSITORY
from tests.support.waiting import eventually

# Who is cut off has been silent for too long by the end of its lease: it is given nothing more.
LEASE = {"lease_seconds": 6.0, "clock_tolerance_seconds": 0.5, "node_silence_seconds": 4.0}
ROWS_OF_A_HOLDER = 5


class Text(BaseModel):
    """Input and output."""

    text: str = ""


WRITE_ON = TaskType("write_on", input=Text, output=Text)


@dataclass
class Writer:
    """A program whose task writes a row every moment, until it has to stop."""

    receiver: Downstream
    enough: int | None  # rows after which it delivers; None: it never does
    contexts: list[Context[SqlGuard]] = field(default_factory=list)
    rows: int = 0

    def app(self) -> Executor:
        app = Executor("writer", version="1")

        @app.lifespan
        @asynccontextmanager
        async def resources() -> AsyncIterator[SqlGuard]:
            async with SqlGuard(self.receiver.writer_url) as guard:
                yield guard

        @app.task(WRITE_ON, effects="guarded", guards=lambda guard: [guard])
        async def write_on(input: Text, context: Context[SqlGuard]) -> Text:
            self.contexts.append(context)
            while self.enough is None or self.rows < self.enough:
                await self.write(context)
                await asyncio.sleep(0.05)
            return Text(text="done")

        return app

    async def write(self, context: Context[SqlGuard]) -> None:
        operation = f"{context.attempt_id} {self.rows}"
        async with context.resources.transaction(context, operation=operation) as effect:
            await effect.connection.execute(
                "insert into effects (task_id, value) values ($1, $2)",
                context.task_id,
                context.attempt_id,
            )
        self.rows += 1


@pytest.mark.requirement("LEASE-07")
@pytest.mark.requirement("INC-02")
async def test_a_node_cut_off_from_the_coordinator_alone_stops_and_its_successor_writes(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    """T8: the broker and the downstream stay in reach."""
    async with (
        fleet(database, broker, **LEASE) as api,
        downstream(database.admin_url) as receiver,
        toxic(api.coordinator.url) as way,
    ):
        cut_off = Writer(receiver, enough=None)
        settings = settings_of(
            api, broker, tmp_path / "cut", node="cut", drain_seconds=0.0, slots=1, url=way.url
        )
        running = Running(cut_off.app(), settings)
        try:
            await registered(api, "cut")
            task_id = await api.submit(type="write_on", input={})
            await eventually(lambda: cut_off.rows >= ROWS_OF_A_HOLDER)
            way.freeze()
            (context,) = cut_off.contexts
            # By its own clock, and before the authority's.
            await eventually(lambda: context.remaining_authority_seconds() == 0)
            with pytest.raises(AuthorityOver):
                await cut_off.write(context)
            heir = Writer(receiver, enough=ROWS_OF_A_HOLDER)
            heirs = settings_of(api, broker, tmp_path / "heir", node="heir")
            async with executing(heir.app(), heirs):
                assert (await result(api, task_id))["state"] == "delivered"
            way.thaw()
        finally:
            running.stopping.ask()
            running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)
        lost, done = sorted(await attempts(api, task_id), key=lambda each: int(each["ordinal"]))
        assert (lost["state"], done["state"]) == ("expired", "delivered")
        assert done["fencing_token"] > lost["fencing_token"]
        # Downstream: every row of the first before every row of the second, and no late one.
        written = await receiver.effects(task_id)
        first = written.index(done["attempt_id"])
        assert set(written[:first]) == {lost["attempt_id"]}
        assert written[first:] == [done["attempt_id"]] * ROWS_OF_A_HOLDER


async def suspended(
    api: Fleet, broker: BrokerSpace, receiver: Downstream, folder: Path, strike: Strike
) -> asyncio.subprocess.Process:
    """An executor process that will stop itself in front of its write."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.armed_app",
        cwd=REPOSITORY,
        env={
            **kept,
            "TENURE_URL": api.coordinator.url,
            "TENURE_TOKEN": EXECUTOR_TOKEN,
            "TENURE_BROKER_URL": broker.url,
            "TENURE_STATE_DIR": str(folder),
            "TENURE_NODE": "suspended",
            "TENURE_SLOTS": "1",
            STRIKE: strike.as_json(),
            DOWNSTREAM: receiver.writer_url,
        },
    )


@pytest.mark.requirement("LEASE-05")
@pytest.mark.requirement("LEASE-02")
async def test_a_suspended_executor_that_comes_back_changes_nothing(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    """SIGSTOP in front of its write, for longer than its lease; then it goes on all the same."""
    signs = tmp_path / "signs"
    signs.mkdir()
    strike = Strike(FaultPoint.BEFORE_EFFECT, Act.STOP, signs)
    async with (
        fleet(database, broker, **LEASE) as api,
        downstream(database.admin_url) as receiver,
        relaying(database.relay_url, broker.url, broker.name_prefix),
    ):
        process = await suspended(api, broker, receiver, tmp_path / "inbox", strike)
        try:
            await registered(api, "suspended")
            task_id = await api.submit(type="write", input={"value": "x"})
            pid = await reached(strike)
            await stopped(pid)
            app = armed_executor(receiver.writer_url)
            async with executing(app, settings_of(api, broker, tmp_path, node="heir")):
                assert (await result(api, task_id))["state"] == "delivered"
            before = await everything(database, task_id)
            os.kill(pid, signal.SIGCONT)
            # It is back when the coordinator hears of it; by then its write was refused.
            await heard_of_again(database)
            process.terminate()
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert await receiver.effects(task_id) == ["x"]
        assert await everything(database, task_id) == before
        tried = sorted(await attempts(api, task_id), key=lambda each: int(each["ordinal"]))
        assert [(each["node_id"], each["state"]) for each in tried] == [
            ("suspended", "expired"),
            ("heir", "delivered"),
        ]


async def everything(database: FreshDatabase, task_id: str) -> list[asyncpg.Record]:
    """The task and its attempts as they are recorded."""
    owner = await asyncpg.connect(database.owner_url)
    try:
        tasks = await owner.fetch("select * from tenure.tasks where task_id = $1", task_id)
        return tasks + await owner.fetch(
            "select * from tenure.attempts where task_id = $1 order by ordinal", task_id
        )
    finally:
        await owner.close()


async def heard_of_again(database: FreshDatabase) -> None:
    owner = await asyncpg.connect(database.owner_url)
    try:
        last = "select last_seen_at from tenure.incarnations where node_id = 'suspended'"
        before = await owner.fetchval(last)

        async def later() -> bool:
            return bool(await owner.fetchval(f"select ({last}) > $1", before))

        await eventually(later)
    finally:
        await owner.close()


@pytest.mark.requirement("LEASE-04")
async def test_a_fence_that_knows_a_later_token_is_a_witness(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    """The database was restored, the downstream was not: nobody else remembers."""
    async with (
        fleet(database, broker) as api,
        downstream(database.admin_url) as receiver,
    ):
        app = Writer(receiver, enough=1).app()
        async with executing(app, settings_of(api, broker, tmp_path)):
            await registered(api, "node-1")
            first = await api.submit(type="write_on", input={})
            assert (await result(api, first))["state"] == "delivered"
        # The next task's fence stands where a lost attempt has raised it.
        task_id = await api.submit(type="write_on", input={})
        await receiver.owner.execute(
            "insert into tenure_fence (task_id, fencing_token, raised_at)"
            " values ($1, $2, clock_timestamp())",
            task_id,
            fencing_token(1, 9),
        )
        async with executing(app, settings_of(api, broker, tmp_path, drain_seconds=0.0)):

            async def refused() -> bool:
                reply = await api.application.post("/v1/tasks", {"type": "write_on", "input": {}})
                return bool(reply.json().get("code") == Code.AUTHORITY_HISTORY_LOST)

            await eventually(refused)
