"""What is seen of a lost lease, at the node and by whoever reads the published events."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from tenure.cli.chaos.toxic import ToxicProxy, toxic
from tenure.contract.codes import Code, Reason
from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import ExecutorSettings
from tenure.executor.errors import NodeGone
from tenure.executor.losses import DEADLINE
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import Running, attempts, executing, registered, settings_of
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually

LEASE_SECONDS: Final = 9.0
"""A busy machine may stand for longer than a renewal's pause, a third of it."""


class Nothing(BaseModel):
    pass


STAY = TaskType("stay", input=Nothing, output=Nothing)


class Stay:
    """Handlers that end only when they are asked to."""

    def __init__(self) -> None:
        self.contexts: list[Context[Any]] = []
        self.app = Executor("stay", version="1")
        self.app.task(STAY, effects="unguarded")(self.stay)

    def stay(self, input: Nothing, context: Context[Any]) -> Nothing:
        self.contexts.append(context)
        context.wait_cancelled(600)
        context.end_if_cancelled()
        return Nothing()


class Case:
    """A node with a running attempt, and what a test does to it."""

    def __init__(
        self, api: Fleet, proxy: ToxicProxy, attempt: Any, another: Callable[[], Awaitable[None]]
    ) -> None:
        self.api, self.proxy, self.attempt, self.another = api, proxy, attempt, another


Strike: TypeAlias = Callable[[Case], Awaitable[None]]


async def revoked(case: Case) -> None:
    body = {"attempt_id": case.attempt["attempt_id"], "reason": "it hangs"}
    reply = await case.api.operator.post(f"/v1/tasks/{case.attempt['task_id']}/revoke", body)
    assert reply.status_code == 200, reply.text


async def quarantined(case: Case) -> None:
    reply = await case.api.operator.post("/v1/nodes/node-1/quarantine", {"reason": "it leaks"})
    assert reply.status_code == 200, reply.text


async def cut_off(case: Case) -> None:
    case.proxy.freeze()


async def replaced(case: Case) -> None:
    await case.another()


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker, lease_seconds=LEASE_SECONDS) as made:
        yield made


@pytest.mark.requirement("LEASE-07")
@pytest.mark.requirement("LEASE-09")
@pytest.mark.parametrize(
    ("strike", "why", "reason", "message"),
    [
        (revoked, Code.NOT_CURRENT, Reason.REVOKED, "it hangs"),
        (quarantined, Code.NOT_CURRENT, Reason.REVOKED, "the node is quarantined: it leaks"),
        (cut_off, DEADLINE, Reason.LEASE_EXPIRED, None),
        (replaced, Code.NODE_GONE, Reason.LEASE_EXPIRED, None),
    ],
)
async def test_a_lost_lease_is_said_at_the_node_and_published_with_its_reason(
    api: Fleet,
    broker: BrokerSpace,
    tmp_path: Path,
    strike: Strike,
    why: str,
    reason: Reason,
    message: str | None,
) -> None:
    first, second = Stay(), Stay()
    with capture_logs() as said:
        async with toxic(api.coordinator.url) as proxy, AsyncExitStack() as others:

            async def another() -> None:
                settings = settings_of(api, broker, tmp_path / "second")
                await others.enter_async_context(executing(second.app, settings))

            settings = settings_of(
                api, broker, tmp_path / "first", url=proxy.url, drain_seconds=0.1
            )
            running = await others.enter_async_context(ended_somehow(first.app, settings))
            await registered(api, "node-1")
            task_id = await api.submit(type="stay", input={})
            await eventually(lambda: first.contexts != [])
            (attempt,) = await attempts(api, task_id)
            await strike(Case(api, proxy, {**attempt, "task_id": task_id}, another))
            await eventually(lambda: losses(said) != [])

            async def expired() -> bool:
                return bool((await attempts(api, task_id))[0]["state"] == "expired")

            await eventually(expired)
            (attempt,) = await attempts(api, task_id)
            stream = await api.reader.get(f"/v1/streams/attempt/{attempt['attempt_id']}")
            proxy.thaw()
            if strike is replaced:
                await eventually(running.task.done)
    assert losses(said) == [(attempt["attempt_id"], why)]
    assert first.contexts[0].cancelled
    assert (attempt["reason"], attempt["message"]) == (reason, message)
    last = stream.json()["events"][-1]["data"]
    assert (last["next_state"], last["reason"]) == ("expired", reason)


@asynccontextmanager
async def ended_somehow(app: Executor, settings: ExecutorSettings) -> AsyncIterator[Running]:
    """An executor that may be told that its name is another's."""
    with suppress(NodeGone):
        async with executing(app, settings) as running:
            yield running


def losses(said: list[Any]) -> list[tuple[str, str]]:
    return [(entry["attempt_id"], entry["why"]) for entry in said if entry["event"] == "lease_lost"]
