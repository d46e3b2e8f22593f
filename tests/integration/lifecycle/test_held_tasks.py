"""Tasks that wait for a person: why they are held, and what an operator's word makes of them."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from tenure.contract.codes import Code, Reason
from tenure.contract.states import Effects
from tenure.coordinator.core.commands import Reject
from tenure.coordinator.core.decisions import ItemOutcome
from tenure.coordinator.core.outcomes import LOSSES_UNTIL_HELD
from tenure.coordinator.sweeper import Sweeper
from tests.support import steps
from tests.support.authority import Bench, Held, replica
from tests.support.coordinator import Fleet, fleet, until
from tests.support.every_command import hold_rejected
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def bench(emptied_database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(emptied_database) as bench:
        yield bench


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as made:
        yield made


async def reject(bench: Bench, held: Held) -> None:
    outcome = await bench.report(Reject, held, reason="unknown_type", message="not mine")
    assert outcome.reply is not None, outcome


@pytest.mark.requirement("STATE-05")
async def test_a_rejected_task_is_offered_to_every_node_once_and_then_held(bench: Bench) -> None:
    sweeper = Sweeper(bench.pool, bench.authority)
    for number in range(3):
        await bench.register(f"node-{number}")
    task_id = await bench.submit()
    asked = []
    for _ in range(3):
        held = await bench.assigned(task_id)
        asked.append(held.incarnation)
        await sweeper.step()
        assert (await bench.task(task_id))["state"] == "open"
        await reject(bench, held)
    assert len(set(asked)) == 3
    assert await bench.scheduler.step() == 0
    await sweeper.step()
    task = await bench.task(task_id)
    assert (task["state"], task["reason"], task["failures"]) == ("held", "rejected_by_all", 0)
    # A new start of a node would have been asked; an operator lets all of them be asked again.
    await bench.release(task_id)
    assert (await bench.assigned(task_id)).incarnation in asked


@pytest.mark.requirement("STATE-05")
@pytest.mark.requirement("SCHED-02")
async def test_a_task_is_not_held_while_a_node_that_has_not_rejected_it_is_busy(
    bench: Bench,
) -> None:
    sweeper = Sweeper(bench.pool, bench.authority)
    busy = await bench.register("busy", slots=1)
    kept = await bench.running()
    assert kept.incarnation == busy
    await bench.register("picky")
    task_id = await bench.submit()
    await reject(bench, await bench.assigned(task_id))
    await sweeper.step()
    assert (await bench.task(task_id))["state"] == "open"
    await bench.deliver(kept)
    assert (await bench.assigned(task_id)).incarnation == busy


@pytest.mark.requirement("STATE-05")
@pytest.mark.requirement("STATE-01")
async def test_a_hold_for_rejections_is_not_applied_once_the_fleet_is_another(
    bench: Bench,
) -> None:
    await bench.register("picky")
    task_id = await bench.submit()
    await reject(bench, await bench.assigned(task_id))
    item = await steps.accept(bench.pool, hold_rejected(task_id))
    await bench.register("new")
    assert await steps.commit(bench.pool, item) == [ItemOutcome.STALE]
    assert (await bench.hold_rejected(task_id)).refused is not None
    assert await bench.scheduler.step() == 1


@pytest.mark.requirement("STATE-05")
async def test_an_unguarded_task_that_was_lost_waits_for_a_person(bench: Bench) -> None:
    await bench.register(effects=Effects.UNGUARDED)
    held = await bench.running()
    await bench.end_lease(held)
    await bench.expire(held.task_id)
    task = await bench.task(held.task_id)
    assert (task["state"], task["reason"]) == ("held", Reason.LOST_WITH_POSSIBLE_EFFECT)
    assert await bench.scheduler.step() == 0
    await bench.release(held.task_id)
    again = await bench.assigned(held.task_id)
    assert again.fencing_token > held.fencing_token


@pytest.mark.requirement("STATE-05")
async def test_a_task_that_takes_its_processes_down_is_held_in_the_end(bench: Bench) -> None:
    await bench.register()
    task_id = await bench.submit()
    for _ in range(LOSSES_UNTIL_HELD):
        assert (await bench.task(task_id))["state"] == "open"
        await bench.owner.execute("update tenure.tasks set not_before = null, ripe = true")
        held = await bench.assigned(task_id)
        await bench.take(held)
        await bench.end_lease(held)
        await bench.expire(task_id)
    task = await bench.task(task_id)
    assert (task["state"], task["reason"]) == ("held", "lost_repeatedly")
    assert (task["losses"], task["failures"]) == (LOSSES_UNTIL_HELD, 0)


async def test_an_operator_holds_releases_and_retries_over_http(api: Fleet) -> None:
    incarnation = await api.register(slots=1)
    first = await api.submit()
    assignment = await api.assigned(incarnation, first)
    await api.report(incarnation, assignment, "take")
    task_id = await api.submit(priority=3, input={"n": 1})

    async def say(verb: str, body: Any = None, task: str = task_id) -> tuple[int, Any]:
        reply = await api.operator.post(f"/v1/tasks/{task}/{verb}", body)
        return reply.status_code, reply.json()

    assert await say("hold", {"reason": "the month is closed"}) == (
        200,
        {"task_id": task_id, "state": "held"},
    )
    assert (await say("hold", {"reason": "again"}))[0] == 200
    view = (await api.reader.get(f"/v1/tasks/{task_id}")).json()
    assert (view["reason"], view["message"]) == ("operator_hold", "the month is closed")
    assert view["timeline"][-1]["actor"] == "ops"
    assert (await say("release"))[1]["state"] == "open"
    assert (await say("release"))[1]["state"] == "open"
    # What a node is at can only be cancelled.
    status, problem = await say("hold", {"reason": "stop"}, first)
    assert (status, problem["code"]) == (409, Code.WRONG_STATE)
    status, problem = await say("retry", None, task_id)
    assert (status, problem["code"]) == (409, Code.WRONG_STATE)
    assert "not been tried" in problem["detail"]
    for verb, body in (("hold", {"reason": "x"}), ("release", None), ("retry", None)):
        assert (await say(verb, body, str(uuid4())))[0] == 404
        refused = await api.application.post(f"/v1/tasks/{task_id}/{verb}", body)
        assert refused.status_code == 403
        stranger = await api.callers["ops"].post(f"/v1/tasks/none/{verb}", body)
        assert stranger.status_code == 404
    assert (await say("hold", {}))[0] == 422
    assert (await say("hold", {"reason": "\x00"}))[0] == 422
    assert (await say("release", {"force": True}))[0] == 422
    assert (await api.reader.get(f"/v1/tasks/{task_id}")).json()["state"] == "open"


@pytest.mark.requirement("STATE-02")
@pytest.mark.requirement("STATE-05")
async def test_an_ended_task_is_done_again_as_a_new_one_once_however_often_it_is_asked_for(
    api: Fleet,
) -> None:
    incarnation = await api.register()
    task_id = await api.submit(priority=3, input={"n": 1}, resources={"cpu_millis": 5})
    assignment = await api.assigned(incarnation, task_id)
    await api.report(incarnation, assignment, "take")
    await api.report(incarnation, assignment, "fail", reason="no", retryable=False)
    path = f"/v1/tasks/{task_id}"
    before = (await api.reader.get(path)).json()
    replies = [(await api.operator.post(f"{path}/retry")).json() for _ in range(3)]
    new_id = replies[0]["new_task_id"]
    assert (
        replies
        == [
            {
                "task_id": task_id,
                "state": "failed",
                "outcome": "submitted_again",
                "new_task_id": new_id,
            }
        ]
        * 3
    )
    new = (await api.reader.get(f"/v1/tasks/{new_id}")).json()
    for name in ("type", "input", "priority", "resources"):
        assert new[name] == before[name]
    assert (new["retry_of"], new["state"], new["failures"]) == (task_id, "open", 0)
    assert (await api.reader.get(path)).json() == before | {"retried_by": new_id}
    await api.deliver(incarnation, new_id, {"done": 1})
    refused = await api.operator.post(f"/v1/tasks/{new_id}/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, Code.WRONG_STATE)


async def test_a_task_that_waits_for_its_retry_is_tried_at_once_when_an_operator_says_so(
    api: Fleet,
) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    await api.report(incarnation, assignment, "take")
    await api.report(incarnation, assignment, "fail", reason="no", retry_after_seconds=3600)
    view = (await api.reader.get(f"/v1/tasks/{task_id}")).json()
    assert view["attempt_list"][0]["retry_delay_seconds"] == 3600
    assert view["phase"] == "waiting"
    reply = (await api.operator.post(f"/v1/tasks/{task_id}/retry")).json()
    assert (reply["outcome"], reply["new_task_id"]) == ("waiting", None)
    assert await api.assigned(incarnation, task_id)


async def test_held_tasks_are_counted_by_reason(api: Fleet) -> None:
    await api.register(types=("other",))
    task_id = await api.submit(type="other", not_before="2100-01-01T00:00:00Z")
    await api.operator.post(f"/v1/tasks/{task_id}/hold", {"reason": "why"})

    async def counted() -> bool:
        text = (await api.nobody.get("/metrics")).text
        return 'tenure_tasks_held{reason="operator_hold"} 1.0' in text

    assert await until(counted)
