"""What an executor gets by asking for what is not its own: nothing (LEASE-02, OPS-07)."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support.coordinator import Fleet, fleet, report_of
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as made:
        yield made


async def state_of(api: Fleet, task_id: str) -> Any:
    view = (await api.application.get(f"/v1/tasks/{task_id}")).json()
    (attempt,) = view["attempt_list"]
    return view["state"], attempt["state"], attempt["expires_at"], view["receipts"]


@pytest.mark.requirement("LEASE-02")
@pytest.mark.requirement("OPS-07")
async def test_another_node_gets_nothing_with_an_attempt_that_it_has_heard_of(api: Fleet) -> None:
    """It knows everything of the attempt, its token included."""
    owner = await api.register("node-1")
    task_id = await api.submit(input={"secret": 1})
    assignment = await api.assigned(owner, task_id)
    hostile = await api.register("node-2", ("other",))
    stolen = await api.report(hostile, assignment, "take", "node-2")
    assert (stolen.outcome, stolen.input) == ("refused", None)
    assert (await api.report(owner, assignment, "take")).outcome == "applied"
    before = await state_of(api, task_id)
    for kind, values in (
        ("deliver", {"output": "forged"}),
        ("fail", {"reason": "forged", "message": ""}),
        ("cancelled", {}),
        ("reject", {"reason": "forged"}),
    ):
        reply = await api.report(hostile, assignment, kind, "node-2", **values)
        assert reply.outcome != "applied", kind
    lease = {name: assignment[name] for name in ("task_id", "attempt_id", "fencing_token")}
    renewal = {"incarnation": hostile, "leases": [lease]}
    answer = (await api.executor.post("/v1/nodes/node-2/renewals", renewal)).json()
    assert [each["outcome"] for each in answer["replies"]] == ["refused"]
    assert (await state_of(api, task_id))[:3] == before[:3]
    assert (await api.report(owner, assignment, "deliver", output="right")).outcome == "applied"
    result = (await api.application.get(f"/v1/tasks/{task_id}/result")).json()
    assert result["output"] == "right"


@pytest.mark.requirement("LEASE-02")
async def test_an_incarnation_speaks_for_its_own_node_only(api: Fleet) -> None:
    owner = await api.register("node-1")
    task_id = await api.submit()
    assignment = await api.assigned(owner, task_id)
    await api.register("node-2", ("other",))
    reply = await api.executor.post(
        "/v1/nodes/node-2/reports",
        {"incarnation": owner, "reports": [report_of(assignment, "take")]},
    )
    assert reply.status_code != 200 or reply.json()["replies"][0]["outcome"] == "refused"
    assert (await state_of(api, task_id))[:2] == ("open", "submitted")


@pytest.mark.requirement("LATE-04")
async def test_a_report_that_is_played_again_says_what_it_said_and_nothing_else(
    api: Fleet,
) -> None:
    owner = await api.register("node-1")
    task_id = await api.submit()
    assignment = await api.assigned(owner, task_id)
    await api.report(owner, assignment, "take")
    report_id = str(uuid4())
    first = await api.report(owner, assignment, "deliver", report_id=report_id, output=1)
    again = await api.report(owner, assignment, "deliver", report_id=report_id, output=1)
    other = await api.report(owner, assignment, "deliver", report_id=report_id, output=2)
    assert (first.outcome, again.outcome) == ("applied", "applied")
    assert again.receipt_id == first.receipt_id
    assert other.outcome == "refused"
    hostile = await api.register("node-2", ("other",))
    stolen = await api.report(
        hostile, assignment, "deliver", "node-2", report_id=report_id, output=1
    )
    assert stolen.outcome == "refused"
    (receipt,) = (await state_of(api, task_id))[3]
    assert receipt["receipt_id"] == first.receipt_id


@pytest.mark.requirement("LEASE-02")
async def test_a_token_that_nobody_can_have_granted_is_refused_and_stops_nobody(
    api: Fleet,
) -> None:
    """None of them can have been granted, so none proves that history was lost."""
    owner = await api.register("node-1")
    task_id = await api.submit()
    assignment = await api.assigned(owner, task_id)
    for token in (0, -1, 2**32, 2**53, 2**63, 2**64, 1.5, "1", None):
        forged = report_of(assignment, "take") | {"fencing_token": token}
        reply = await api.executor.post(
            "/v1/nodes/node-1/reports", {"incarnation": owner, "reports": [forged]}
        )
        refused = reply.status_code == 422 or reply.json()["replies"][0]["outcome"] == "refused"
        assert refused, token
    assert (await state_of(api, task_id))[:2] == ("open", "submitted")
    assert (await api.report(owner, assignment, "take")).outcome == "applied"
