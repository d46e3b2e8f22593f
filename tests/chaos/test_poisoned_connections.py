"""Every connection of a coordinator, a relay and an executor slow, frozen, unanswered, half open.

What the product owes: readiness says so, it goes on by itself, and nothing is lost or done twice.
Its patience with each server is cut short, so that the tests need not have as much.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.cli.chaos.toxic import Side
from tenure.coordinator.broker import Broker
from tenure.executor.assignments import AssignmentConsumer
from tests.support.downstream import Downstream, downstream
from tests.support.executors import attempts
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.poisoned import Stack, poisonable
from tests.support.waiting import eventually

LATENCY_SECONDS = 0.02
EVERY_SERVER = (
    "coordinator database",
    "coordinator broker",
    "relay database",
    "relay broker",
    "executor coordinator",
    "executor broker",
)


@pytest.fixture
async def receiver(database: FreshDatabase) -> AsyncIterator[Downstream]:
    async with downstream(database.admin_url) as made:
        yield made


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("coordinator.app.DATABASE_CHECK_SECONDS", 1.0),
        ("coordinator.app.DATABASE_ANSWER_SECONDS", 3.0),
        ("coordinator.store.connecting.CONNECT_TIMEOUT_SECONDS", 2.0),
        ("coordinator.store.postgres.COMMAND_TIMEOUT_SECONDS", 3.0),
        ("coordinator.broker.OPERATION_SECONDS", 2.0),
        ("executor.delivery.OPERATION_SECONDS", 2.0),
        ("executor.http.REQUEST_SECONDS", 4.0),
    ):
        monkeypatch.setattr(f"tenure.{name}", seconds)
    for of, name in ((Broker, "compare_seconds"), (AssignmentConsumer, "watch_seconds")):
        defaults = of.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, name, 1.0)


@pytest.fixture
async def stack(
    impatience: None,
    database: FreshDatabase,
    broker: BrokerSpace,
    receiver: Downstream,
    tmp_path: Path,
) -> AsyncIterator[Stack]:
    async with poisonable(database, broker, receiver, tmp_path) as made:
        yield made


@pytest.mark.requirement("OPS-01")
async def test_behind_latency_everywhere_each_task_is_done_at_its_first_attempt(
    stack: Stack,
) -> None:
    for leg in stack.legs.every.values():
        leg.to_server.latency_seconds = leg.to_client.latency_seconds = LATENCY_SECONDS
    for task_id in await stack.submit(20):
        await stack.api.application.get(f"/v1/tasks/{task_id}/result", wait=5)
    await stack.settled()
    for task_id in stack.ledger.tasks.values():
        assert len(await attempts(stack.api, task_id)) == 1
    await stack.says()


@pytest.mark.requirement("OPS-01")
@pytest.mark.requirement("RELAY-05")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("poison", ["frozen", "unanswered"])
async def test_with_every_connection_silent_readiness_says_so_and_work_resumes_by_itself(
    stack: Stack, poison: str
) -> None:
    """Frozen: what was on its way arrives at the thaw, late. Unanswered: everything arrives and is
    done, and no answer comes back."""
    await stack.submit(10)
    for leg in stack.legs.every.values():
        if poison == "frozen":
            leg.freeze()
        else:
            leg.to_client.dropping = True
    submitting = asyncio.create_task(stack.submit(10))
    await stack.says(*EVERY_SERVER)
    for leg in stack.legs.every.values():
        leg.thaw()
        leg.to_client.dropping = False
    if poison == "unanswered":  # a stream with a hole in it does not exist
        for leg in stack.legs.every.values():
            leg.cut()
    await submitting
    await stack.submit(10)
    await stack.settled()
    await stack.says()


@pytest.mark.requirement("OPS-01")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("gone", Side)
async def test_half_open_connections_are_given_up_and_work_goes_on_over_new_ones(
    stack: Stack, gone: Side
) -> None:
    await stack.submit(10)
    before = {name: leg.accepted for name, leg in stack.legs.every.items()}
    for leg in stack.legs.every.values():
        leg.leave_half_open(gone)
    await stack.submit(10)
    await stack.settled()
    await stack.says()
    legs = stack.legs.every
    await eventually(lambda: all(legs[name].accepted > before[name] for name in legs))
    await stack.submit(10)
    await stack.settled()
