"""Submissions and results as an application sees them, against a scripted server."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import httpx2
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tenure.client import (
    AsyncClient,
    AsyncTaskHandle,
    BatchRefused,
    NotDelivered,
    Refused,
    ResultTimeout,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskHeld,
    TaskType,
    UnreadableReply,
    enqueue,
)
from tenure.client.http import AsyncHttp
from tenure.contract.errors import InvalidPayload
from tenure.contract.replay import ReplayRequest


class Order(BaseModel):
    model_config = ConfigDict(populate_by_name=True, extra="forbid")

    customer: str = Field(alias="customerName")
    amount: float = 1.0


class Bill(BaseModel):
    total: int


INVOICE = TaskType("invoice", input=Order, output=Bill)

Script = Callable[[httpx2.Request], httpx2.Response]


def client_of(script: Script, *, retry_seconds: float = 60.0) -> AsyncClient:
    client = AsyncClient("http://127.0.0.1:1", "a-token", retry_seconds=retry_seconds)
    client._http = AsyncHttp(
        "http://127.0.0.1:1",
        "a-token",
        retry_seconds=retry_seconds,
        transport=httpx2.MockTransport(script),
    )
    return client


def submitted(task_id: str, *, replayed: bool = False) -> dict[str, Any]:
    return {"task_id": task_id, "created_at": "2026-11-29T12:00:00Z", "replayed": replayed}


def refusal(code: str, status: int = 422) -> dict[str, Any]:
    return {"type": "t", "title": code, "status": status, "code": code, "detail": f"{code}."}


def result(state: str, **rest: Any) -> dict[str, Any]:
    base = {
        "task_id": "t",
        "state": state,
        "phase": "waiting" if state == "open" else state,
        "reason": None,
        "message": None,
        "attempt_id": None,
        "output": None,
    }
    return base | rest


async def test_a_submission_has_its_key_as_a_header_and_its_input_by_alias() -> None:
    seen: list[httpx2.Request] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(201, json=submitted("t"))

    async with client_of(script) as client:
        handle = await client.submit(INVOICE, Order(customer="A"), idempotency_key="k", priority=3)
    assert handle.task_id == "t"
    assert seen[0].headers["Idempotency-Key"] == "k"
    assert seen[0].headers["Authorization"] == "Bearer a-token"
    assert json.loads(seen[0].content) == {
        "type": "invoice",
        "input": {"customerName": "A", "amount": 1.0},
        "priority": 3,
    }


async def test_a_submission_without_a_key_gets_one_of_its_own() -> None:
    keys: list[str] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        keys.append(request.headers["Idempotency-Key"])
        return httpx2.Response(201, json=submitted("t"))

    async with client_of(script) as client:
        await client.submit(INVOICE, Order(customer="A"))
        await client.submit(INVOICE, Order(customer="A"))
    assert len(set(keys)) == 2
    assert all(keys)


@pytest.mark.requirement("REPLAY-01")
async def test_a_replay_gets_its_id_once_so_that_trying_again_begins_nothing_more() -> None:
    ids: list[str] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        ids.append(json.loads(request.content)["replay_id"])
        if len(ids) == 1:
            raise httpx2.ReadTimeout("the answer was lost")
        preview = {
            "from_position": 1, "to_position": 0, "rows": 0, "exact": True, "sample": [],
            "log_from_position": None, "log_recorded_from": None, "oldest_recorded_at": None,
            "remembered_since": None,
        }  # fmt: skip
        return httpx2.Response(200, json={"preview": preview, "replay": None})

    request = ReplayRequest(queue="q", reason="why")
    async with client_of(script) as client:
        await client.replay(request)
        await client.replay(request)
    assert len(ids) == 3
    assert ids[0] == ids[1] != ids[2]


async def test_what_the_server_would_refuse_is_refused_here_by_the_same_code() -> None:
    async with client_of(lambda request: httpx2.Response(500)) as client:
        with pytest.raises(Refused, match="priority") as caught:
            await client.submit(INVOICE, Order(customer="A"), priority=101)
        assert caught.value.code == "invalid_field"
        with pytest.raises(Refused, match="deadline"):
            await client.submit(
                INVOICE,
                Order(customer="A"),
                deadline=datetime(2026, 1, 1),  # noqa: DTZ001 - that is the fault
            )
        with pytest.raises(InvalidPayload) as refused:
            await client.submit(INVOICE, Order(customer="A", amount=float("nan")))
        assert refused.value.code == "malformed_json"
        with pytest.raises(InvalidPayload) as refused:
            await client.submit(INVOICE, Order(customer="a\x00b"))
        assert refused.value.code == "invalid_character"


async def test_an_input_that_a_type_checker_would_have_refused_is_not_sent() -> None:
    untyped: Any = INVOICE
    async with client_of(lambda request: httpx2.Response(500)) as client:
        with pytest.raises(
            TypeError, match="'invoice' has to be an instance of Order, not of dict"
        ):
            await client.submit(untyped, {"customerName": "A"})
        with pytest.raises(TypeError, match="'invoice' is no TaskType; submit_json"):
            await client.submit("invoice", Order(customer="A"))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not of Bill"):
            await client.submit_many(untyped, [Order(customer="A"), Bill(total=1)])
        with pytest.raises(TypeError, match="not of dict"):
            await enqueue(cast(Any, None), untyped, {"customerName": "A"})


async def test_many_tasks_travel_in_chunks_and_keep_their_order() -> None:
    sizes: list[int] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        tasks = json.loads(request.content)["tasks"]
        sizes.append(len(tasks))
        return httpx2.Response(
            200, json={"results": [{"submitted": submitted(t["idempotency_key"])} for t in tasks]}
        )

    async with client_of(script) as client:
        handles = await client.submit_many(
            INVOICE,
            (Order(customer=str(n)) for n in range(2500)),
            idempotency_keys=(f"key-{n}" for n in range(2500)),
        )
    assert sizes == [1000, 1000, 500]
    assert [handle.task_id for handle in handles] == [f"key-{n}" for n in range(2500)]


async def test_a_chunk_is_bounded_in_bytes_too() -> None:
    sizes: list[int] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        sizes.append(len(request.content))
        tasks = json.loads(request.content)["tasks"]
        return httpx2.Response(
            200, json={"results": [{"submitted": submitted("t")} for _ in tasks]}
        )

    async with client_of(script) as client:
        await client.submit_many(INVOICE, [Order(customer="x" * 200_000)] * 12)
    assert len(sizes) == 3
    assert max(sizes) < 1024 * 1024 + 300_000


async def test_a_batch_with_an_undecided_task_is_sent_again_with_the_same_keys() -> None:
    bodies: list[bytes] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.content)
        second: dict[str, Any] = (
            {"problem": refusal("unavailable", 503)}
            if len(bodies) == 1
            else {"submitted": submitted("b")}
        )
        first = {"submitted": submitted("a", replayed=len(bodies) > 1)}
        return httpx2.Response(200, json={"results": [first, second]})

    async with client_of(script) as client:
        handles = await client.submit_many(INVOICE, [Order(customer="A"), Order(customer="B")])
    assert [handle.task_id for handle in handles] == ["a", "b"]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]


async def test_a_partly_refused_batch_names_both_sides() -> None:
    def script(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200,
            json={
                "results": [
                    {"submitted": submitted("a")},
                    {"problem": refusal("unknown_task_type")},
                ]
            },
        )

    async with client_of(script) as client:
        with pytest.raises(BatchRefused) as caught:
            await client.submit_many(INVOICE, [Order(customer="A"), Order(customer="B")])
    made, refused = caught.value.outcomes
    assert isinstance(made, AsyncTaskHandle)
    assert made.task_id == "a"
    assert isinstance(refused, Refused)
    assert refused.code == caught.value.code == "unknown_task_type"


async def test_too_few_keys_are_a_fault_of_the_caller() -> None:
    async with client_of(lambda request: httpx2.Response(500)) as client:
        with pytest.raises(ValueError, match="fewer"):
            await client.submit_many(INVOICE, [Order(customer="A")], idempotency_keys=[])


async def test_a_result_is_the_declared_model() -> None:
    def script(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=result("delivered", output={"total": 7}))

    async with client_of(script) as client:
        assert await client.task("t", INVOICE).result(timeout=5) == Bill(total=7)
        assert await client.task("t").result(timeout=5) == {"total": 7}


async def test_an_output_of_another_form_is_unreadable() -> None:
    def script(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=result("delivered", output={"sum": 7}))

    async with client_of(script) as client:
        with pytest.raises(UnreadableReply, match="no Bill"):
            await client.task("t", INVOICE).result(timeout=5)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("failed", TaskFailed),
        ("cancelled", TaskCancelled),
        ("expired", TaskExpired),
        ("held", TaskHeld),
    ],
)
async def test_each_end_without_output_is_an_error_of_its_own(
    state: str, error: type[Exception]
) -> None:
    answer = result(state, reason="handler_failed", message="boom", attempt_id="a")

    def script(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=answer)

    async with client_of(script) as client:
        with pytest.raises(error, match=r"\(handler_failed\): boom") as caught:
            await client.task("t", INVOICE).result(timeout=5)
    assert isinstance(caught.value, NotDelivered)
    assert (caught.value.reason, caught.value.attempt_id) == ("handler_failed", "a")


async def test_waiting_goes_on_until_the_task_has_ended() -> None:
    answers = [result("open"), result("open"), result("delivered", output={"total": 1})]
    waits: list[float] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        waits.append(float(request.url.params["wait"]))
        return httpx2.Response(200, json=answers[len(waits) - 1])

    async with client_of(script) as client:
        assert await client.task("t", INVOICE).result() == Bill(total=1)
    assert waits == [30.0] * 3


async def test_a_task_that_is_not_ready_in_time_is_a_timeout() -> None:
    async with client_of(lambda request: httpx2.Response(200, json=result("open"))) as client:
        with pytest.raises(ResultTimeout):
            await client.task("t", INVOICE).result(timeout=0)


async def test_an_id_cannot_leave_its_place_in_the_path() -> None:
    paths: list[bytes] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        paths.append(request.url.raw_path)
        return httpx2.Response(404, json=refusal("not_found", 404))

    async with client_of(script) as client:
        with pytest.raises(Refused):
            await client.task("../nodes?x=1").view()
    assert paths == [b"/v1/tasks/..%2Fnodes%3Fx%3D1"]
