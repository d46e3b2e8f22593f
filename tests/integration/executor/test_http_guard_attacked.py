"""What a hostile or careless sender, application or server does to guarded HTTP (LEASE-10)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from tenure.executor.context import Context
from tenure.executor.core.receiving import Presented, Verdict
from tenure.executor.errors import CommitUnknown
from tenure.executor.guards.http import BlockingHttpGuard, HttpGuard
from tenure.executor.guards.http_postgres import PostgresRequests
from tenure.executor.guards.http_receiver import GuardMiddleware, Message, Receive, Scope, Send
from tenure.executor.guards.http_store import RequestStore, SqliteRequests
from tenure.executor.guards.http_wire import fencing_headers
from tests.support.leases import attempt
from tests.support.serving import serving
from tests.support.shop import Receiver, Shop, receiving
from tests.support.waiting import eventually

FAR = 2**62  # microseconds: a lease that ends long after this test


@pytest.fixture
async def receiver(store: RequestStore) -> AsyncIterator[Receiver]:
    async with receiving(store) as found:
        yield found


def successor_of(context: Context[None]) -> Context[None]:
    return attempt(context.task_id, 2)


async def post(receiver: Receiver, headers: Any) -> httpx2.Response:
    return await receiver.client.post("/orders", content=b"a", headers=headers)


@pytest.mark.requirement("LEASE-10")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Fencing-Token", "-1"),
        ("Fencing-Token", "9007199254740992"),
        ("Fencing-Token", "9223372036854775808"),
        ("Fencing-Token", "1e3"),
        ("Fencing-Token", "0x10"),
        ("Fencing-Token", ""),
        ("Fencing-Token", "4294967297, 4294967298"),
        ("Fencing-Expires", "2999-01-01T00:00:00"),
        ("Fencing-Expires", "tomorrow"),
        ("Fencing-Tolerance", "nan"),
        ("Fencing-Tolerance", "inf"),
        ("Fencing-Tolerance", "-1"),
        ("Fencing-Tolerance", "1e9"),
        ("Fencing-Resource", '""'),
        ("Idempotency-Key", '""'),
        ("Idempotency-Key", "bare"),
        ("Idempotency-Key", '"a" ; b'),
        ("Idempotency-Key", f'"{"k" * 256}"'),
    ],
)
async def test_a_header_that_says_nothing_clear_begins_nothing_and_raises_no_fence(
    receiver: Receiver, name: str, value: str
) -> None:
    context = attempt()
    answer = await post(receiver, fencing_headers(context, key="k") | {name: value})
    assert (answer.status_code, answer.json()["code"]) == (400, "header_invalid")
    assert receiver.shop.acts == []
    assert (await receiver.order(context)).status_code == 201


@pytest.mark.parametrize("name", list(fencing_headers(attempt(), key="k")))
async def test_a_header_that_is_there_twice_is_refused(receiver: Receiver, name: str) -> None:
    said = fencing_headers(attempt(), key="k")
    answer = await post(receiver, [*said.items(), (name.lower(), said[name])])
    assert (answer.status_code, receiver.shop.acts) == (400, [])


async def test_a_key_with_a_line_break_is_refused_and_sends_no_header(receiver: Receiver) -> None:
    with pytest.raises(ValueError, match="printable"):
        fencing_headers(attempt(), key="k\r\nFencing-Token: 9")
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    said = fencing_headers(attempt(), key="k") | {"Idempotency-Key": '"k\r\nx: y"'}
    headers = [(name.lower().encode(), value.encode()) for name, value in said.items()]
    await receiver.middleware(scope_of_request(headers), receiving_body(b"a"), send)
    assert sent[0]["status"] == 400
    assert b"\r" not in b"".join(name + value for name, value in sent[0]["headers"])


def scope_of_request(headers: list[tuple[bytes, bytes]], **more: Any) -> Scope:
    return {
        "type": "http", "method": "POST", "path": "/orders", "query_string": b"",
        "headers": headers, **more,
    }  # fmt: skip


def receiving_body(*parts: bytes, gone: bool = False) -> Receive:
    messages: list[Message] = [
        {"type": "http.request", "body": part, "more_body": gone or number < len(parts)}
        for number, part in enumerate(parts, start=1)
    ]

    async def receive() -> Message:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    return receive


@pytest.mark.requirement("LEASE-10")
async def test_nobody_gets_a_stored_answer_by_naming_another_task(receiver: Receiver) -> None:
    """Its own token is fresh: only under the first task's fence would it be stale."""
    context = attempt()
    key = context.side_effect("order").id
    assert (await receiver.order(context)).status_code == 201
    answer = await post(receiver, fencing_headers(attempt(), key=key))
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_conflict")
    assert receiver.shop.acts == [b"a"]


async def test_of_two_tasks_with_one_key_at_once_one_has_it(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    """They meet at the key only: each has the lock of its own fence."""
    store = PostgresRequests(pool)

    def asked(task: str) -> Presented:
        return Presented(task, token=1, until=FAR, scope="", key="one", fingerprint=task)

    async with pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute(
            "insert into tenure_http_request (scope, key, resource, fingerprint, state, claim,"
            " claimed_until, touched_at) values ('', 'one', 'a', 'a', 'running', 'first', $1, 0)",
            FAR,
        )
        begun = asyncio.create_task(
            store.begin(asked("b"), claim="second", claim_seconds=30.0, repeat_abandoned=True)
        )

        async def waits() -> bool:
            found = await pool.fetchval(
                "select exists (select from pg_stat_activity where wait_event_type = 'Lock'"
                " and query like 'insert into %tenure_http_request%')"
            )
            return found is True

        await eventually(waits)
        await transaction.commit()
    assert (await begun).verdict is Verdict.CONFLICT
    assert await pool.fetchval("select claim from tenure_http_request where key = 'one'") == "first"


@pytest.mark.requirement("LEASE-10")
async def test_a_clock_that_is_set_back_lets_no_older_token_in(tmp_path: Path) -> None:
    now = [2_000_000_000.0]
    with contextlib.closing(SqliteRequests(tmp_path / "r.db", clock=lambda: now[0])) as store:

        async def asked(token: int, until: float) -> Verdict:
            presented = Presented("task", token=token, until=int(until * 1e6), key=f"{token}")
            begun = await store.begin(presented, claim="c", claim_seconds=1, repeat_abandoned=False)
            return begun.verdict

        assert await asked(2, now[0] + 10) is Verdict.FENCED
        now[0] -= 3600
        assert await asked(1, now[0] + 10) is Verdict.STALE_TOKEN
        now[0] += 7200
        assert await asked(2, now[0] - 1) is Verdict.AUTHORITY_OVER


# Applications and servers ---------------------------------------------------------------------


@contextlib.asynccontextmanager
async def around(app: Any, store: RequestStore, **options: Any) -> AsyncIterator[Receiver]:
    """The receiver's half around another application than the shop."""
    middleware = GuardMiddleware(app, store, **options)
    transport = httpx2.ASGITransport(middleware, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield Receiver(Shop(), middleware, client, HttpGuard(client))


START = {"type": "http.response.start", "status": 201, "headers": []}


async def test_an_answer_that_was_never_ended_is_told_as_a_failure_and_the_same_again(
    store: RequestStore,
) -> None:
    runs = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal runs
        runs += 1
        await send(START)
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async with around(app, store) as receiver:
        context = attempt()
        answers = [await receiver.order(context), await receiver.order(successor_of(context))]
    assert [(each.status_code, each.json()["code"]) for each in answers] == (
        [(500, "request_failed")] * 2
    )
    assert runs == 1


async def test_an_application_that_answers_nothing_is_told_as_a_failure(
    store: RequestStore,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pass

    async with around(app, store) as receiver:
        answer = await receiver.order(attempt())
    assert (answer.status_code, answer.json()["code"]) == (500, "request_failed")


async def test_what_fails_after_the_answer_changes_nothing_about_it(store: RequestStore) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"done"})
        raise RuntimeError("a task in the background")

    async with around(app, store) as receiver:
        context = attempt()
        answers = [await receiver.order(context), await receiver.order(successor_of(context))]
    assert [(each.status_code, each.content) for each in answers] == [(201, b"done")] * 2


async def test_an_answer_does_not_wait_for_what_comes_after_it(store: RequestStore) -> None:
    go_on, over = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"done"})
        await go_on.wait()
        over.set()

    async with (
        serving(GuardMiddleware(app, store)) as url,
        httpx2.AsyncClient(base_url=url) as client,
    ):
        context = attempt()
        answer = await HttpGuard(client).post(context, "/orders", operation="order")
        assert (answer.content, over.is_set()) == (b"done", False)
        again = await HttpGuard(client).post(context, "/orders", operation="order")
        assert (again.content, again.headers["idempotent-replayed"]) == (b"done", "?1")
        go_on.set()
        await over.wait()


async def test_an_answer_that_its_sender_was_not_there_for_is_there_for_the_next(
    receiver: Receiver,
) -> None:
    """The connection goes after the answer was stored and before it was sent."""
    context = attempt()
    said = fencing_headers(context, key=context.side_effect("order").id)
    headers = [(name.lower().encode(), value.encode()) for name, value in said.items()]

    async def send(message: Message) -> None:
        raise OSError("the client is gone")

    with pytest.raises(OSError, match="gone"):
        await receiver.middleware(scope_of_request(headers), receiving_body(b"a"), send)
    answer = await receiver.order(successor_of(context))
    assert (answer.status_code, answer.headers["idempotent-replayed"]) == (201, "?1")
    assert receiver.shop.acts == [b"a"]


async def test_a_sender_that_goes_in_the_middle_of_its_body_has_begun_nothing(
    receiver: Receiver,
) -> None:
    context = attempt()
    said = fencing_headers(context, key=context.side_effect("order").id)
    headers = [(name.lower().encode(), value.encode()) for name, value in said.items()]
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await receiver.middleware(scope_of_request(headers), receiving_body(b"a", gone=True), send)
    assert (sent, receiver.shop.acts) == ([], [])
    assert (await receiver.order(context)).status_code == 201


async def test_an_application_is_offered_no_way_around_what_is_stored(store: RequestStore) -> None:
    """Servers offer to send a file by its path: nobody could store that answer."""
    offered: list[set[str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        offered.append(set(scope["extensions"]))
        await send(START)
        await send({"type": "http.response.body", "body": b""})

    said = fencing_headers(attempt(), key="k-offered")
    headers = [(name.lower().encode(), value.encode()) for name, value in said.items()]
    extensions: dict[str, Any] = {
        "http.response.pathsend": {},
        "http.response.trailers": {},
        "tls": {},
    }
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await GuardMiddleware(app, store)(
        scope_of_request(headers, extensions=extensions), receiving_body(b"a"), send
    )
    assert offered == [{"tls", "tenure.guard"}]
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_what_is_no_request_goes_through(store: RequestStore, kind: str) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def send(message: Message) -> None:
        raise AssertionError(message)

    await GuardMiddleware(app, store)({"type": kind}, receiving_body(), send)
    assert seen == [kind]


# Senders ----------------------------------------------------------------------------------------


class Stumbling(httpx2.AsyncBaseTransport, httpx2.BaseTransport):
    """Loses the first request before it has arrived."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def _answer(self, body: bytes) -> httpx2.Response:
        self.bodies.append(body)
        if len(self.bodies) == 1:
            raise httpx2.ConnectError("lost")
        return httpx2.Response(201)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._answer(await request.aread())

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._answer(request.read())


@pytest.mark.requirement("LEASE-10")
async def test_a_body_that_can_be_read_once_is_the_same_in_every_try() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"all "
        yield b"of it"

    stumbling = Stumbling()
    async with httpx2.AsyncClient(transport=stumbling, base_url="http://shop") as client:
        await HttpGuard(client).post(attempt(), "/orders", operation="order", content=parts())
    assert stumbling.bodies == [b"all of it"] * 2


async def test_a_body_that_can_be_read_once_is_the_same_in_a_thread_too() -> None:
    stumbling = Stumbling()
    with httpx2.Client(transport=stumbling, base_url="http://shop") as client:
        await asyncio.to_thread(
            lambda: BlockingHttpGuard(client).post(
                attempt(), "/orders", operation="order", content=iter([b"all ", b"of it"])
            )
        )
    assert stumbling.bodies == [b"all of it"] * 2


async def test_a_form_with_files_is_one_request_for_every_attempt(receiver: Receiver) -> None:
    async def send(context: Context[None]) -> httpx2.Response:
        return await receiver.guard.post(
            context,
            "/orders",
            operation="order",
            data={"article": "lamp"},
            files={"photo": ("lamp.png", b"\x89PNG", "image/png")},
        )

    context = attempt()
    assert (await send(context)).status_code == 201
    assert (await send(successor_of(context))).headers["idempotent-replayed"] == "?1"
    (body,) = receiver.shop.acts
    assert b"lamp.png" in body


async def test_a_thread_that_is_to_end_does_not_wait_for_a_receiver_that_is_away() -> None:
    def away(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("away")

    context = attempt()
    context.ask_to_end()
    with (
        httpx2.Client(transport=httpx2.MockTransport(away), base_url="http://shop") as client,
        pytest.raises(CommitUnknown, match="was to end"),
    ):
        BlockingHttpGuard(client).post(context, "/orders", operation="order")
