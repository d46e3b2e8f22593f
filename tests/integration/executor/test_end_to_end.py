"""An executor under a real coordinator, with real servers downstream and in between."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from tenure.client import AsyncClient
from tenure.contract.ids import NodeId
from tenure.contract.reports import DrainRequest
from tenure.executor import Context, Executor, TaskType
from tenure.executor.errors import DeclarationError, NodeGone
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.http import Coordinator
from tests.support.coordinator import Fleet, fleet
from tests.support.downstream import Downstream, downstream
from tests.support.executors import (
    Running,
    attempts,
    executing,
    registered,
    result,
    settings_of,
)
from tests.support.isolation import BrokerSpace, DatabaseServer, FreshDatabase
from tests.support.relays import relaying
from tests.support.waiting import eventually


class In(BaseModel):
    text: str = ""


class Out(BaseModel):
    text: str


ECHO = TaskType("echo", input=In, output=Out)
WRITE = TaskType("write", input=In, output=Out)
WAIT = TaskType("wait", input=In, output=Out)


@dataclass(frozen=True)
class Resources:
    ledger: SqlGuard


class Program:
    """The application's executor: echoes, writes downstream, waits to be released."""

    def __init__(self, receiver: Downstream) -> None:
        self.app = Executor("program", version="1")
        self.began: list[str] = []
        self.release = asyncio.Event()
        self.cancelled: list[str] = []

        @self.app.lifespan
        @asynccontextmanager
        async def resources() -> AsyncIterator[Resources]:
            async with SqlGuard(receiver.writer_url) as ledger:
                yield Resources(ledger)

        @self.app.task(ECHO, effects="none")
        async def echo(input: In, context: Context[Resources]) -> Out:
            return Out(text=input.text)

        @self.app.task(WRITE, effects="guarded", guards=lambda resources: [resources.ledger])
        async def write(input: In, context: Context[Resources]) -> Out:
            async with context.resources.ledger.transaction(context, operation="row") as effect:
                if not effect.already_done:
                    await effect.connection.execute(
                        "insert into effects (task_id, value) values ($1, $2)",
                        context.task_id,
                        input.text,
                    )
            return Out(text=input.text)

        @self.app.task(WAIT, effects="guarded", guards=lambda resources: [resources.ledger])
        async def wait(input: In, context: Context[Resources]) -> Out:
            self.began.append(context.attempt_id)
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.append(context.attempt_id)
                raise
            return Out(text=input.text)


@pytest.fixture
async def receiver(database_server: DatabaseServer) -> AsyncIterator[Downstream]:
    async with (
        database_server.fresh() as database,
        downstream(database.admin_url) as made,
    ):
        yield made


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    """A coordinator. Nothing relays its log: executors find their work by comparison."""
    async with fleet(database, broker) as made:
        yield made


@pytest.fixture
def program(receiver: Downstream) -> Program:
    return Program(receiver)


async def submitted(api: Fleet, node: str, **values: Any) -> str:
    """A task, submitted once its node is there to declare the type."""
    await registered(api, node)
    return await api.submit(**values)


async def test_a_task_becomes_a_row_downstream_and_a_result(
    api: Fleet, broker: BrokerSpace, program: Program, receiver: Downstream, tmp_path: Path
) -> None:
    async with executing(program.app, settings_of(api, broker, tmp_path)):
        task_id = await submitted(api, "node-1", type="write", input={"text": "hello"})
        ended = await result(api, task_id)
    assert (ended["state"], ended["output"]) == ("delivered", {"text": "hello"})
    assert await receiver.effects(task_id) == ["hello"]
    fence = await receiver.owner.fetchval(
        "select fencing_token from tenure_fence where task_id = $1", task_id
    )
    assert [entry["fencing_token"] for entry in await attempts(api, task_id)] == [fence]


async def test_without_a_clock_that_counts_suspend_tasks_are_done_and_that_is_said_once(
    api: Fleet,
    broker: BrokerSpace,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)  # as on macOS
    with capture_logs() as said:
        async with executing(program.app, settings_of(api, broker, tmp_path)):
            for text in ("one", "two"):
                task_id = await submitted(api, "node-1", type="echo", input={"text": text})
                assert (await result(api, task_id))["output"] == {"text": text}
    assert len([entry for entry in said if "counts suspended time" in entry["event"]]) == 1


@pytest.mark.requirement("EVENT-03")
async def test_with_messages_and_comparisons_at_once_every_task_is_done_once(
    api: Fleet,
    database: FreshDatabase,
    broker: BrokerSpace,
    program: Program,
    receiver: Downstream,
    tmp_path: Path,
) -> None:
    """The same assignments come twice, by two ways."""
    quick = settings_of(api, broker, tmp_path, slots=16, comparison_seconds=0.01)
    async with (
        relaying(database.relay_url, broker.url, broker.name_prefix),
        executing(program.app, quick),
    ):
        await registered(api, "node-1")
        task_ids = [
            await api.submit(type="write", input={"text": str(number)}) for number in range(100)
        ]
        results = await asyncio.gather(*(result(api, task_id) for task_id in task_ids))
        lists = await asyncio.gather(*(attempts(api, task_id) for task_id in task_ids))
    assert [each["state"] for each in results] == ["delivered"] * 100
    assert [len(each) for each in lists] == [1] * 100
    assert await receiver.owner.fetchval("select count(*) from effects") == 100


async def test_by_messages_alone_a_task_becomes_a_result_and_a_cancellation_arrives(
    api: Fleet, database: FreshDatabase, broker: BrokerSpace, program: Program, tmp_path: Path
) -> None:
    never = settings_of(api, broker, tmp_path, comparison_seconds=86_400)
    async with (
        relaying(database.relay_url, broker.url, broker.name_prefix),
        executing(program.app, never),
    ):
        echoed = await submitted(api, "node-1", type="echo", input={"text": "by message"})
        assert (await result(api, echoed))["output"] == {"text": "by message"}
        waiting = await api.submit(type="wait", input={})
        await eventually(lambda: bool(program.began))
        await api.application.post(f"/v1/tasks/{waiting}/cancel")
        assert (await result(api, waiting))["state"] == "cancelled"


async def test_many_tasks_are_each_done_once(
    api: Fleet, broker: BrokerSpace, program: Program, receiver: Downstream, tmp_path: Path
) -> None:
    async with executing(program.app, settings_of(api, broker, tmp_path, slots=16)):
        await registered(api, "node-1")
        task_ids = [
            await api.submit(type="write", input={"text": str(number)}) for number in range(100)
        ]
        results = await asyncio.gather(*(result(api, task_id) for task_id in task_ids))
    assert [each["state"] for each in results] == ["delivered"] * 100
    assert await receiver.owner.fetchval("select count(*) from effects") == 100
    assert await receiver.owner.fetchval("select count(distinct task_id) from effects") == 100


async def test_an_input_that_does_not_fit_fails_the_task(
    api: Fleet, broker: BrokerSpace, program: Program, tmp_path: Path
) -> None:
    async with executing(program.app, settings_of(api, broker, tmp_path)):
        task_id = await submitted(api, "node-1", type="echo", input={"text": 5})
        ended = await result(api, task_id)
    assert (ended["state"], ended["reason"]) == ("failed", "input_invalid")
    assert len(await attempts(api, task_id)) == 1


@pytest.mark.requirement("STATE-06")
async def test_a_running_task_is_cancelled_and_its_handler_ended(
    api: Fleet, broker: BrokerSpace, program: Program, tmp_path: Path
) -> None:
    async with executing(program.app, settings_of(api, broker, tmp_path)):
        task_id = await submitted(api, "node-1", type="wait", input={})
        await eventually(lambda: bool(program.began))
        reply = await api.application.post(f"/v1/tasks/{task_id}/cancel")
        assert reply.json()["outcome"] == "requested"
        ended = await result(api, task_id)
    assert ended["state"] == "cancelled"
    assert program.cancelled == program.began
    assert [each["state"] for each in await attempts(api, task_id)] == ["cancelled"]


@pytest.mark.requirement("OPS-03")
async def test_what_was_assigned_and_never_arrived_is_handed_back_by_a_drain(
    api: Fleet,
    database: FreshDatabase,
    broker: BrokerSpace,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.executor.session.LAST_WORDS_SECONDS", 60.0)  # to compare in
    never = settings_of(api, broker, tmp_path, comparison_seconds=86_400)
    async with executing(program.app, never) as running:
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            arrived = await submitted(api, "node-1", type="echo", input={})
            assert (await result(api, arrived))["state"] == "delivered"
        # The relay is away, and the comparisons of the start are over.
        task_id = await api.submit(type="echo", input={})

        async def assigned() -> bool:
            return bool(await attempts(api, task_id))

        await eventually(assigned)
        running.stopping.ask()
        await running.task
    assert [(each["state"], each["reason"]) for each in await attempts(api, task_id)] == [
        ("rejected", "node_draining")
    ]


@pytest.mark.requirement("OPS-03")
async def test_a_drained_executor_finishes_its_work_and_says_goodbye(
    api: Fleet,
    broker: BrokerSpace,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.executor.session.LAST_WORDS_SECONDS", 60.0)  # to say it in
    async with executing(program.app, settings_of(api, broker, tmp_path)) as running:
        task_id = await submitted(api, "node-1", type="wait", input={"text": "done"})
        await eventually(lambda: bool(program.began))
        running.stopping.ask()

        async def draining() -> bool:
            nodes = (await api.operator.get("/v1/nodes")).json()["nodes"]
            return [node["state"] for node in nodes] == ["draining"]

        await eventually(draining)
        program.release.set()
        await running.task
    assert (await result(api, task_id))["output"] == {"text": "done"}
    nodes = (await api.operator.get("/v1/nodes")).json()["nodes"]
    assert [node["state"] for node in nodes] in ([], ["gone"])


@pytest.mark.requirement("OPS-03")
async def test_a_node_that_an_operator_drains_finishes_its_work_and_gets_no_more(
    api: Fleet, broker: BrokerSpace, program: Program, tmp_path: Path
) -> None:
    async with executing(program.app, settings_of(api, broker, tmp_path)):
        running = await submitted(api, "node-1", type="wait", input={"text": "done"})
        await eventually(lambda: bool(program.began))
        client = AsyncClient(api.coordinator.url, "operator-token-0001")
        detail = await client.node("node-1")
        assert detail.current is not None
        for _ in range(2):  # saying it again changes nothing
            await client.drain_node("node-1", detail.current.incarnation)
        later = await api.submit(type="echo", input={"text": "later"})
        program.release.set()
        assert (await result(api, running))["state"] == "delivered"
        detail = await client.node("node-1")
        await client.close()
        assert detail.current is not None
        assert (detail.current.state, detail.current.slots_used) == ("draining", 0)
        assert await attempts(api, later) == []
    async with executing(program.app, settings_of(api, broker, tmp_path / "again")):
        assert (await result(api, later))["state"] == "delivered", "its next start works again"


async def test_at_the_drain_limit_running_work_is_handed_back(
    api: Fleet,
    broker: BrokerSpace,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A busy machine may need longer for them: what is not told is found by the lease's end, and
    # what is handed back before the drain is known may be assigned to this node once more.
    monkeypatch.setattr("tenure.executor.session.ANNOUNCE_SECONDS", 30.0)
    told = Coordinator.drain

    async def told_late(coordinator: Coordinator, node_id: NodeId, request: DrainRequest) -> None:
        await asyncio.sleep(1.0)  # for longer than the coordinator takes to assign the work again
        await told(coordinator, node_id, request)

    monkeypatch.setattr(Coordinator, "drain", told_late)
    monkeypatch.setattr("tenure.executor.session.LAST_WORDS_SECONDS", 60.0)
    first = settings_of(api, broker, tmp_path, drain_seconds=0.0)
    async with executing(program.app, first) as running:
        task_id = await submitted(api, "node-1", type="wait", input={"text": "done"})
        await eventually(lambda: bool(program.began))
        running.stopping.ask()
        await running.task
    assert program.cancelled == program.began
    program.release.set()
    async with executing(program.app, settings_of(api, broker, tmp_path, node="node-2")):
        assert (await result(api, task_id))["state"] == "delivered"
    states = [(each["state"], each["reason"]) for each in await attempts(api, task_id)]
    assert sorted(states) == [("delivered", None), ("failed", "node_draining")]


async def test_a_node_whose_name_was_taken_ends_and_says_why(
    api: Fleet, broker: BrokerSpace, program: Program, receiver: Downstream, tmp_path: Path
) -> None:
    settings = settings_of(api, broker, tmp_path)
    first = Running(program.app, settings)
    await registered(api, "node-1")
    task_id = await api.submit(type="wait", input={})
    await eventually(lambda: bool(program.began))
    async with executing(Program(receiver).app, settings_of(api, broker, tmp_path / "second")):
        with pytest.raises(NodeGone, match="TENURE_NODE"):
            await first.task
        assert program.cancelled == program.began, "its work ended with it"
        assert [each["state"] for each in await attempts(api, task_id)] == ["running"]


async def test_a_node_that_was_given_up_after_a_silence_joins_again(
    api: Fleet,
    broker: BrokerSpace,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.executor.runner.REJOIN_AFTER_SECONDS", 0.0)
    async with executing(program.app, settings_of(api, broker, tmp_path)):
        await registered(api, "node-1")
        lost = await api.submit(type="wait", input={})
        await eventually(lambda: bool(program.began))
        (attempt,) = await attempts(api, lost)
        given_up = {"incarnation": attempt["incarnation"], "gone": True}
        assert (await api.operator.post("/v1/nodes/node-1/drain", given_up)).status_code == 200
        await eventually(lambda: bool(program.cancelled))
        await registered(api, "node-1")
        task_id = await api.submit(type="echo", input={"text": "back"})
        assert (await result(api, task_id))["output"] == {"text": "back"}
        (done,) = await attempts(api, task_id)
        assert done["incarnation"] != attempt["incarnation"]


async def test_an_executor_works_while_the_broker_is_away(
    api: Fleet, broker: BrokerSpace, program: Program, tmp_path: Path
) -> None:
    settings = settings_of(api, broker, tmp_path, broker_url="amqp://guest:guest@127.0.0.1:1/")
    async with executing(program.app, settings):
        task_id = await submitted(api, "node-1", type="echo", input={"text": "by comparison"})
        assert (await result(api, task_id))["output"] == {"text": "by comparison"}


async def test_an_executor_without_handlers_says_so(
    api: Fleet, broker: BrokerSpace, tmp_path: Path
) -> None:
    running = Running(Executor("empty", version="1"), settings_of(api, broker, tmp_path))
    with pytest.raises(DeclarationError, match="no handlers"):
        await running.task


@pytest.mark.requirement("LEASE-09")
async def test_a_handler_ends_before_its_lease_when_the_coordinator_is_away(
    database: FreshDatabase, broker: BrokerSpace, program: Program, tmp_path: Path
) -> None:
    owner = await asyncpg.connect(database.admin_url)
    try:
        # It ends as much before its lease as the clocks may differ: time to look that up.
        async with fleet(database, broker, lease_seconds=9.0, clock_tolerance_seconds=4.0) as api:
            running = Running(program.app, settings_of(api, broker, tmp_path, drain_seconds=0.0))
            task_id = await submitted(api, "node-1", type="wait", input={})
            await eventually(lambda: bool(program.began))
        # The coordinator is gone; only its database can tell the time of the lease.
        await eventually(lambda: bool(program.cancelled))
        live = await owner.fetchval(
            "select expires_at > clock_timestamp() from tenure.attempts where task_id = $1",
            task_id,
        )
        assert live is True
        running.stopping.ask()
        await running.task
    finally:
        await owner.close()
