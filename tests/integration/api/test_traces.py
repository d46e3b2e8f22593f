"""A task's events are told under the trace of its submission (EVENT-01)."""

from collections.abc import AsyncIterator

import pytest

from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase

TRACE = "00-5f0c9a1e7d3b48269c41d0e2f7a8b613-4e1d9c20b7a35f68-01"
OTHER = "00-5f0c9a1e7d3b48269c41d0e2f7a8b613-00000000000000ff-00"


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker, node_silence_seconds=3600) as found:
        yield found


async def traces(api: Fleet, kind: str, entity_id: str) -> set[str | None]:
    stream = (await api.reader.get(f"/v1/streams/{kind}/{entity_id}")).json()
    assert stream["events"]
    return {event.get("traceparent") for event in stream["events"]}


@pytest.mark.requirement("EVENT-01")
async def test_every_event_of_a_task_carries_the_trace_of_its_submission(api: Fleet) -> None:
    incarnation = await api.register()
    reply = await api.application.post(
        "/v1/tasks", {"type": "sha256"}, headers={"traceparent": TRACE}
    )
    task_id = reply.json()["task_id"]
    await api.deliver(incarnation, task_id, 1)
    view = (await api.reader.get(f"/v1/tasks/{task_id}")).json()
    assert view["traceparent"] == TRACE
    assert await traces(api, "task", task_id) == {TRACE}
    assert await traces(api, "attempt", view["attempt_list"][0]["attempt_id"]) == {TRACE}
    assert await traces(api, "node", incarnation) == {None}


async def test_tasks_of_a_batch_have_their_own_trace_or_that_of_the_request(api: Fleet) -> None:
    await api.register()
    batch = {"tasks": [{"type": "sha256"}, {"type": "sha256", "traceparent": OTHER}]}
    reply = await api.application.post("/v1/tasks/batch", batch, headers={"traceparent": TRACE})
    first, second = (one["submitted"]["task_id"] for one in reply.json()["results"])
    assert await traces(api, "task", first) == {TRACE}
    assert await traces(api, "task", second) == {OTHER}


async def test_who_asks_again_asks_in_another_span_for_the_same_task(api: Fleet) -> None:
    await api.register()
    asked = []
    for trace in (TRACE, OTHER):
        headers = {"Idempotency-Key": "once", "traceparent": trace}
        asked.append(
            (await api.application.post("/v1/tasks", {"type": "sha256"}, headers=headers)).json()
        )
    assert asked[0]["task_id"] == asked[1]["task_id"]
    assert await traces(api, "task", asked[0]["task_id"]) == {TRACE}


async def test_a_header_that_is_no_trace_is_none_and_a_field_is_refused(api: Fleet) -> None:
    await api.register()
    for wrong in (
        "",
        "no trace",
        TRACE.upper(),
        TRACE[:-1],
        TRACE.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-4e1d9c20b7a35f68-01",
        f"00-5f0c9a1e7d3b48269c41d0e2f7a8b613-{'0' * 16}-01",
    ):
        reply = await api.application.post(
            "/v1/tasks", {"type": "sha256"}, headers={"traceparent": wrong}
        )
        assert reply.status_code == 201
        assert await traces(api, "task", reply.json()["task_id"]) == {None}
        body = {"type": "sha256", "traceparent": wrong}
        assert (await api.application.post("/v1/tasks", body)).status_code == 422
