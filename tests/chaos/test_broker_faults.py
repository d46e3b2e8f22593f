"""A broker killed, wiped empty, or impatient with consumers: no task is lost, none done twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.contract.topology import DEFAULT_PREFIX
from tenure.executor import Context, Executor
from tests.support.armed_app import WRITE, Row, executor
from tests.support.as_stated import AS_STATED
from tests.support.coordinator import Fleet, fleet
from tests.support.downstream import Downstream, downstream
from tests.support.executors import (
    attempts,
    executing,
    registered,
    result,
    settings_of,
    status_pages,
)
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying
from tests.support.waiting import eventually


@pytest.fixture
async def receiver(database: FreshDatabase) -> AsyncIterator[Downstream]:
    async with downstream(database.admin_url) as made:
        yield made


async def submit(api: Fleet, first: int, count: int) -> list[str]:
    return [
        await api.submit(type="write", input={"value": str(number)})
        for number in range(first, first + count)
    ]


@pytest.mark.requirement("OPS-01")
@pytest.mark.requirement("RELAY-05")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("wiped", [False, True], ids=["restarted", "wiped"])
async def test_a_broker_that_is_killed_or_wiped_empty_loses_no_task_and_doubles_no_effect(
    database: FreshDatabase,
    receiver: Downstream,
    private_rabbitmq: PrivateRabbitmq,
    tmp_path: Path,
    wiped: bool,
) -> None:
    """Tasks are submitted before, while it is away, and after; messages are the only way to the
    executor but for its comparison, which is left at its usual pace."""
    space = BrokerSpace(private_rabbitmq.url(), DEFAULT_PREFIX)
    async with (
        fleet(database, space) as api,
        relaying(database.relay_url, space.url, space.name_prefix),
        executing(
            executor(receiver.writer_url),
            settings_of(api, space, tmp_path, comparison_seconds=10.0),
        ),
    ):
        await registered(api, "node-1")
        tasks = await submit(api, 0, 20)
        await result(api, tasks[0])
        private_rabbitmq.kill()
        tasks += await submit(api, 20, 20)
        if wiped:
            private_rabbitmq.wipe()
        await private_rabbitmq.start()
        tasks += await submit(api, 40, 20)
        ended = await asyncio.gather(*(result(api, task_id) for task_id in tasks))
        assert {each["state"] for each in ended} == {"delivered"}
    for number, task_id in enumerate(tasks):
        assert await receiver.effects(task_id) == [str(number)]


@pytest.fixture
async def impatient_rabbitmq(server_directory: Path) -> AsyncIterator[PrivateRabbitmq]:
    """A broker that closes the channel of whoever has not acknowledged for five seconds."""
    folder = server_directory / "impatient"
    folder.mkdir(mode=0o700)
    # It looks once a minute, and only this file can say otherwise.
    (folder / "advanced").write_text(
        "[{rabbit, [{channel_tick_interval, 1000}]}].\n", encoding="utf-8"
    )
    server = PrivateRabbitmq(folder, settings={"consumer_timeout": "5000"})
    await server.start()
    try:
        yield server
    finally:
        server.kill()
        await server.stop()


@pytest.mark.timeout(300)
async def test_a_handler_that_outlasts_the_brokers_patience_runs_once_and_no_channel_closes(
    database: FreshDatabase, impatient_rabbitmq: PrivateRabbitmq, tmp_path: Path
) -> None:
    """T12. How long that is another consumer tells, which never acknowledges: it is thrown out. A
    task of thirty seconds with ``make trials-as-stated``."""
    space = BrokerSpace(impatient_rabbitmq.url(), DEFAULT_PREFIX)
    began: list[str] = []
    release = asyncio.Event()
    app = Executor("slow", version="1")

    @app.task(WRITE, effects="none")
    async def write(input: Row, context: Context[None]) -> Row:
        began.append(context.attempt_id)
        await release.wait()
        return input

    async with (
        fleet(database, space) as api,
        relaying(database.relay_url, space.url, space.name_prefix),
        status_pages() as pages,
        executing(
            app,
            settings_of(
                api, space, tmp_path, comparison_seconds=3600.0, executor_listen=pages.address
            ),
        ),
    ):
        await registered(api, "node-1")
        (task_id,) = await submit(api, 0, 1)
        await eventually(lambda: bool(began))
        await thrown_out(space.url)
        if AS_STATED:
            await asyncio.sleep(30)
        release.set()
        assert (await result(api, task_id))["state"] == "delivered"
        assert len(began) == len(await attempts(api, task_id)) == 1
        metrics = (await pages.get("/metrics")).text.splitlines()
        assert "tenure_executor_consumer_sessions_total 1.0" in metrics


async def thrown_out(url: str) -> None:
    """Be a consumer that begins now and never acknowledges, until the broker closes its channel."""
    closed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async def hold(message: AbstractIncomingMessage) -> None:
        """Keeps it."""

    def on_close(_: object, error: BaseException | None) -> None:
        if not closed.done():
            closed.set_result(error)

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        channel.close_callbacks.add(on_close)
        queue = await channel.declare_queue(
            "held", durable=True, arguments={"x-queue-type": "quorum"}
        )
        await channel.default_exchange.publish(
            aio_pika.Message(b"x", message_id="x"), routing_key="held"
        )
        await queue.consume(hold)
        assert "timeout" in str(await closed)
