"""A receiver of HTTP refuses stale attempts by itself, and acts once for each key (LEASE-10)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from tenure.cli.chaos.toxic import CutNow, toxic
from tenure.executor.context import Context
from tenure.executor.core.receiving import State, Verdict
from tenure.executor.errors import (
    AnswerNotKept,
    AuthorityOver,
    CommitUnknown,
    EffectConflict,
    GuardError,
    GuardNotInstalled,
    GuardUnavailable,
    OutcomeUnknown,
    StaleToken,
)
from tenure.executor.guards.http import BlockingHttpGuard, HttpGuard
from tenure.executor.guards.http_postgres import PostgresRequests
from tenure.executor.guards.http_receiver import (
    EXTENSION,
    GuardMiddleware,
    Message,
    Receive,
    Scope,
    Send,
)
from tenure.executor.guards.http_store import RequestStore, SqliteRequests
from tenure.executor.guards.http_wire import fencing_headers
from tests.support.attempts import HandClock
from tests.support.leases import attempt
from tests.support.serving import serving
from tests.support.shop import Receiver, Shop, receiving
from tests.support.waiting import eventually


@pytest.fixture
async def receiver(store: RequestStore) -> AsyncIterator[Receiver]:
    async with receiving(store) as found:
        yield found


def successor_of(context: Context[None]) -> Context[None]:
    return attempt(context.task_id, 2)


async def test_a_repeated_request_gets_the_stored_answer(receiver: Receiver) -> None:
    context = attempt()
    first = await receiver.order(context)
    again = await receiver.order(successor_of(context))
    assert receiver.shop.acts == [b"a"]
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert (first.status_code, first.content) == (201, b"done a")
    assert again.headers["x-order"] == "17"
    assert "set-cookie" in first.headers
    assert "set-cookie" not in again.headers
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "?1"


async def test_another_operation_and_another_task_are_other_effects(receiver: Receiver) -> None:
    context = attempt()
    await receiver.order(context)
    await receiver.order(context, b"b", operation="another")
    await receiver.order(attempt())
    assert receiver.shop.acts == [b"a", b"b", b"a"]


async def test_a_key_with_another_body_is_refused(receiver: Receiver) -> None:
    context = attempt()
    await receiver.order(context)
    with pytest.raises(EffectConflict):
        await receiver.order(context, b"b")
    assert receiver.shop.acts == [b"a"]


@pytest.mark.requirement("LEASE-10")
async def test_an_older_token_is_refused_and_gets_no_stored_answer_either(
    receiver: Receiver,
) -> None:
    context = attempt()
    successor = successor_of(context)
    await receiver.order(context)
    await receiver.order(successor, operation="another")
    for operation in ("order", "a third"):
        with pytest.raises(StaleToken) as refused:
            await receiver.order(context, operation=operation)
        assert refused.value.seen_token == successor.fencing_token
    assert len(receiver.shop.acts) == 2


@pytest.mark.requirement("LEASE-10")
async def test_an_old_holder_is_refused_although_its_successor_asked_for_nothing_yet(
    receiver: Receiver,
) -> None:
    context = attempt()
    await receiver.guard.raise_fence(context)
    await receiver.guard.raise_fence(successor_of(context))
    with pytest.raises(StaleToken):
        await receiver.order(context)
    with pytest.raises(StaleToken):
        await receiver.guard.raise_fence(context)
    assert receiver.shop.acts == []


@pytest.mark.requirement("LEASE-10")
async def test_an_equal_token_is_refused_after_the_end_of_authority(receiver: Receiver) -> None:
    late = attempt(expires_in_seconds=-1.0)
    with pytest.raises(AuthorityOver):
        await receiver.guard.raise_fence(late)
    with pytest.raises(AuthorityOver):
        await receiver.order(late)
    assert receiver.shop.acts == []
    tolerated = attempt(expires_in_seconds=-1.0, tolerance_seconds=600.0)
    assert (await receiver.order(tolerated)).status_code == 201


async def test_while_the_first_request_runs_others_are_told_to_come_later(
    receiver: Receiver,
) -> None:
    context = attempt()
    receiver.shop.hold = asyncio.Event()
    first = asyncio.create_task(receiver.order(context))
    await eventually(lambda: receiver.shop.acts == [b"a"])
    key = context.side_effect("order").id
    told = await receiver.client.post(
        "/orders", content=b"a", headers=fencing_headers(context, key=key)
    )
    assert (told.status_code, told.json()["code"]) == (409, Verdict.RUNNING)
    assert told.headers["retry-after"] == "1"
    second = asyncio.create_task(receiver.order(successor_of(context)))
    receiver.shop.hold.set()
    assert (await first).content == (await second).content == b"done a"
    assert receiver.shop.acts == [b"a"]


@pytest.mark.requirement("LEASE-10")
async def test_of_many_requests_at_once_one_acts_and_the_fence_never_falls(
    receiver: Receiver, store: RequestStore
) -> None:
    context = attempt()
    holders = [attempt(context.task_id, generation) for generation in (1, 2, 3) for _ in range(6)]
    results = await asyncio.gather(*map(receiver.order, holders), return_exceptions=True)
    answers = [each for each in results if isinstance(each, httpx2.Response)]
    assert all(isinstance(each, httpx2.Response | StaleToken) for each in results), results
    assert {each.content for each in answers} == {b"done a"}
    assert receiver.shop.acts == [b"a"]
    assert all(isinstance(each, httpx2.Response) for each in results[12:]), "the last are current"
    with pytest.raises(StaleToken):
        await receiver.order(attempt(context.task_id, 2), operation="another")


async def test_a_request_that_failed_may_have_acted_and_is_not_run_again(
    receiver: Receiver,
) -> None:
    context = attempt()
    receiver.shop.raises = LookupError
    failed = await receiver.order(context)
    assert failed.status_code == 500
    receiver.shop.raises = None
    again = await receiver.order(successor_of(context))
    assert (again.status_code, again.json()["code"]) == (500, "request_failed")
    assert receiver.shop.acts == [b"a"]


async def test_a_request_that_was_turned_away_is_run_again(receiver: Receiver) -> None:
    receiver.shop.status = [503, 401]
    context = attempt()
    assert (await receiver.order(context)).status_code == 401, "503 is repeated, 401 is an answer"
    assert (await receiver.order(context)).status_code == 201
    assert receiver.shop.acts == [b"a"] * 3


async def test_an_answer_too_long_to_be_kept_comes_once(store: RequestStore) -> None:
    async with receiving(store, answer_limit_bytes=100) as receiver:
        receiver.shop.size = 1000
        context = attempt()
        assert len((await receiver.order(context)).content) == 1006
        with pytest.raises(AnswerNotKept):
            await receiver.order(context)
        assert receiver.shop.acts == [b"a"]


async def test_a_body_above_the_limit_is_refused(store: RequestStore) -> None:
    async with receiving(store, body_limit_bytes=10) as receiver:
        with pytest.raises(GuardError) as refused:
            await receiver.order(attempt(), b"x" * 11)
        assert refused.value.code == "body_too_large"
        assert receiver.shop.acts == []


async def test_requests_without_key_or_token_are_refused_and_reads_are_not_guarded(
    receiver: Receiver,
) -> None:
    headers = fencing_headers(attempt(), key="k")
    for name in ("Idempotency-Key", "Fencing-Token"):
        without = {each: value for each, value in headers.items() if each != name}
        assert (await receiver.client.put("/orders", headers=without)).status_code == 400
    assert receiver.shop.acts == []
    assert (await receiver.client.get("/orders")).status_code == 201
    assert (await receiver.client.post("/.well-known/tenure-fence")).status_code == 400


async def interrupted(store: RequestStore, context: Context[None]) -> str:
    """A request whose process died in its middle: its claim has run out. Its key."""
    shop = Shop(hold=asyncio.Event())
    middleware = GuardMiddleware(shop, store, claim_seconds=0.0)
    key = context.side_effect("order").id
    transport = httpx2.ASGITransport(middleware)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        running = asyncio.create_task(
            client.post("/orders", content=b"a", headers=fencing_headers(context, key=key))
        )
        await eventually(lambda: shop.acts != [])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return key


async def test_what_an_interrupted_request_did_is_unknown_until_somebody_says(
    receiver: Receiver, store: RequestStore
) -> None:
    context = attempt()
    key = await interrupted(store, context)
    with pytest.raises(OutcomeUnknown):
        await receiver.order(context)
    assert receiver.shop.acts == []
    assert await store.forget("", key)
    assert not await store.forget("", key)
    assert (await receiver.order(context)).status_code == 201


async def test_an_interrupted_request_is_run_again_where_the_application_says_so(
    store: RequestStore,
) -> None:
    context = attempt()
    await interrupted(store, context)
    async with receiving(store, on_abandoned="repeat") as receiver:
        assert (await receiver.order(context)).status_code == 201
        assert (await receiver.order(context)).headers["idempotent-replayed"] == "?1"
        assert receiver.shop.acts == [b"a"]


async def test_the_claim_of_a_long_request_is_kept_while_its_process_lives(
    store: RequestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving(store, claim_seconds=0.3, on_abandoned="repeat") as receiver:
        context = attempt()
        hold = receiver.shop.hold = asyncio.Event()
        first = asyncio.create_task(receiver.order(context))
        await eventually(lambda: receiver.shop.acts != [])
        kept = 0
        keep = store.keep

        async def counted(claim: str, claim_seconds: float) -> bool:
            nonlocal kept
            assert claim_seconds == 0.3
            still_ours = await keep(claim, 60.0)  # or a busy machine is late for the next
            kept += 1
            return still_ours

        monkeypatch.setattr(store, "keep", counted)
        await eventually(lambda: kept >= 5)  # well past the end of the first claim
        key = context.side_effect("order").id
        headers = fencing_headers(context, key=key)
        told = await receiver.client.post("/orders", content=b"a", headers=headers)
        assert told.json()["code"] == Verdict.RUNNING
        hold.set()
        assert (await first).status_code == 201


async def test_nobody_is_answered_with_what_another_sender_asked(store: RequestStore) -> None:
    def sender(scope: Scope) -> str:
        return str(dict(scope["headers"])[b"authorization"], "ascii")

    async with receiving(store, scope_of=sender) as receiver:
        context = attempt()
        for name in ("one", "two"):
            answer = await receiver.guard.post(
                context, "/orders", operation="order", headers={"authorization": name}
            )
            assert "idempotent-replayed" not in answer.headers
        assert len(receiver.shop.acts) == 2


async def test_what_is_old_is_pruned_and_what_runs_stays(
    receiver: Receiver, store: RequestStore
) -> None:
    done, lost = attempt(), attempt()
    await receiver.order(done)
    await interrupted(store, lost)
    assert await store.prune(3600.0) == 0
    assert await store.prune(-1.0) >= 2  # the request, and its fence
    with pytest.raises(OutcomeUnknown):
        await receiver.order(lost)
    assert "idempotent-replayed" not in (await receiver.order(done)).headers


@pytest.mark.requirement("LEASE-10")
async def test_an_effect_that_is_confirmed_in_its_own_transaction_happens_exactly_once(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    """The process dies after its commit, before its answer is stored; or before the commit."""
    await pool.execute("drop table if exists orders; create table orders (task text)")
    store = PostgresRequests(pool)
    context = attempt()

    async def write(scope: Scope) -> None:
        request = scope["extensions"][EXTENSION]
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("insert into orders values ($1)", context.task_id)
            await store.confirm(connection, request.presented, request.claim)

    async def write_and_die(scope: Scope) -> None:
        await write(scope)
        raise asyncio.CancelledError

    async def die(scope: Scope) -> None:
        raise asyncio.CancelledError

    async def run(within: Callable[[Scope], Any], claim_seconds: float) -> None:
        async with receiving(store, on_abandoned="repeat", claim_seconds=claim_seconds) as receiver:
            receiver.shop.within = within
            await receiver.order(context)

    for dies in (die, write_and_die):
        with pytest.raises(asyncio.CancelledError):
            await run(dies, 0.0)
    with pytest.raises(AnswerNotKept):
        await run(write, 30.0)
    assert await pool.fetchval("select count(*) from orders") == 1
    assert (
        await pool.fetchval(
            "select state from tenure_http_request where resource = $1", context.task_id
        )
        == State.ACTED
    )


@pytest.mark.requirement("LEASE-10")
async def test_a_receiver_that_was_paused_itself_commits_nothing_for_an_old_attempt(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    """It had let the request in; meanwhile a successor came, or its request was taken over."""
    store = PostgresRequests(pool)
    context = attempt()

    async def overtaken(scope: Scope) -> None:
        async with receiving(store) as other:
            await other.guard.raise_fence(successor_of(context))
        request = scope["extensions"][EXTENSION]
        async with pool.acquire() as connection, connection.transaction():
            with pytest.raises(StaleToken):
                await store.confirm(connection, request.presented, request.claim)
            seen.append("stale")

    async def taken_over(scope: Scope) -> None:
        request = scope["extensions"][EXTENSION]
        async with pool.acquire() as connection, connection.transaction():
            with pytest.raises(GuardUnavailable, match="taken over"):
                await store.confirm(connection, request.presented, "another claim")
            seen.append("taken over")

    seen: list[str] = []
    for within in (overtaken, taken_over):
        async with receiving(store) as receiver:
            receiver.shop.within = within
            fresh = context if within is overtaken else attempt()
            await receiver.order(fresh)
    assert seen == ["stale", "taken over"]


class OneAnswerLost:
    """Cuts the first connection that carries an order when its answer comes."""

    lost = 0

    def __init__(self) -> None:
        self._order = False

    def to_server(self, data: bytes) -> bytes:
        self._order = self._order or b"POST /orders" in data
        return data

    def to_client(self, data: bytes) -> bytes:
        if self._order and OneAnswerLost.lost == 0:
            OneAnswerLost.lost += 1
            raise CutNow
        return data


@pytest.mark.parametrize("blocking", [False, True], ids=["on the loop", "in a thread"])
async def test_a_request_whose_answer_was_lost_is_repeated_and_acted_on_once(
    tmp_path: Path, blocking: bool
) -> None:
    OneAnswerLost.lost = 0
    shop = Shop()
    context = attempt()
    with contextlib.closing(SqliteRequests(tmp_path / "requests.db")) as store:
        async with (
            serving(GuardMiddleware(shop, store)) as url,
            toxic(url, OneAnswerLost) as proxy,
        ):
            if blocking:

                def order() -> httpx2.Response:
                    with httpx2.Client(base_url=proxy.url) as client:
                        guard = BlockingHttpGuard(client)
                        guard.raise_fence_now(context)
                        return guard.post(context, "/orders", operation="order", content=b"a")

                answer = await asyncio.to_thread(order)
            else:
                async with httpx2.AsyncClient(base_url=proxy.url) as client:
                    guard = HttpGuard(client)
                    await guard.raise_fence(context)
                    answer = await guard.post(context, "/orders", operation="order", content=b"a")
    assert (answer.status_code, answer.headers["idempotent-replayed"]) == (201, "?1")
    assert (OneAnswerLost.lost, shop.acts) == (1, [b"a"])


async def test_a_receiver_that_is_away_until_the_authority_ends_leaves_the_outcome_unknown() -> (
    None
):
    async with (
        serving(Shop()) as url,
        toxic(url) as proxy,
        httpx2.AsyncClient(base_url=proxy.url) as client,
    ):
        proxy.refuse_connections = True
        guard = HttpGuard(client)
        with pytest.raises(GuardUnavailable):
            await guard.raise_fence(attempt())
        clock = HandClock()
        context = attempt(clock=clock)

        async def time_passes(request: httpx2.Request) -> None:
            clock.pass_seconds(60.0)

        client.event_hooks = {"request": [time_passes]}
        with pytest.raises(CommitUnknown):
            await guard.post(context, "/orders", operation="order")


async def test_a_receiver_without_the_middleware_says_what_to_add() -> None:
    async def nothing_there(scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 404, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": b""})

    transport = httpx2.ASGITransport(nothing_there)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        with pytest.raises(GuardNotInstalled, match="GuardMiddleware"):
            await HttpGuard(client).raise_fence(attempt())
    async with httpx2.AsyncClient() as client:
        with pytest.raises(ValueError, match="base_url"):
            HttpGuard(client)


@pytest.mark.requirement("LEASE-09")
async def test_an_attempt_whose_time_is_up_by_its_own_clock_asks_nobody(
    receiver: Receiver,
) -> None:
    over = attempt(remaining_seconds=0.0)
    with pytest.raises(AuthorityOver):
        await receiver.order(over)
    with pytest.raises(AuthorityOver):
        await receiver.guard.raise_fence(over)
    assert receiver.shop.acts == []
