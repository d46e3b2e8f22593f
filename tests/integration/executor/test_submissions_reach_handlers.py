"""What a submission says reaches the handler: the scope that it narrows to, and its trace."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tenure.executor import Context, Executor, Scope, TaskType
from tests.support.coordinator import Fleet, fleet
from tests.support.enqueueing import application, enqueue
from tests.support.executors import executing, registered, result, settings_of
from tests.support.isolated_app import Done, Job, work
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.repository import REPOSITORY
from tests.support.sessions import session

TRACE = "00-5f0c9a1e7d3b48269c41d0e2f7a8b613-4e1d9c20b7a35f68-01"
HERE = TaskType("here", input=Job, output=Done)
APART = TaskType("apart", input=Job, output=Done)
ORDER_17 = {"do": "effect", "path": "orders/17"}


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace, tmp_path: Path) -> AsyncIterator[Fleet]:
    """With an executor whose leases permit to write orders, in it and in a process of its own."""
    app = Executor("told", version="1")
    scope = Scope(operations=("read", "write"), objects=("orders/*",))
    app.task(APART, effects="idempotent", runs_in="process", scope=scope)(work)

    @app.task(HERE, effects="idempotent", scope=scope)
    async def here(input: Job, context: Context[None]) -> Done:
        return work(input, context)

    async with (
        fleet(database, broker) as made,
        executing(app, settings_of(made, broker, tmp_path)),
    ):
        await registered(made, "node-1")
        yield made


async def shown(api: Fleet, task_id: str) -> Any:
    return (await api.application.get(f"/v1/tasks/{task_id}")).json()


@pytest.mark.requirement("LEASE-11")
async def test_a_submission_narrows_what_its_leases_permit_and_widens_nothing(api: Fleet) -> None:
    scopes: list[tuple[dict[str, Any], str, bool]] = [
        ({"operations": ["write"], "objects": ["orders/17"]}, "orders/17", True),
        ({"objects": ["orders/18"]}, "orders/17", False),
        ({"operations": ["read"]}, "orders/17", False),
        ({"objects": ["*"]}, "payments/17", False),  # which the type does not permit
    ]
    for type_name in ("here", "apart"):
        task_ids = [
            await api.submit(type=type_name, input={"do": "effect", "path": path}, scope=scope)
            for scope, path, _ in scopes
        ]
        for task_id, (scope, path, permitted) in zip(task_ids, scopes, strict=True):
            state = (await result(api, task_id))["state"]
            assert state == ("delivered" if permitted else "failed"), (type_name, scope, path)
            view = await shown(api, task_id)
            assert view["scope"] == {"operations": ["*"], "objects": ["*"]} | scope
            assert view["attempt_list"][0]["reason"] == (None if permitted else "out_of_scope")


@pytest.mark.requirement("LEASE-11")
async def test_a_scope_reads_the_input_as_it_was_submitted_wherever_the_handler_runs(
    api: Fleet,
) -> None:
    """Its model would write the number otherwise, and fill in what is missing."""
    scope = {"objects": ["{rate}", "{path}"]}
    for type_name in ("here", "apart"):
        task_id = await api.submit(type=type_name, input={"do": "scope", "rate": 17}, scope=scope)
        said = (await result(api, task_id))["output"]["said"]
        assert json.loads(said)["input"] == {"rate": "17"}, type_name


@pytest.mark.requirement("LEASE-11")
async def test_a_reader_of_outputs_learns_the_scope_from_what_is_shown_of_the_task(
    api: Fleet,
) -> None:
    """By what ``docs/guards.md`` shows."""
    page = (REPOSITORY / "docs" / "guards.md").read_text(encoding="utf-8")
    (program,) = re.findall(
        r"^```python\n(# permitted\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    shows: dict[str, Any] = {}
    exec(program, shows)
    for scope in (None, {"operations": ["write"], "objects": ["{path}"]}):
        task_id = await api.submit(
            type="here", input=ORDER_17, **({"scope": scope} if scope else {})
        )
        await result(api, task_id)
        found = shows["permitted"](await shown(api, task_id), ORDER_17)
        assert found.permits("write", "orders/17")
        assert not found.permits("write", "payments/17")
        assert found.permits("read", "orders/18") is (scope is None)


@pytest.mark.requirement("LEASE-11")
async def test_a_task_that_does_another_again_is_as_narrow(api: Fleet) -> None:
    scope = {"operations": ["read"], "objects": ["*"]}
    task_id = await api.submit(type="here", input=ORDER_17, scope=scope)
    await result(api, task_id)
    assert (await api.operator.post(f"/v1/tasks/{task_id}/retry", {})).status_code == 200
    again = (await shown(api, task_id))["retried_by"]
    assert (await result(api, again))["state"] == "failed"
    assert (await shown(api, again))["scope"] == scope


async def test_one_key_is_one_scope(api: Fleet) -> None:
    async def ask(scope: Any) -> int:
        body = {"type": "here", "input": ORDER_17, "scope": scope}
        reply = await api.application.post("/v1/tasks", body, headers={"Idempotency-Key": "one"})
        return int(reply.status_code)

    assert [await ask({"operations": ["read"]}), await ask({"operations": ["read"]})] == [201, 200]
    assert [await ask(None), await ask({"operations": ["write"]})] == [422, 422]


async def test_a_handler_knows_the_trace_of_its_submission(api: Fleet) -> None:
    for type_name in ("here", "apart"):
        task_id = await api.submit(type=type_name, input={"do": "trace"}, traceparent=TRACE)
        assert (await result(api, task_id))["output"]["said"] == TRACE
    without = await api.submit(type="here", input={"do": "trace"})
    assert (await result(api, without))["output"]["said"] == "None"


@pytest.mark.requirement("LEASE-11")
async def test_what_was_enqueued_has_its_scope_and_its_trace_too(
    api: Fleet, database: FreshDatabase
) -> None:
    scope = '{"operations": ["read"]}'
    async with application(database) as shop, session(shop.url) as connection:
        narrow = await enqueue(
            connection, "here", '{"do": "effect", "path": "orders/17"}', scope=scope
        )
        traced = await enqueue(connection, "here", '{"do": "trace"}', traceparent=TRACE)
        assert (await result(api, narrow))["state"] == "failed"
        assert (await shown(api, narrow))["reason"] == "out_of_scope"
        assert (await result(api, traced))["output"]["said"] == TRACE
