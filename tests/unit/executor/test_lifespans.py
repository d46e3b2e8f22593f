"""A lifespan that waits for ever keeps neither an executor nor a consumer that is to end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.executor import Context, Executor, TaskType
from tenure.executor import config as executor_config
from tenure.executor import consumer_settings as consumer_config
from tenure.executor.consumer import EventConsumer
from tenure.executor.consumer_runner import run_until as run_consumer_until
from tenure.executor.errors import LifespanFailed
from tenure.executor.event_inbox_sqlite import SqliteInbox
from tenure.executor.runner import run_until
from tenure.executor.stopping import Stopping
from tests.support.waiting import eventually

NOBODY = "http://127.0.0.1:1"


class Nothing(BaseModel):
    """Input and output."""


class Application:
    """An executor whose lifespan does what it is told; what it did is in ``did``."""

    def __init__(self, *, enters: bool = True, leaves: bool = True, fails: bool = False) -> None:
        self.did: list[str] = []
        self.app = Executor("waiting", version="1")
        task_type = TaskType("nothing", input=Nothing, output=Nothing)

        @self.app.task(task_type, effects="none")
        async def nothing(input: Nothing, context: Context[Any]) -> Nothing:
            return input

        @self.app.lifespan
        @asynccontextmanager
        async def lifespan() -> AsyncIterator[None]:
            self.did.append("begun")
            if fails:
                raise TimeoutError("the database")
            try:
                await (asyncio.sleep(0) if enters else asyncio.Event().wait())
                self.did.append("entered")
                yield
            finally:
                await (asyncio.sleep(0) if leaves else asyncio.Event().wait())
                self.did.append("left")

    async def run(self, stopping: Stopping, folder: Path) -> None:
        """As a process would."""
        settings = executor_config.load_settings(
            url=NOBODY, token="t" * 16, no_broker=True, state_dir=folder
        )
        await run_until(self.app, settings, stopping)


@pytest.mark.requirement("OPS-03")
async def test_an_executor_ends_before_its_lifespan_was_entered(tmp_path: Path) -> None:
    application, stopping = Application(enters=False), Stopping(0.0)
    running = asyncio.create_task(application.run(stopping, tmp_path))
    await eventually(lambda: application.did == ["begun"])
    stopping.ask()
    await running
    assert application.did == ["begun", "left"]
    assert running.cancelling() == 0


@pytest.mark.requirement("OPS-03")
async def test_an_executor_ends_although_its_lifespan_is_never_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.executor.lifespans.CLOSING_SECONDS", 0.01)
    application, stopping = Application(leaves=False), Stopping(0.0)
    running = asyncio.create_task(application.run(stopping, tmp_path))
    await eventually(lambda: application.did == ["begun", "entered"])
    stopping.ask()
    await running
    assert application.did == ["begun", "entered"]


async def test_a_lifespan_that_can_be_left_is(tmp_path: Path) -> None:
    application, stopping = Application(), Stopping(0.0)
    stopping.ask()
    await application.run(stopping, tmp_path)
    assert application.did[-1] == "left"


async def test_a_time_limit_of_the_lifespans_own_is_its_failure(tmp_path: Path) -> None:
    with pytest.raises(LifespanFailed, match="TimeoutError: the database"):
        await Application(fails=True).run(Stopping(0.0), tmp_path)


async def test_whoever_else_cancels_it_has_cancelled_it(tmp_path: Path) -> None:
    application = Application(enters=False)
    running = asyncio.create_task(application.run(Stopping(0.0), tmp_path))
    await eventually(lambda: application.did == ["begun"])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.requirement("OPS-03")
async def test_a_consumer_ends_before_its_lifespan_was_entered(tmp_path: Path) -> None:
    consumer = EventConsumer("waiting", inbox=SqliteInbox(tmp_path / "inbox.sqlite3"))
    began, stopping = asyncio.Event(), Stopping(0.0)

    @consumer.on("all")
    async def handle(event: Any, context: Any) -> None:
        raise AssertionError

    @consumer.lifespan
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        began.set()
        await asyncio.Event().wait()
        yield

    settings = consumer_config.load_settings(
        url=NOBODY, token="t" * 16, broker_url="amqp://guest:guest@127.0.0.1:1"
    )
    running = asyncio.create_task(run_consumer_until(consumer, settings, stopping))
    await began.wait()
    stopping.ask()
    await running
