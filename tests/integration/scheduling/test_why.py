"""``why`` and the facts that operators state, over HTTP and on the command line."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenure.cli.exits import Exit
from tests.support.commands import tenure, tenure_json
from tests.support.coordinator import Fleet, fleet, until
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    # Nodes of these tests send no heartbeats, and commands take their time.
    async with fleet(database, broker, node_silence_seconds=3600, lease_seconds=3600) as found:
        yield found


@pytest.mark.requirement("SCHED-02")
async def test_why_names_each_filter_its_count_and_the_nearest_miss(api: Fleet) -> None:
    wants = {"requirements": {"locations": ["eu"], "networks": ["db"]}, "name": "sha256"}
    await api.register("near", task_types=[wants], facts={"location": "eu"})
    await api.register("far", task_types=[wants], facts={"location": "us", "networks": ["db"]})
    await api.register("other", task_types=[{"name": "else"}], facts={"location": "us"})
    task_id = await api.submit()
    found = (await api.reader.get(f"/v1/tasks/{task_id}/why")).json()
    assert (found["state"], found["phase"], found["position"]) == ("open", "waiting", 1)
    explained = found["explanation"]
    assert (explained["standing"], explained["nodes"], explained["eligible"]) == ("excluded", 3, 0)
    filters = {one["filter"]: one for one in explained["filters"]}
    assert {name: one["removed"] for name, one in filters.items()} == {
        "tenant_authorization": 0,
        "data_location": 2,
        "workload_compatibility": 1,
        "resources": 0,
        "network_access": 2,
        "budget": 0,
        "deadline": 0,
    }
    assert filters["data_location"]["nearest"]["node_id"] == "far"
    nearest = filters["network_access"]["nearest"]
    assert (nearest["node_id"], nearest["code"]) == ("near", "node_networks_not_stated")
    assert nearest["other_filters"] == []
    code, out, _ = await tenure(api, "why", task_id)
    assert code == Exit.DONE
    assert "each of 3 nodes is excluded" in out
    assert "node_networks_not_stated" in out

    stated = await tenure_json(api, "node", "set", "near", "--networks", "db,internet")
    assert stated["stated"]["networks"] == ["db", "internet"]
    assignment = await api.assigned(found_incarnation(stated), task_id, "near")
    assert assignment["task_id"] == task_id
    after = await tenure_json(api, "why", task_id)
    assert (after["explanation"]["standing"], after["node_id"]) == ("with_a_node", "near")


def found_incarnation(detail: Any) -> str:
    return str(detail["current"]["incarnation"])


async def test_a_task_that_can_be_taken_is_told_its_turn(api: Fleet) -> None:
    await api.assigned(await api.register(slots=1), await api.submit())
    second, third = await api.submit(), await api.submit(priority=1)
    found = {
        task: (await api.reader.get(f"/v1/tasks/{task}/why")).json() for task in (second, third)
    }
    assert {task: why["position"] for task, why in found.items()} == {third: 1, second: 2}
    assert found[second]["explanation"]["filters"][3]["codes"] == {"no_free_slot": 1}


@pytest.mark.requirement("SCHED-01")
async def test_a_tenant_of_which_nothing_is_stated_gets_nothing_until_somebody_states_it(
    api: Fleet,
) -> None:
    theirs = api.callers["theirs"]
    registered = await theirs.post(
        "/v1/nodes", {"node_id": "n", "incarnation": NODE, "protocol_version": 1,
                      "software": "tests", "slots": 1, "task_types": [{"name": "sha256"}]},
    )  # fmt: skip
    assert registered.status_code == 200, registered.text
    submitted = await api.stranger.post("/v1/tasks", {"type": "sha256"})
    task_id = submitted.json()["task_id"]
    why = (await api.stranger.get(f"/v1/tasks/{task_id}/why")).json()
    codes = {code for one in why["explanation"]["filters"] for code in one["codes"]}
    assert codes == {
        "tenant_unknown", "tenant_locations_not_stated", "tenant_networks_not_stated",
        "budget_not_stated",
    }  # fmt: skip
    stated = await tenure_json(
        api, "tenant", "set", "other", "--pools", "any", "--locations", "any", "--networks", "any",
        "--budget", "100000", "--currency", "EUR", "--weight", "3",
    )  # fmt: skip
    assert (stated["budget_minor"], stated["weight"], stated["version"]) == (100000, 3, 2)
    assert [one["tenant"] for one in (await tenure_json(api, "tenant", "list"))["tenants"]] == [
        "default",
        "other",
    ]

    async def standing() -> bool:
        again = (await api.stranger.get(f"/v1/tasks/{task_id}/why")).json()
        return bool(again["explanation"]["standing"] == "with_a_node")

    await until(standing)
    suspended = await tenure_json(api, "tenant", "set", "other", "--state", "suspended")
    assert (suspended["state"], suspended["budget_minor"]) == ("suspended", 100000)


NODE = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"


@pytest.mark.requirement("OPS-05")
async def test_facts_are_the_operators_and_another_tenants_are_not_seen(api: Fleet) -> None:
    for caller in (api.application, api.executor, api.reader, api.stranger):
        refused = await caller.http.patch("/v1/tenants/default", json={"weight": 2})
        assert refused.status_code == 403
        refused = await caller.http.patch("/v1/nodes/node-1/facts", json={"pool": "a"})
        assert refused.status_code == 403
    task_id = (await api.register(), await api.submit())[1]
    assert (await api.stranger.get(f"/v1/tasks/{task_id}/why")).status_code == 404
    assert (await api.stranger.get("/v1/nodes/node-1")).status_code == 404
    assert (await api.reader.get("/v1/tenants/nobody")).status_code == 404


@pytest.mark.parametrize(
    "change",
    [
        {"budget_minor": 5},
        {"budget_minor": 5, "currency": "EUR", "budget_unlimited": True},
        {"budget_minor": -1, "currency": "EUR"},
        {"currency": None},
        {"currency": "euro"},
        {"weight": 0},
        {"state": None},
        {"state": "odd"},
        {"node_pools": ["a b"]},
        {"unknown": 1},
    ],
)
async def test_facts_that_make_no_sense_change_nothing(api: Fleet, change: dict[str, Any]) -> None:
    before = (await api.operator.get("/v1/tenants/default")).json()
    refused = await api.operator.http.patch("/v1/tenants/default", json=change)
    assert refused.status_code == 422, refused.text
    assert (await api.operator.get("/v1/tenants/default")).json() == before
