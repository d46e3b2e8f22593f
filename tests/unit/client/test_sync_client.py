"""The client of threads: the same rules as the asynchronous one, without an event loop."""

import inspect
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from tenure.client import (
    AsyncClient,
    AsyncTaskHandle,
    BatchRefused,
    Client,
    NotDelivered,
    Refused,
    ResultTimeout,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskHandle,
    TaskHeld,
    TaskType,
    Unreachable,
)
from tenure.client.http import Http
from tests.support.coordinator_stand_in import coordinator_stand_in


class Order(BaseModel):
    customer: str


class Bill(BaseModel):
    total: int


INVOICE = TaskType("invoice", input=Order, output=Bill)
OPEN = {
    "task_id": "t",
    "state": "open",
    "phase": "waiting",
    "reason": None,
    "message": None,
    "attempt_id": None,
    "output": None,
}

Script = Callable[[httpx2.Request], httpx2.Response]


def client_of(script: Script, *, retry_seconds: float = 60.0) -> Client:
    client = Client("http://127.0.0.1:1", "a-token", retry_seconds=retry_seconds)
    client._http = Http(
        "http://127.0.0.1:1",
        "a-token",
        retry_seconds=retry_seconds,
        transport=httpx2.MockTransport(script),
    )
    return client


def submitted(task_id: str) -> dict[str, Any]:
    return {"task_id": task_id, "created_at": "2026-11-29T12:00:00Z", "replayed": False}


def ended(state: str, **rest: Any) -> dict[str, Any]:
    return OPEN | {"state": state, "phase": state} | rest


def shapes(kind: type) -> dict[str, str]:
    """Each public method with its parameters."""
    return {
        name: str(inspect.signature(method).replace(return_annotation=inspect.Signature.empty))
        for name, method in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


def test_both_clients_and_their_handles_offer_the_same_methods() -> None:
    assert shapes(Client) == shapes(AsyncClient)
    assert shapes(TaskHandle) == shapes(AsyncTaskHandle)
    assert {"submit", "submit_many", "tasks", "close"} <= set(shapes(Client))
    assert {"result", "status", "cancel", "view"} <= set(shapes(TaskHandle))


def test_a_lost_answer_is_asked_for_again_with_the_same_key_and_bytes() -> None:
    seen: list[tuple[str, bytes]] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.headers["Idempotency-Key"], request.content))
        if len(seen) < 3:
            raise httpx2.RemoteProtocolError("the server hung up")
        return httpx2.Response(201, json=submitted("t"))

    with client_of(script) as client:
        assert client.submit(INVOICE, Order(customer="A")).task_id == "t"
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert seen[0][0]


def test_many_tasks_travel_in_chunks_and_keep_their_order() -> None:
    sizes: list[int] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        tasks = json.loads(request.content)["tasks"]
        sizes.append(len(tasks))
        each = [{"submitted": submitted(task["input"]["customer"])} for task in tasks]
        return httpx2.Response(200, json={"results": each})

    with client_of(script) as client:
        handles = client.submit_many(INVOICE, (Order(customer=str(n)) for n in range(1001)))
    assert sizes == [1000, 1]
    assert [handle.task_id for handle in handles] == [str(n) for n in range(1001)]


def test_a_partly_refused_batch_names_both_sides() -> None:
    no = {"type": "t", "title": "t", "status": 422, "code": "unknown_task_type", "detail": "no."}

    answer = {"results": [{"submitted": submitted("a")}, {"problem": no}]}
    with (
        client_of(lambda request: httpx2.Response(200, json=answer)) as client,
        pytest.raises(BatchRefused) as caught,
    ):
        client.submit_many(INVOICE, [Order(customer="A"), Order(customer="B")])
    made, refused = caught.value.outcomes
    assert isinstance(made, TaskHandle)
    assert isinstance(refused, Refused)
    assert (made.task_id, refused.code) == ("a", "unknown_task_type")


def test_a_result_is_waited_for_and_is_the_declared_model() -> None:
    answers = [OPEN, ended("delivered", output={"total": 7})]
    waits: list[str] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        waits.append(request.url.params["wait"])
        return httpx2.Response(200, json=answers[len(waits) - 1])

    with client_of(script) as client:
        assert client.task("t", INVOICE).result() == Bill(total=7)
    assert waits == ["30.000"] * 2


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("failed", TaskFailed),
        ("cancelled", TaskCancelled),
        ("expired", TaskExpired),
        ("held", TaskHeld),
    ],
)
def test_each_end_without_output_is_an_error_with_reason_and_attempt(
    state: str, error: type[NotDelivered]
) -> None:
    answer = ended(state, reason="handler_failed", message="boom", attempt_id="a")
    with (
        client_of(lambda request: httpx2.Response(200, json=answer)) as client,
        pytest.raises(error) as caught,
    ):
        client.task("t", INVOICE).result(timeout=5)
    assert (caught.value.reason, caught.value.attempt_id) == ("handler_failed", "a")


def test_a_task_that_is_not_ready_in_time_is_a_timeout_and_its_status_is_no_error() -> None:
    with client_of(lambda request: httpx2.Response(200, json=OPEN)) as client:
        handle = client.task("t", INVOICE)
        with pytest.raises(ResultTimeout):
            handle.result(timeout=0)
        assert (handle.status().state, handle.status().phase) == ("open", "waiting")


def test_the_timeout_of_a_result_bounds_the_tries_whatever_the_client_is_set_to() -> None:
    tries = []

    def script(request: httpx2.Request) -> httpx2.Response:
        tries.append(request)
        raise httpx2.ConnectError("connection refused")

    with client_of(script, retry_seconds=3600.0) as client, pytest.raises(Unreachable):
        client.task("t", INVOICE).result(timeout=0)
    assert len(tries) == 1


def test_threads_share_one_client_and_keep_its_connections() -> None:
    together = threading.Barrier(4)

    def answer(method: str, path: str, body: bytes) -> Response:
        return JSONResponse(ended("delivered", output={"total": 1}))

    with coordinator_stand_in() as server:
        server.answer = answer
        with Client(server.url, "a-token") as client, ThreadPoolExecutor(4) as pool:

            def ask(number: int) -> Bill:
                together.wait()
                return client.task(str(number), INVOICE).result(timeout=30)

            assert list(pool.map(ask, range(12))) == [Bill(total=1)] * 12
    assert len(server.requests) == 12
    assert 1 <= len(set(server.callers)) <= 4
