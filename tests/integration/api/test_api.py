"""The HTTP interface over a real database and a real broker: what it does when all is well."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tenure.contract.codec import decode_event
from tenure.contract.ids import TenantId
from tenure.coordinator.submission import derived_id
from tests.support.coordinator import Fleet, fleet, report_of, until
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


@pytest.fixture
async def owner(database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database.owner_url)
    yield connection
    await connection.close()


async def test_a_task_is_submitted_worked_on_and_read(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit(input={"path": "a", "none": None}, priority=5)
    await api.deliver(incarnation, task_id, output={"digest": "x"})
    result = (await api.application.get(f"/v1/tasks/{task_id}/result", wait=10)).json()
    assert result["state"] == "delivered"
    assert result["output"] == {"digest": "x"}
    view = (await api.reader.get(f"/v1/tasks/{task_id}")).json()
    assert view["input"] == {"path": "a", "none": None}
    assert view["output"] == {"digest": "x"}
    assert view["priority"] == 5
    assert [attempt["state"] for attempt in view["attempt_list"]] == ["delivered"]
    assert [receipt["admitted"] for receipt in view["receipts"]] == [True]
    story = [(e["entity_type"], e["next_state"], e["actor"]) for e in view["timeline"]]
    assert story == [
        ("task", "open", "shop"),
        ("attempt", "submitted", "scheduler"),
        ("attempt", "accepted", "fleet"),
        ("attempt", "running", "fleet"),
        ("attempt", "delivered", "fleet"),
        ("task", "delivered", "fleet"),
    ]


async def test_the_reply_to_take_carries_the_input_and_the_authority(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit(input={"path": "a", "none": None})
    assignment = await api.assigned(incarnation, task_id)
    taken = await api.report(incarnation, assignment, "take")
    assert taken.input == {"path": "a", "none": None}
    assert taken.task_type == "sha256"
    assert taken.attempt_state == "running"
    assert taken.remaining_seconds is not None
    assert 0 < taken.remaining_seconds <= 30
    assert taken.expires_at is not None


async def test_a_repeated_key_gives_the_first_task_again(api: Fleet) -> None:
    await api.register()
    body = {"type": "sha256", "input": {"path": "é"}}
    headers = {"Idempotency-Key": "order-1"}
    first = await api.application.post("/v1/tasks", body, headers=headers)
    again = await api.application.post("/v1/tasks", body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.headers["location"] == f"/v1/tasks/{first.json()['task_id']}"
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first.json() | {"replayed": True}
    in_a_batch = await api.application.post(
        "/v1/tasks/batch", {"tasks": [body | {"idempotency_key": "order-1"}]}
    )
    assert in_a_batch.json()["results"][0]["submitted"] == again.json()


@pytest.mark.requirement("LATE-04")
async def test_one_key_at_once_over_two_replicas_makes_one_task(
    api: Fleet, database: FreshDatabase, broker: BrokerSpace
) -> None:
    await api.register()
    body, headers = {"type": "sha256", "input": 1}, {"Idempotency-Key": "once"}
    async with fleet(database, broker) as second:
        replies = await asyncio.gather(
            *(
                one.application.post("/v1/tasks", body, headers=headers)
                for one in (api, second)
                for _ in range(20)
            )
        )
    assert {reply.status_code for reply in replies} == {200, 201}
    assert len({reply.json()["task_id"] for reply in replies}) == 1
    assert sum(reply.status_code == 201 for reply in replies) == 1
    listed = (await api.application.get("/v1/tasks")).json()
    assert len(listed["tasks"]) == 1


async def test_a_batch_is_decided_task_by_task(api: Fleet) -> None:
    await api.register()
    reply = await api.application.post(
        "/v1/tasks/batch",
        {
            "tasks": [
                {"type": "sha256", "input": 0},
                {"type": "unheard-of"},
                {"type": "sha256", "priority": 1000},
                {"type": "sha256", "input": "a\u0000b"},
                {"type": "sha256", "input": "x" * 300_000},
                {"type": "sha256", "input": 5},
            ]
        },
    )
    assert reply.status_code == 200, reply.text
    results = reply.json()["results"]
    codes = [entry["problem"] and entry["problem"]["code"] for entry in results]
    assert codes == [
        None,
        "unknown_task_type",
        "invalid_field",
        "invalid_character",
        "payload_too_large",
        None,
    ]
    for entry, expected in ((results[0], 0), (results[5], 5)):
        task_id = entry["submitted"]["task_id"]
        assert (await api.reader.get(f"/v1/tasks/{task_id}")).json()["input"] == expected


async def test_reports_are_answered_one_by_one(api: Fleet) -> None:
    incarnation = await api.register()
    first, second = await api.submit(input=1), await api.submit(input=2)
    assignments = [await api.assigned(incarnation, task_id) for task_id in (first, second)]
    reports = [
        report_of(assignments[0], "take"),
        report_of(assignments[0], "deliver", output="a\u0000"),
        report_of(assignments[0], "fail"),
        report_of(assignments[1], "take"),
        report_of(assignments[0], "deliver", output="good"),
    ]
    reply = await api.executor.post(
        "/v1/nodes/node-1/reports", {"incarnation": incarnation, "reports": reports}
    )
    assert reply.status_code == 200, reply.text
    replies = reply.json()["replies"]
    assert [entry["report_id"] for entry in replies] == [entry["report_id"] for entry in reports]
    assert [(entry["outcome"], entry.get("code")) for entry in replies] == [
        ("applied", None),
        ("refused", "invalid_character"),
        ("refused", "invalid_field"),
        ("applied", None),
        ("applied", None),
    ]


@pytest.mark.requirement("LATE-04")
async def test_a_repeated_delivery_gives_the_original_record(api: Fleet) -> None:
    incarnation = await api.register()
    assignment = await api.assigned(incarnation, await api.submit())
    await api.report(incarnation, assignment, "take")
    report_id = str(uuid4())
    replies = [
        await api.report(incarnation, assignment, "deliver", report_id=report_id, output=1),
        await api.report(incarnation, assignment, "deliver", report_id=report_id, output=1),
        await api.report(incarnation, assignment, "deliver", output=1),
    ]
    assert {reply.outcome for reply in replies} == {"applied"}
    assert len({(reply.receipt_id, reply.admitted_at) for reply in replies}) == 1
    other = await api.report(incarnation, assignment, "deliver", report_id=report_id, output=2)
    assert (other.outcome, other.code) == ("refused", "idempotency_conflict")


async def test_renewals_extend_leases_and_are_the_heartbeat(api: Fleet) -> None:
    incarnation = await api.register()
    assignment = await api.assigned(incarnation, await api.submit())
    taken = await api.report(incarnation, assignment, "take")
    lease = {name: assignment[name] for name in ("task_id", "attempt_id", "fencing_token")}
    gone = lease | {"fencing_token": 2**32}
    reply = await api.executor.post(
        "/v1/nodes/node-1/renewals", {"incarnation": incarnation, "leases": [lease, gone]}
    )
    assert reply.status_code == 200, reply.text
    renewed, refused = reply.json()["replies"]
    assert reply.json()["node_state"] == "active"
    assert renewed["outcome"] == "renewed"
    assert renewed["expires_at"] > str(taken.model_dump(mode="json")["expires_at"])
    assert refused["outcome"] == "refused"
    elsewhere = await api.executor.post(
        "/v1/nodes/node-2/renewals", {"incarnation": incarnation, "leases": [lease]}
    )
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (404, "unknown_node")
    before = (await api.reader.get("/v1/nodes")).json()["nodes"][0]["last_seen_at"]
    await api.executor.post("/v1/nodes/node-1/renewals", {"incarnation": incarnation})
    after = (await api.reader.get("/v1/nodes")).json()["nodes"][0]["last_seen_at"]
    assert after > before


async def test_cancel_ends_what_waits_and_asks_what_runs(api: Fleet) -> None:
    waiting = None
    incarnation = await api.register(slots=1)
    running = await api.submit()
    assignment = await api.assigned(incarnation, running)
    await api.report(incarnation, assignment, "take")
    waiting = await api.submit()

    async def cancel(task_id: str) -> tuple[str, str]:
        reply = (await api.application.post(f"/v1/tasks/{task_id}/cancel")).json()
        return reply["outcome"], reply["state"]

    assert await cancel(waiting) == ("cancelled", "cancelled")
    assert await cancel(waiting) == ("already_ended", "cancelled")
    assert await cancel(running) == ("requested", "open")
    assert await cancel(running) == ("requested", "open")
    assert (await api.assigned(incarnation, running))["cancel_requested"] is True
    confirmed = await api.report(incarnation, assignment, "cancelled")
    assert confirmed.outcome == "applied"
    assert await cancel(running) == ("already_ended", "cancelled")


async def test_pages_of_tasks_hold_every_task_once(api: Fleet) -> None:
    incarnation = await api.register(types=("sha256", "lines"), slots=1)
    submitted = [await api.submit(type=("sha256", "lines")[n % 2]) for n in range(7)]
    await api.assigned(incarnation, submitted[0])  # the only slot: nothing else changes its phase
    seen: list[str] = []
    after: dict[str, Any] = {}
    while True:
        page = (await api.reader.get("/v1/tasks", limit=3, **after)).json()
        seen += [task["task_id"] for task in page["tasks"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == sorted(submitted, reverse=True)
    lines = (await api.reader.get("/v1/tasks", type="lines")).json()["tasks"]
    assert {task["task_id"] for task in lines} == set(submitted[1::2])
    await api.application.post(f"/v1/tasks/{submitted[6]}/cancel")
    cancelled = (await api.reader.get("/v1/tasks", state="cancelled")).json()["tasks"]
    assert [task["task_id"] for task in cancelled] == [submitted[6]]
    by_phase = [
        task["task_id"]
        for phase in ("waiting", "assigned", "cancelled")
        for task in (await api.reader.get("/v1/tasks", phase=phase)).json()["tasks"]
    ]
    assert sorted(by_phase) == sorted(submitted)


def _data(event: Any) -> Any:
    return event["data"]


@pytest.mark.requirement("EVENT-01")
@pytest.mark.requirement("EVENT-02")
async def test_a_stream_holds_every_event_without_a_hole(
    api: Fleet, owner: asyncpg.Connection
) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    await api.deliver(incarnation, task_id)
    attempt_id = await owner.fetchval("select attempt_id::text from tenure.attempts")
    for entity_type, entity_id, number, state in (
        ("task", task_id, 2, "delivered"),
        ("attempt", attempt_id, 4, "delivered"),
        ("node", incarnation, 1, "active"),
    ):
        path = f"/v1/streams/{entity_type}/{entity_id}"
        view = (await api.reader.get(path)).json()
        assert (view["state"], view["sequence"], view["epoch"]) == (state, number, 1)
        assert [event["sequence"] for event in view["events"]] == list(range(1, number + 1))
        bodies = await owner.fetch(
            "select body from tenure.log where entity_id = $1 and not copy order by position",
            entity_id,
        )
        events = [decode_event(row["body"]) for row in bodies]
        assert [event["id"] for event in view["events"]] == [event.event_id for event in events]
        assert {event["previous_state"] for event in map(_data, view["events"])} == {
            event.previous_state for event in events
        }
        rest = (await api.reader.get(path, after=number - 1, limit=5)).json()
        assert [event["sequence"] for event in rest["events"]] == [number]


@pytest.mark.requirement("OPS-05")
@pytest.mark.parametrize("squatter", ["fleet", "theirs"])
async def test_no_report_takes_the_command_of_an_applications_key(
    api: Fleet, squatter: str
) -> None:
    """Whoever guesses a key can compute its command; chosen as a report's id it did harm once."""
    await api.register()
    api.executor = api.callers[squatter]
    api.application = api.callers["shop" if squatter == "fleet" else "other"]
    if squatter == "theirs":
        await api.unrestrict("other")
    incarnation = await api.register(node_id="node-2", types=("decoy",))
    assignment = await api.assigned(incarnation, await api.submit(type="decoy"), "node-2")
    chosen = derived_id(TenantId("default"), "submit", "order-1")
    taken = await api.report(incarnation, assignment, "take", "node-2", report_id=chosen)
    assert taken.outcome == "applied"
    shop = api.callers["shop"]
    body = {"type": "sha256", "idempotency_key": "order-1"}
    assert (await shop.post("/v1/tasks", body)).status_code == 201


@pytest.mark.requirement("OPS-05")
async def test_another_tenant_finds_nothing(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    theirs = api.callers["theirs"]
    lease = {name: assignment[name] for name in ("task_id", "attempt_id", "fencing_token")}
    attempts = [
        await api.stranger.get(f"/v1/tasks/{task_id}"),
        await api.stranger.get(f"/v1/tasks/{task_id}/result", wait=1),
        await api.stranger.get(f"/v1/streams/task/{task_id}"),
        await api.stranger.get(f"/v1/streams/node/{incarnation}"),
        await api.stranger.post(f"/v1/tasks/{task_id}/cancel"),
        await theirs.get("/v1/nodes/node-1/assignments", incarnation=incarnation),
        await theirs.post(
            "/v1/nodes/node-1/renewals", {"incarnation": incarnation, "leases": [lease]}
        ),
        await theirs.post("/v1/nodes/node-1/drain", {"incarnation": incarnation}),
    ]
    assert [reply.status_code for reply in attempts] == [404] * len(attempts)
    assert (await api.stranger.get("/v1/tasks")).json()["tasks"] == []
    assert (await api.stranger.get("/v1/nodes")).json()["nodes"] == []
    taken = await theirs.post(
        "/v1/nodes/node-1/reports",
        {"incarnation": incarnation, "reports": [report_of(assignment, "take")]},
    )
    assert taken.json()["replies"][0]["outcome"] == "refused"
    unknown = await api.stranger.post("/v1/tasks", {"type": "sha256"})
    assert unknown.json()["code"] == "unknown_task_type"
    assert (await api.reader.get(f"/v1/tasks/{task_id}")).json()["phase"] == "assigned"


async def test_a_drained_node_gets_nothing_new_and_a_gone_one_is_told(api: Fleet) -> None:
    incarnation = await api.register()
    body = {"incarnation": incarnation}
    assert (await api.operator.post("/v1/nodes/node-1/drain", body)).json() == {}
    assert (await api.executor.post("/v1/nodes/node-1/drain", body)).json() == {}
    renewed = await api.executor.post("/v1/nodes/node-1/renewals", body)
    assert renewed.json()["node_state"] == "draining"
    gone = await api.executor.post("/v1/nodes/node-1/drain", body | {"gone": True})
    assert gone.status_code == 200, gone.text
    assert (await api.reader.get("/v1/nodes")).json()["nodes"][0]["state"] == "gone"
    late = await api.executor.post("/v1/nodes/node-1/drain", body)
    assert (late.status_code, late.json()["code"]) == (409, "node_gone")


async def test_registering_again_gives_the_same_answer(api: Fleet) -> None:
    body = {
        "node_id": "node-1",
        "incarnation": str(uuid4()),
        "protocol_version": 1,
        "software": "tests 1",
        "slots": 2,
        "resources": {"cpu_millis": 2000, "memory_bytes": 2**30},
        "task_types": [{"name": "sha256", "input_schema": {"type": "object"}}],
    }
    first = await api.executor.post("/v1/nodes", body)
    again = await api.executor.post("/v1/nodes", body)
    assert first.status_code == 200, first.text
    assert again.json() == first.json()
    assert first.json()["lease"]["duration_seconds"] == 30.0
    assert first.json()["lease"]["renewal_interval_seconds"] == 10.0
    other = await api.executor.post("/v1/nodes", body | {"slots": 3})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    node = (await api.reader.get("/v1/nodes")).json()["nodes"][0]
    assert node["slots"] == 2
    assert node["resources"] == {"cpu_millis": 2000, "memory_bytes": 2**30}
    await api.executor.post(
        "/v1/nodes/node-1/drain", {"incarnation": body["incarnation"], "gone": True}
    )
    ended = await api.executor.post("/v1/nodes", body)
    assert (ended.status_code, ended.json()["code"]) == (409, "node_gone")


async def test_the_outbox_shows_what_is_not_published(
    api: Fleet, owner: asyncpg.Connection
) -> None:
    incarnation = await api.register()
    await api.assigned(incarnation, await api.submit())
    rows = await owner.fetchval("select count(*) from tenure.log")
    status = (await api.operator.get("/v1/outbox")).json()
    assert status["lag_rows"] == rows
    assert status["head"] == await owner.fetchval("select max(position) from tenure.log")
    assert status["oldest_unpublished_seconds"] > 0
    assert len(status["shards"]) == 64
    assert {shard["owner"] for shard in status["shards"]} == {None}
    behind = [shard for shard in status["shards"] if shard["lag_rows"]]
    assert behind
    assert all((shard["lag_seconds"] > 0) == (shard in behind) for shard in status["shards"])
    assert status["needed_from"] == await owner.fetchval("select min(position) from tenure.log")
    assert [one["first_position"] for one in status["partitions"]] == [0, 10**7, 2 * 10**7]
    assert (status["bytes"] > 0, status["rows_beyond_partitions"]) == (True, 0)
    assert (status["kept_since"] is not None, status["keep_seconds"]) == (True, 30 * 86_400)
    await owner.execute("update tenure.relay_shards set position = $1", status["head"])
    published = (await api.operator.get("/v1/outbox")).json()
    assert (published["lag_rows"], published["oldest_unpublished_seconds"]) == (0, 0)
    assert published["needed_from"] == published["head"] + 1


async def test_metrics_count_requests_commits_and_refusals(api: Fleet) -> None:
    await api.register()
    await api.submit()
    await api.application.post("/v1/tasks", {"type": "unheard-of"})

    async def shown() -> str:
        text = (await api.nobody.get("/metrics")).text
        # What loops and the database tell is there once they have.
        told = (
            'tenure_loop_last_run_seconds{loop="sweeper"}',
            'tenure_nodes{state="active"} 1.0',
            'tenure_slots{what="offered"} ',
            "tenure_commits_waiting_for_standby 0.0",
            "tenure_outbox_lag_rows",
        )
        return text if all(line in text for line in told) else ""

    text = await until(shown)
    assert 'route="/v1/tasks",status="201"} 1.0' in text
    assert 'tenure_http_refusals_total{code="unknown_task_type"} 1.0' in text
    assert 'tenure_commits_total{lane="submissions"} 1.0' in text
    assert "tenure_broker_connected 1.0" in text
