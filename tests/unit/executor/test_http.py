"""Every failure of a request is one of three: unknown, refused, or the end of the incarnation."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.responses import JSONResponse, Response

from tenure.contract.codes import Code
from tenure.contract.ids import IncarnationId, NodeId, TaskId
from tenure.contract.reports import DrainRequest, Renewals, Reports, Take
from tenure.executor.errors import CoordinatorRefused, CoordinatorUnavailable, NodeGone
from tenure.executor.http import Coordinator, RenewingCoordinator
from tests.support.attempts import assignment, new_id
from tests.support.coordinator_stand_in import StandIn, coordinator_stand_in

NODE = NodeId("n.1")


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with coordinator_stand_in() as made:
        yield made


@pytest.fixture
async def coordinator(stand_in: StandIn) -> AsyncIterator[Coordinator]:
    made = Coordinator(stand_in.url, lambda: "the-token")
    yield made
    await made.close()


def problem(status: int, code: str, **headers: str) -> Response:
    content = {"type": "about:blank", "title": "t", "status": status, "code": code, "detail": "d"}
    return JSONResponse(
        content, status, headers=headers or None, media_type="application/problem+json"
    )


async def test_a_token_that_was_replaced_is_shown_from_the_next_request_on(
    stand_in: StandIn,
) -> None:
    stand_in.answer = lambda *_: JSONResponse({})
    tokens = iter(["first", "second"])
    coordinator = Coordinator(stand_in.url, lambda: next(tokens))
    for _ in range(2):
        await coordinator.drain(NODE, DrainRequest(incarnation=new_id()))
    await coordinator.close()
    assert stand_in.tokens == ["Bearer first", "Bearer second"]


async def test_a_request_carries_token_and_body(
    stand_in: StandIn, coordinator: Coordinator
) -> None:
    given = assignment()
    report = Take(
        report_id=new_id(),
        task_id=given.task_id,
        attempt_id=given.attempt_id,
        fencing_token=given.fencing_token,
    )
    stand_in.answer = lambda method, path, body: JSONResponse(
        {"replies": [{"report_id": report.report_id, "outcome": "applied"}]}
    )
    answer = await coordinator.report(NODE, Reports(incarnation=new_id(), reports=(report,)))
    assert answer.replies[0].outcome == "applied"
    method, path, body = stand_in.requests[0]
    assert (method, path) == ("POST", "/v1/nodes/n.1/reports")
    assert json.loads(body)["reports"][0]["kind"] == "take"
    assert stand_in.tokens == ["Bearer the-token"]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_an_answer_that_may_change_leaves_the_outcome_unknown(
    status: int, stand_in: StandIn, coordinator: Coordinator
) -> None:
    stand_in.answer = lambda *_: problem(status, Code.OVERLOADED, **{"Retry-After": "2"})
    with pytest.raises(CoordinatorUnavailable) as caught:
        await coordinator.drain(NODE, DrainRequest(incarnation=new_id()))
    assert caught.value.retry_after_seconds == 2.0
    assert caught.value.code == Code.OVERLOADED


async def test_an_answer_from_somebody_else_leaves_the_outcome_unknown(
    stand_in: StandIn, coordinator: Coordinator
) -> None:
    stand_in.answer = lambda *_: Response("<html>hello</html>", media_type="text/html")
    with pytest.raises(CoordinatorUnavailable, match="no Assignments"):
        await coordinator.assignments(NODE, IncarnationId(new_id()))
    stand_in.answer = lambda *_: Response("<html>no</html>", 404)
    with pytest.raises(CoordinatorRefused) as caught:
        await coordinator.assignments(NODE, IncarnationId(new_id()))
    assert caught.value.code == "http_404"


async def test_a_refusal_has_its_code(stand_in: StandIn, coordinator: Coordinator) -> None:
    stand_in.answer = lambda *_: problem(403, Code.FORBIDDEN_ROLE)
    with pytest.raises(CoordinatorRefused) as caught:
        await coordinator.drain(NODE, DrainRequest(incarnation=new_id()))
    assert (caught.value.status, caught.value.code) == (403, Code.FORBIDDEN_ROLE)
    stand_in.answer = lambda *_: problem(409, Code.NODE_GONE)
    with pytest.raises(NodeGone):
        await coordinator.drain(NODE, DrainRequest(incarnation=new_id()))


@pytest.mark.parametrize("seen", [-1, 7, True, 2**53, 2**200])
async def test_a_number_that_is_no_token_is_no_evidence(
    stand_in: StandIn, coordinator: Coordinator, seen: int
) -> None:
    await coordinator.present_token(TaskId(new_id()), seen)
    assert stand_in.requests == []


async def test_a_coordinator_that_is_away_leaves_the_outcome_unknown(stand_in: StandIn) -> None:
    coordinator = Coordinator("http://127.0.0.1:1", lambda: "t")
    with pytest.raises(CoordinatorUnavailable):
        await coordinator.drain(NODE, DrainRequest(incarnation=new_id()))
    await coordinator.close()
    renewing = RenewingCoordinator("http://127.0.0.1:1", lambda: "t", timeout_seconds=1)
    with pytest.raises(CoordinatorUnavailable):
        renewing.renew(NODE, Renewals(incarnation=new_id()))
    renewing.close()


def test_renewals_go_by_a_client_of_their_own(stand_in: StandIn) -> None:
    stand_in.answer = lambda *_: JSONResponse({"node_state": "active", "replies": []})
    renewing = RenewingCoordinator(stand_in.url, lambda: "the-token", timeout_seconds=60)
    answer = renewing.renew(NODE, Renewals(incarnation=new_id()))
    assert answer.node_state == "active"
    assert stand_in.requests[0][1] == "/v1/nodes/n.1/renewals"
    renewing.close()
