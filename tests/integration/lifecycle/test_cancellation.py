"""A cancellation is requested, delivered to the executor, and confirmed by it: each is seen."""

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.contract.codes import Code
from tenure.executor import Context, Executor, TaskType
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import executing, registered, result, settings_of
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually


class In(BaseModel):
    pass


class Out(BaseModel):
    pass


SLOW = TaskType("slow", input=In, output=Out)


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as made:
        yield made


async def view_of(api: Fleet, task_id: str) -> Any:
    return (await api.reader.get(f"/v1/tasks/{task_id}")).json()


def stages(view: Any) -> list[bool]:
    """Requested, delivered, confirmed."""
    names = ("cancel_requested_at", "cancel_delivered_at", "cancel_confirmed_at")
    return [view[name] is not None for name in names]


@pytest.mark.requirement("STATE-06")
async def test_a_cancellation_is_seen_delivered_while_its_handler_takes_long_to_end(
    api: Fleet, broker: BrokerSpace, tmp_path: Path
) -> None:
    app = Executor("slow", version="1")
    began, leave = threading.Event(), threading.Event()

    @app.task(SLOW, effects="none")
    def slow(input: In, context: Context[None]) -> Out:
        began.set()
        leave.wait(60)  # deaf to what it is asked for
        context.end_if_cancelled()
        return Out()

    async with executing(app, settings_of(api, broker, tmp_path)):
        await registered(api, "node-1")
        task_id = await api.submit(type="slow", input={})
        await eventually(began.is_set)
        assert stages(await view_of(api, task_id)) == [False, False, False]
        await api.application.post(f"/v1/tasks/{task_id}/cancel")

        async def delivered() -> bool:
            return stages(await view_of(api, task_id))[1]

        await eventually(delivered)
        view = await view_of(api, task_id)
        assert (view["state"], view["phase"]) == ("open", "running")
        assert stages(view) == [True, True, False]
        leave.set()
        assert (await result(api, task_id))["state"] == "cancelled"
    view = await view_of(api, task_id)
    assert stages(view) == [True, True, True]
    assert view["cancel_requested_at"] <= view["cancel_delivered_at"] <= view["ended_at"]
    assert view["cancel_confirmed_at"] == view["ended_at"]
    reasons = [entry["reason"] for entry in view["timeline"] if entry["entity_type"] == "task"]
    assert reasons == [None, "cancel_requested", "cancel_delivered", "cancel_requested"]


@pytest.mark.requirement("STATE-06")
async def test_what_nobody_is_at_is_cancelled_and_confirmed_at_once(api: Fleet) -> None:
    incarnation = await api.register(slots=1)
    assigned = await api.submit()
    assignment = await api.assigned(incarnation, assigned)
    waiting = await api.submit()
    for task_id in (assigned, waiting):
        reply = (await api.application.post(f"/v1/tasks/{task_id}/cancel")).json()
        assert reply["outcome"] == "cancelled"
        view = await view_of(api, task_id)
        assert stages(view) == [True, False, True]
    taken = await api.report(incarnation, assignment, "take")
    assert (taken.outcome, taken.code) == ("refused", Code.NOT_CURRENT)


@pytest.mark.requirement("STATE-04")
@pytest.mark.requirement("STATE-06")
async def test_work_that_was_accepted_does_not_begin_once_it_is_cancelled(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    await api.report(incarnation, assignment, "accept")
    early = await api.report(incarnation, assignment, "cancel_received")
    assert (early.outcome, early.code) == ("refused", Code.WRONG_STATE)
    reply = (await api.application.post(f"/v1/tasks/{task_id}/cancel")).json()
    assert reply["outcome"] == "requested"
    for kind in ("start", "take"):
        refused = await api.report(incarnation, assignment, kind)
        assert (refused.outcome, refused.code) == ("refused", Code.CANCEL_REQUESTED)
    for _ in range(2):
        heard = await api.report(incarnation, assignment, "cancel_received")
        assert (heard.outcome, heard.cancel_requested) == ("applied", True)
    confirmed = await api.report(incarnation, assignment, "cancelled")
    assert confirmed.outcome == "applied"
    view = await view_of(api, task_id)
    assert (view["state"], view["attempt_list"][0]["state"]) == ("cancelled", "cancelled")
    assert stages(view) == [True, True, True]


@pytest.mark.requirement("STATE-04")
@pytest.mark.requirement("STATE-05")
async def test_an_attempt_that_fails_after_a_cancellation_is_not_confirmed_and_not_tried_again(
    api: Fleet,
) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    await api.report(incarnation, assignment, "take")
    await api.application.post(f"/v1/tasks/{task_id}/cancel")
    await api.report(incarnation, assignment, "fail", reason="no")
    view = await view_of(api, task_id)
    assert (view["state"], view["attempt_list"][0]["state"]) == ("cancelled", "failed")
    assert stages(view) == [True, False, False]
    assert len(view["attempt_list"]) == 1


async def test_an_output_that_comes_all_the_same_is_delivered(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    await api.report(incarnation, assignment, "take")
    await api.application.post(f"/v1/tasks/{task_id}/cancel")
    await api.report(incarnation, assignment, "cancel_received")
    assert (await api.report(incarnation, assignment, "deliver", output=1)).outcome == "applied"
    view = await view_of(api, task_id)
    assert view["state"] == "delivered"
    assert stages(view) == [True, True, False]
