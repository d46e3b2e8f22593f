"""Processes and commands under a real coordinator: what is recorded of how an output was made."""

import os
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.executor import (
    CommandResult,
    Context,
    Executor,
    Limits,
    Resources,
    Scope,
    TaskType,
)
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import attempts, executing, registered, result, settings_of
from tests.support.isolated_app import Done, Job, work
from tests.support.isolation import BrokerSpace, FreshDatabase


class Order(BaseModel):
    order: str
    path: str


JOB = TaskType("job", input=Job, output=Done)
WHO = Path("/usr/bin/id")
ORDER = TaskType("order", input=Order, output=Done)
ID = TaskType("id", input=Job, output=CommandResult)


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as made:
        yield made


def digest_of(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


async def receipts(fleet: Fleet, task_id: str) -> Any:
    return (await fleet.operator.get(f"/v1/tasks/{task_id}/receipts")).json()["receipts"]


@pytest.mark.requirement("LEASE-11")
async def test_what_was_enforced_is_kept_with_the_receipt(
    api: Fleet, broker: BrokerSpace, tmp_path: Path
) -> None:
    app = Executor("isolated", version="1")
    app.task(
        JOB,
        effects="none",
        runs_in="process",
        time_limit_seconds=60,
        resources=Resources.of(memory="1Gi"),
        limits=Limits(open_files=200),
    )(work)
    async with executing(app, settings_of(api, broker, tmp_path)):
        await registered(api, "node-1")
        task_id = await api.submit(type="job", input={"do": "add"})
        assert (await result(api, task_id))["state"] == "delivered"
        (receipt,) = await receipts(api, task_id)
    enforced = receipt["enforced"]
    assert (enforced["runs_in"], enforced["memory_bytes"]) == ("process", 1 << 30)
    assert (enforced["wall_seconds"], enforced["open_files"]) == (60.0, 200)
    assert enforced["not_enforced"] == []


@pytest.mark.requirement("LEASE-11")
@pytest.mark.parametrize(("path", "state"), [("orders/17", "delivered"), ("orders/18", "failed")])
async def test_a_lease_permits_what_the_profile_says_of_the_task_s_own_objects(
    api: Fleet, broker: BrokerSpace, tmp_path: Path, path: str, state: str
) -> None:
    scope = Scope(operations=("write",), objects=("orders/{order}",))
    app = Executor("scoped", version="1")

    @app.task(ORDER, effects="idempotent", scope=scope)
    async def order(input: Order, context: Context[None]) -> Done:
        async with context.side_effect("write", key=input.path):
            return Done(said="written")

    async with executing(app, settings_of(api, broker, tmp_path)):
        await registered(api, "node-1")
        task_id = await api.submit(type="order", input={"order": "17", "path": path})
        ended = await result(api, task_id)
        (attempt,) = await attempts(api, task_id)
    assert ended["state"] == state
    assert attempt["scope"] == {
        "operations": ["write"],
        "objects": ["orders/{order}"],
        "reservation": {"slots": 1, "cpu_millis": 0, "memory_bytes": 0},
    }
    assert attempt["reason"] == (None if state == "delivered" else "out_of_scope")


@pytest.mark.requirement("OPS-07")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as somebody else")
async def test_an_executor_of_root_runs_programs_as_somebody_else(
    api: Fleet, broker: BrokerSpace, tmp_path: Path
) -> None:
    app = Executor("isolated", version="1")
    app.command(ID, str(WHO), "-un", digest=digest_of(WHO), effects="none")
    async with executing(app, settings_of(api, broker, tmp_path, run_as="nobody")):
        await registered(api, "node-1")
        task_id = await api.submit(type="id", input={"do": ""})
        assert (await result(api, task_id))["output"]["stdout"] == "nobody\n"
        (receipt,) = await receipts(api, task_id)
    assert receipt["enforced"]["user"] == "nobody"
