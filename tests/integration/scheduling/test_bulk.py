"""One word about many tasks over HTTP (FLOW-01)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker, node_silence_seconds=3600) as found:
        await found.register(types=("kept", "wanted"))
        pause = {"scope": "tenant", "name": "default", "reason": "nothing begins here"}
        assert (await found.operator.post("/v1/pauses", pause)).status_code == 200
        yield found


async def said(api: Fleet, verb: str, **more: Any) -> Any:
    reply = await api.operator.post("/v1/tasks/bulk", {"verb": verb} | more)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def state(api: Fleet, task_id: str) -> str:
    return str((await api.reader.get(f"/v1/tasks/{task_id}")).json()["state"])


@pytest.mark.requirement("FLOW-01")
async def test_a_word_is_said_page_by_page_and_later_tasks_are_left_alone(api: Fleet) -> None:
    wanted = [await api.submit(type="wanted") for _ in range(5)]
    await api.submit(type="kept")
    counted = await said(api, "hold", filter={"type": "wanted"}, dry_run=True)
    assert (counted["matched"], counted["done"], counted["next"]) == (5, 0, None)
    assert {await state(api, one) for one in wanted} == {"open"}
    later = await api.submit(type="wanted")
    bound = {"type": "wanted", "created_before": counted["clock"]}
    first = await said(api, "hold", filter=bound, reason="why", limit=3)
    assert (first["matched"], first["done"]) == (3, 3)
    assert [await state(api, one) for one in wanted] == ["held"] * 3 + ["open"] * 2
    second = await said(api, "hold", filter=bound, reason="why", limit=3, after=first["next"])
    assert (second["matched"], second["done"], second["next"]) == (2, 2, None)
    assert await state(api, later) == "open"
    released = await said(api, "release", filter={"type": "wanted"})
    assert (released["matched"], released["done"]) == (5, 5)
    moved = await said(api, "move_profile", filter={"type": "wanted"})
    assert (moved["matched"], moved["done"], moved["refused"]) == (6, 6, {})


@pytest.mark.requirement("FLOW-01")
async def test_what_is_refused_is_counted_by_its_code(api: Fleet) -> None:
    for _ in range(3):
        await api.submit(type="wanted")
    digest = "ab" * 32
    answer = await said(api, "move_profile", filter={"type": "wanted"}, digest=digest)
    assert (answer["matched"], answer["done"], answer["refused"]) == (3, 0, {"not_found": 3})
    assert (await said(api, "cancel"))["done"] == 3
    assert (await said(api, "cancel"))["matched"] == 0
    again = await said(api, "retry")
    assert again["done"] == 3
    assert (await said(api, "retry"))["done"] == 3
    assert (await said(api, "hold", dry_run=True))["matched"] == 3
    assert (await said(api, "erase", reason="asked for"))["done"] == 3


@pytest.mark.requirement("FLOW-01")
async def test_a_request_looks_at_some_tasks_only_and_says_where_to_read_on(
    api: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.coordinator.store.reads.MAX_SCANNED_TASKS", 2)
    for name in ("kept", "kept", "kept", "wanted"):
        await api.submit(type=name)
    only = {"filter": {"type": "wanted"}}
    first = await said(api, "cancel", **only)
    assert (first["matched"], first["next"] is None) == (0, False)
    second = await said(api, "cancel", **only, after=first["next"])
    assert second["done"] == 1
    third = await said(api, "cancel", **only, after=second["next"])
    assert (third["matched"], third["next"]) == (0, None)


@pytest.mark.requirement("FLOW-01")
async def test_bad_requests_and_other_roles_change_nothing(api: Fleet) -> None:
    task_id = await api.submit(type="wanted")
    for body, wrong in (
        ({"verb": "forget"}, "verb"),
        ({"verb": "hold"}, "needs a reason"),
        ({"verb": "cancel", "reason": "why"}, "takes no reason"),
        ({"verb": "cancel", "digest": "ab" * 32}, "takes no digest"),
        ({"verb": "cancel", "limit": 501}, "limit"),
        ({"verb": "cancel", "after": "there"}, "no `next`"),
        ({"verb": "cancel", "filter": {"state": "lost"}}, "state"),
        ({"verb": "cancel", "filter": {"colour": "red"}}, "colour"),
    ):
        refused = await api.operator.post("/v1/tasks/bulk", body)
        assert refused.status_code == 422, refused.text
        assert wrong in refused.text
    for caller in (api.application, api.executor, api.reader, api.stranger):
        assert (await caller.post("/v1/tasks/bulk", {"verb": "cancel"})).status_code == 403
    assert await state(api, task_id) == "open"
