"""Profiles, programs, backlog and explanations over HTTP and on the command line."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tenure.cli.exits import Exit
from tests.support.commands import tenure_json, tenure_process
from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.sessions import session

PROGRAM = """
from pydantic import BaseModel
from tenure.executor import Executor, TaskType

class Empty(BaseModel): ...

app = Executor("worker", version="1.0")

@app.task(TaskType("echo", input=Empty, output=Empty), match="exact")
async def echo(input: Empty, context: object) -> Empty:
    return input
"""


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    # Nodes of these tests send no heartbeats, and commands take their time.
    async with fleet(database, broker, node_silence_seconds=3600, lease_seconds=3600) as found:
        yield found


@pytest.mark.requirement("SCHED-01")
async def test_a_pushed_profile_is_what_new_tasks_get_until_they_are_moved(
    api: Fleet, tmp_path: Path
) -> None:
    (tmp_path / "work.py").write_text(PROGRAM, encoding="utf-8")
    push = ("profile", "push", "work:app", "-o", "json")
    code, out, err = await tenure_process(api, *push, folder=tmp_path)
    assert code == Exit.DONE, err
    pushed = json.loads(out)
    (profile,) = pushed["profiles"]
    assert (profile["type"], profile["current"]) == ("echo", True)
    assert profile["content"]["executable"]["name"] == "worker"
    task_id = await api.submit(type="echo")
    incarnation = await api.register(types=("echo",))
    why = (await api.reader.get(f"/v1/tasks/{task_id}/why")).json()["explanation"]
    assert (why["standing"], why["match"]) == ("excluded", "exact")
    nearest = why["filters"][2]["nearest"]
    assert nearest["code"] == "build_differs"
    assert profile["digest"] in nearest["wanted"]
    moved = await tenure_json(api, "task", "move-profile", task_id)
    assert moved == {"task_id": task_id, "state": "open"}
    assert (await api.assigned(incarnation, task_id))["task_id"] == task_id
    timeline = (await api.reader.get(f"/v1/tasks/{task_id}")).json()["timeline"]
    assert "profile_moved" in [entry["reason"] for entry in timeline]
    refused = await api.operator.post(f"/v1/tasks/{task_id}/profile", {"digest": None})
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    missing = await api.operator.post(f"/v1/tasks/{task_id}/profile", {"digest": "ab" * 32})
    assert missing.status_code == 404


@pytest.mark.requirement("INC-06")
async def test_nodes_of_a_withdrawn_program_are_given_nothing(api: Fleet) -> None:
    program = {"name": "hasher", "version": "1", "digest": "ab" * 32}
    incarnation = await api.register(executable=program)
    withdrawn = await tenure_json(api, "executable", "withdraw", "ab" * 32)
    assert (withdrawn["state"], withdrawn["nodes"]) == ("withdrawn", 1)
    await api.register("node-2", executable=program)  # later ones are withdrawn too
    task_id = await api.submit()
    explained = (await api.reader.get(f"/v1/tasks/{task_id}/why")).json()["explanation"]
    assert explained["filters"][2]["codes"] == {"executable_withdrawn": 2}
    listed = await tenure_json(api, "executable", "list")
    assert [one["nodes"] for one in listed["executables"]] == [2]
    again = await api.operator.http.patch(
        f"/v1/executables/{'ab' * 32}", json={"state": "registered"}
    )
    assert again.status_code == 200
    drained = await api.executor.post("/v1/nodes/node-1/drain", {"incarnation": incarnation})
    assert drained.status_code == 200
    unknown = await api.operator.http.patch("/v1/executables/abc", json={"state": "withdrawn"})
    assert unknown.status_code == 404


@pytest.mark.requirement("SCHED-02")
async def test_the_backlog_says_of_each_kind_of_waiting_tasks_why(
    api: Fleet,
) -> None:
    await api.register(task_types=[{"name": "sha256"}, {"name": "far", "requirements": FAR}])
    drained = await api.executor.post(
        "/v1/nodes/node-1/drain", {"incarnation": await api.register("node-1")}
    )
    assert drained.status_code == 200
    await api.register("node-2", task_types=[{"name": "far", "requirements": FAR}])
    for _ in range(3):
        await api.submit(type="far")
    await api.submit()
    await api.submit(not_before="2100-01-01T00:00:00Z")
    found = await tenure_json(api, "why", "--backlog")
    assert (found["waiting"], found["not_before"]) == (4, 1)
    assert [(one["type"], one["tasks"]) for one in found["groups"]] == [("far", 3), ("sha256", 1)]
    codes = [
        {code for one in group["explanation"]["filters"] for code in one["codes"]}
        for group in found["groups"]
    ]
    assert codes == [{"node_location_not_stated"}, {"type_not_run"}]


FAR = {"locations": ["moon"]}


@pytest.mark.requirement("SCHED-02")
async def test_explaining_a_submission_changes_nothing(api: Fleet, database: FreshDatabase) -> None:
    await api.register(slots=3, resources={"cpu": "2"})
    async with session(database.owner_url) as owner:

        async def everything() -> list[Any]:
            return [
                await owner.fetch(f"select t::text from tenure.{table} t order by 1")
                for table in ("tasks", "commands", "log", "incarnations", "attempts", "accounts")
            ]

        before = await everything()
        fits = await tenure_json(api, "submit", "sha256", "{}", "--explain", "--cpu", "1500m")
        large = await tenure_json(api, "submit", "sha256", "{}", "--explain", "--cpu", "3")
        later = await api.application.post(
            "/v1/tasks/explain", {"type": "sha256", "not_before": "2100-01-01T00:00:00Z"}
        )
        unknown = await api.application.post("/v1/tasks/explain", {"type": "nobody"})
        assert await everything() == before
    assert (fits["explanation"]["standing"], fits["position"]) == ("queued", 1)
    assert large["explanation"]["standing"] == "excluded"
    assert large["explanation"]["filters"][3]["codes"] == {"not_enough_cpu": 1}
    assert later.json()["explanation"]["standing"] == "not_before"
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_task_type")
