"""What the client does with answers: repeats, refuses, reads."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tenure.client.calls import Call
from tenure.client.errors import Refused, Unreachable, UnreadableReply
from tenure.client.http import AsyncHttp, Http, where_to_look
from tenure.client.settings import connection_from_environment
from tenure.contract.tasks import Submitted

Answer = httpx2.Response | Exception


class Server:
    """Answers in order, the last one for ever, and keeps what it was asked."""

    def __init__(self, *answers: Callable[[], Answer]) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def http(self, *, retry_seconds: float = 60.0) -> AsyncHttp:
        return AsyncHttp(
            "http://127.0.0.1:8420/",
            "a-token",
            retry_seconds=retry_seconds,
            transport=httpx2.MockTransport(self._answer),
        )

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        make = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        answer = make()
        if isinstance(answer, Exception):
            raise answer
        return answer


def ok() -> Answer:
    return httpx2.Response(
        201, json={"task_id": "t", "created_at": "2026-11-29T12:00:00Z", "replayed": False}
    )


def away() -> Answer:
    return httpx2.ConnectError("connection refused")


def problem(status: int, code: str, headers: dict[str, str] | None = None) -> Callable[[], Answer]:
    body = {
        "type": "about:blank",
        "title": code,
        "status": status,
        "code": code,
        "detail": "it is so.",
        "next_step": "Do that.",
    }
    return lambda: httpx2.Response(status, json=body, headers=headers)


async def test_an_unreachable_server_is_asked_again_with_the_same_bytes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tenure.client")
    server = Server(away, problem(503, "unavailable"), ok)
    http = server.http()
    reply = await http.request(
        Call("POST", "/v1/tasks", body=b"{}", headers={"Idempotency-Key": "k"})
    )
    assert reply.read(Submitted).task_id == "t"
    assert [(r.content, r.headers["Idempotency-Key"]) for r in server.requests] == [
        (b"{}", "k")
    ] * 3
    first, second = caplog.messages
    assert first == "no answer from http://127.0.0.1:8420: connection refused. Asking again."
    assert second.endswith("Asking again.")
    await http.close()


async def test_a_refusal_is_final_and_carries_the_servers_code() -> None:
    server = Server(problem(409, "idempotency_conflict"))
    http = server.http()
    with pytest.raises(Refused) as caught:
        await http.request(Call("POST", "/v1/tasks", body=b"{}"))
    assert (caught.value.code, caught.value.status) == ("idempotency_conflict", 409)
    assert str(caught.value) == "it is so. Do that."
    assert len(server.requests) == 1
    await http.close()


async def test_an_internal_error_is_not_repeated() -> None:
    server = Server(problem(500, "internal_error"))
    http = server.http()
    with pytest.raises(Refused, match="it is so"):
        await http.request(Call("GET", "/v1/tasks"))
    assert len(server.requests) == 1
    await http.close()


@pytest.mark.parametrize("answer", [away, problem(503, "unavailable"), problem(429, "overloaded")])
async def test_without_time_left_the_outcome_is_unknown(answer: Callable[[], Answer]) -> None:
    http = Server(answer).http(retry_seconds=0.0)
    with pytest.raises(Unreachable):
        await http.request(Call("GET", "/v1/tasks"))
    await http.close()


async def test_a_pause_that_the_server_asks_for_and_nobody_has_time_for_ends_the_tries() -> None:
    server = Server(problem(503, "overloaded", {"Retry-After": "30"}))
    http = server.http(retry_seconds=5.0)
    with pytest.raises(Unreachable, match="overloaded"):
        await http.request(Call("GET", "/v1/tasks"))
    assert len(server.requests) == 1
    await http.close()


async def test_an_answer_of_something_else_is_named_as_such() -> None:
    http = Server(lambda: httpx2.Response(404, text="<html>")).http()
    with pytest.raises(Refused, match="without saying why") as caught:
        await http.request(Call("GET", "/v1/tasks"))
    assert caught.value.code == "not_found"
    await http.close()


async def test_a_reply_of_another_form_is_unreadable() -> None:
    http = Server(lambda: httpx2.Response(200, text=json.dumps({"task": 1}))).http()
    reply = await http.request(Call("GET", "/v1/tasks"))
    with pytest.raises(UnreadableReply, match="Submitted"):
        reply.read(Submitted)
    await http.close()


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("http://127.0.0.1:8420", "where TENURE_TOKEN is not set either"),
        ("http://127.0.0.1:8421", "is TENURE_URL right"),
    ],
)
def test_nobody_there_says_where_the_address_is_from(url: str, advice: str) -> None:
    assert advice in where_to_look(url)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8420", "ftp://host", "http://"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(Unreachable, match="no address"):
        Http(url, "a-token", retry_seconds=1.0)


@pytest.mark.parametrize("token", ["", "a\nb", "pässword"])
def test_a_token_that_cannot_be_one_is_refused_at_once(token: str) -> None:
    with pytest.raises(Refused) as caught:
        Http("http://127.0.0.1:1", token, retry_seconds=1.0)
    assert caught.value.code == "unauthenticated"


async def test_a_token_that_was_replaced_is_shown_from_the_next_call_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    connection = connection_from_environment({"TENURE_TOKEN_FILE": str(file)})
    shown: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        shown.append(request.headers["authorization"])
        return httpx2.Response(200, json={})

    http = AsyncHttp(
        connection.url,
        connection.current_token,
        retry_seconds=1,
        transport=httpx2.MockTransport(answer),
    )
    await http.request(Call("GET", "/v1/nodes"))
    file.write_text("second\n")
    await http.request(Call("GET", "/v1/nodes"))
    file.unlink()  # in the middle of its replacement
    await http.request(Call("GET", "/v1/nodes"))
    await http.close()
    assert shown == ["Bearer first", "Bearer second", "Bearer first"]
