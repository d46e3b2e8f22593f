"""The retention policy over HTTP and the command line (OPS-08)."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tenure.cli.exits import Exit
from tests.support.ageing import age
from tests.support.at_the_prompt import Prompt
from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.sessions import session

KINDS = [
    "log",
    "tasks",
    "commands",
    "intake",
    "renewals",
    "reviews",
    "nodes",
    "dead_letters",
    "changes",
    "profiles",
    "executables",
]
DAY = 86_400


@pytest.fixture
async def api(
    database: FreshDatabase, broker: BrokerSpace, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Fleet]:
    # Nothing is removed but on request, and a request goes on until it is done.
    monkeypatch.setattr("tenure.coordinator.retention.TICK_SECONDS", 3600.0)
    monkeypatch.setattr("tenure.coordinator.retention.RUN_SECONDS", 60.0)
    async with fleet(database, broker, node_silence_seconds=3600, lease_seconds=3600) as found:
        yield found


@pytest.fixture
async def owner(database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    async with session(database.owner_url) as connection:
        yield connection


def change(keep: dict[str, int | None], after: int = 1) -> dict[str, Any]:
    return {"after_version": after, "keep_seconds": keep, "reason": "because"}


@pytest.fixture
def prompt(
    api: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Prompt:
    return Prompt(api.coordinator.url, monkeypatch, capsys)


@pytest.mark.requirement("OPS-08")
async def test_a_policy_is_a_version_with_its_author_and_reason(api: Fleet) -> None:
    first = (await api.reader.get("/v1/retention")).json()
    assert [one["kind"] for one in first["kinds"]] == KINDS
    assert {one["removed_to"] for one in first["kinds"]} == {None}
    reply = await api.operator.post("/v1/retention", change({"tasks": None, "log": 7200}))
    assert reply.status_code == 200, reply.text
    second = reply.json()
    assert (second["version"], second["set_by"], second["reason"]) == (2, "ops", "because")
    keep = {one["kind"]: one["keep_seconds"] for one in second["kinds"]}
    before = {one["kind"]: one["keep_seconds"] for one in first["kinds"]}
    assert keep == before | {"tasks": None, "log": 7200}
    reply = await api.operator.post("/v1/retention", change({"log": 3600}))
    assert (reply.status_code, reply.json()["code"]) == (409, "stale_version")


NONSENSE: list[dict[str, Any]] = [
    change({"tasks": DAY}),  # outcomes would name tasks that are gone
    change({"log": 3599}),
    change({"log": -1}),
    change({"other": 7200}),
    change({}),
    {"after_version": 1, "keep_seconds": {"log": 7200}, "reason": ""},
    {"after_version": 0, "keep_seconds": {"log": 7200}, "reason": "because"},
]


@pytest.mark.requirement("OPS-08")
async def test_what_makes_no_sense_changes_nothing(api: Fleet) -> None:
    for body in NONSENSE:
        reply = await api.operator.post("/v1/retention", body)
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid_field"), body
    assert (await api.reader.get("/v1/retention")).json()["version"] == 1


async def test_operators_of_the_platform_decide(api: Fleet) -> None:
    for caller in (api.application, api.executor, api.reader):
        reply = await caller.post("/v1/retention", change({"log": 7200}))
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden_role")
        reply = await caller.post("/v1/retention/run", {})
        assert reply.status_code == 403
    assert (await api.application.get("/v1/retention/plan")).status_code == 403


@pytest.mark.requirement("OPS-08")
async def test_a_plan_changes_nothing_and_a_run_does_what_it_says(
    api: Fleet, database: FreshDatabase, owner: asyncpg.Connection, prompt: Prompt
) -> None:
    incarnation = await api.register()
    finished, going_on = await api.submit(), await api.submit()
    await api.deliver(incarnation, finished, output="x")
    await age(database, "91 days", "tasks", "commands")
    plan = await prompt.json("retention", "plan")
    planned = {one["kind"]: one for one in plan["kinds"]}
    assert planned["tasks"]["rows"] == 1
    assert planned["tasks"]["bytes"] > 0
    assert planned["commands"]["rows"] >= 4
    assert planned["log"]["rows"] == 0
    policy = (await api.reader.get("/v1/retention")).json()
    overdue = {one["kind"]: one["overdue_seconds"] for one in policy["kinds"]}
    assert DAY < overdue["tasks"] < 2 * DAY
    assert (overdue["log"], overdue["renewals"]) == (None, None)
    gauges = (await api.nobody.get("/metrics")).text
    assert 'tenure_retention_overdue_seconds{kind="renewals"} 0.0' in gauges
    assert 'tenure_retention_overdue_seconds{kind="tasks"} 0.0' not in gauges
    assert await owner.fetchval("select count(*) from tenure.tasks") == 2
    removed = (await prompt.json("retention", "run", "tasks", "commands"))["removed_rows"]
    assert removed == {kind: planned[kind]["rows"] for kind in ("commands", "tasks")}
    assert (await api.reader.get(f"/v1/tasks/{finished}")).status_code == 404
    assert (await api.reader.get(f"/v1/tasks/{going_on}")).status_code == 200
    policy = (await api.reader.get("/v1/retention")).json()
    assert {one["overdue_seconds"] for one in policy["kinds"]} == {None}
    metrics = (await api.nobody.get("/metrics")).text
    assert 'tenure_retention_removed_total{kind="tasks"} 1.0' in metrics
    code, output = await prompt("retention", "show")
    assert code == Exit.DONE
    assert "90 d" in output


@pytest.mark.requirement("OPS-08")
async def test_the_command_sets_lengths_and_says_what_is_wrong(api: Fleet, prompt: Prompt) -> None:
    words = ("log=12h", "changes=forever", "--reason", "less")
    done = await prompt.json("retention", "set", *words)
    keep = {one["kind"]: one["keep_seconds"] for one in done["kinds"]}
    assert (keep["log"], keep["changes"]) == (12 * 3600, None)
    for wrong in (["log=5m"], ["log"], ["other=1d"], ["log=soon"], []):
        code, output = await prompt("retention", "set", *wrong, "--reason", "less")
        assert (code, "error:" in output) == (Exit.USAGE, True), output
    code, output = await prompt("retention", "set", "tasks=2d", "--reason", "less")
    assert (code, "contradict" in output) == (Exit.REFUSED, True)


@pytest.mark.requirement("OPS-08")
async def test_a_stream_says_from_where_on_it_is_kept(
    api: Fleet, database: FreshDatabase, owner: asyncpg.Connection
) -> None:
    incarnation = await api.register()
    old = await api.submit()
    assignment = await api.assigned(incarnation, old)
    await age(database, "31 days", "log")
    # What is recorded from now on is in the next partition.
    await owner.execute("select setval('tenure.log_position', 9999999)")
    assert (await api.report(incarnation, assignment, "take")).outcome == "applied"
    await owner.execute("update tenure.relay_shards set position = 10000000")
    await owner.fetchrow("select * from tenure.remove_old_log()")
    task, attempt = f"/v1/streams/task/{old}", f"/v1/streams/attempt/{assignment['attempt_id']}"
    gone = await api.reader.get(task)  # nothing of it is left
    assert (gone.status_code, gone.json()["code"]) == (410, "events_removed")
    sequence = await owner.fetchval("select sequence from tenure.tasks where task_id = $1", old)
    assert f"after={sequence}" in gone.json()["next_step"]
    assert (await api.reader.get(task, after=sequence)).json()["events"] == []
    gone = await api.reader.get(attempt)
    assert (gone.status_code, "after=1." in gone.json()["next_step"]) == (410, True)
    kept = (await api.reader.get(attempt, after=1)).json()
    assert [event["sequence"] for event in kept["events"]] == [2, 3]
    view = (await api.reader.get(f"/v1/tasks/{old}")).json()
    assert (view["state"], view["timeline_complete"]) == ("open", False)
    view = (await api.reader.get(f"/v1/tasks/{await api.submit()}")).json()
    assert view["timeline_complete"] is True
