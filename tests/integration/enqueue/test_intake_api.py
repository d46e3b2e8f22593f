"""What was enqueued, as applications and operators see it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tenure.cli.main import run
from tenure.client import AsyncClient, Refused
from tests.support.coordinator import TOKENS, Fleet, fleet
from tests.support.enqueueing import application, enqueue
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.sessions import session
from tests.support.waiting import eventually

TOKEN = str(TOKENS[0]["token"])


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


@pytest.fixture
async def connection(database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    async with application(database) as login, session(login.url) as connection:
        yield connection


@pytest.fixture
async def client(api: Fleet) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(api.coordinator.url, TOKEN) as client:
        yield client


@pytest.mark.requirement("OPS-01")
async def test_the_id_of_a_transaction_leads_to_the_result(
    api: Fleet, connection: asyncpg.Connection, client: AsyncClient
) -> None:
    incarnation = await api.register()
    async with connection.transaction():
        task_id = await enqueue(connection, idempotency_key="order-1")
        assert (await api.application.get(f"/v1/tasks/{task_id}")).status_code == 404
    handle = client.task(task_id)
    waiting = asyncio.create_task(handle.result(timeout=60))  # a task so far or not
    assert (await handle.view()).phase in ("waiting", "assigned")
    await api.deliver(incarnation, task_id, output={"digest": "x"})
    assert await waiting == {"digest": "x"}
    over_http = await client.submit_json("sha256", 1, idempotency_key="order-1")
    assert (over_http.task_id, over_http.replayed) == (task_id, True)


async def test_a_refused_row_is_told_whoever_asks_for_its_task(
    api: Fleet, connection: asyncpg.Connection, client: AsyncClient
) -> None:
    task_id = await enqueue(connection, "later")
    with pytest.raises(Refused) as caught:
        await client.task(task_id).result(timeout=60)
    assert caught.value.code == "unknown_task_type"
    assert "tenure intake retry" in caught.value.next_step
    for method, path in (
        ("GET", f"/v1/tasks/{task_id}"),
        ("GET", f"/v1/tasks/{task_id}/result"),
        ("GET", f"/v1/streams/task/{task_id}"),
        ("POST", f"/v1/tasks/{task_id}/cancel"),
    ):
        reply = await api.application.http.request(method, path)
        assert (reply.status_code, reply.json()["code"]) == (422, "unknown_task_type"), path
        # Another tenant has never heard of it.
        reply = await api.stranger.http.request(method, path)
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found"), path
    for verb, body in (("hold", {"reason": "why"}), ("release", None), ("retry", None)):
        reply = await api.operator.post(f"/v1/tasks/{task_id}/{verb}", body)
        assert (reply.status_code, reply.json()["code"]) == (422, "unknown_task_type"), verb
    reply = await api.reader.get(f"/v1/tasks/{task_id}/receipts")
    assert (reply.status_code, reply.json()["code"]) == (422, "unknown_task_type")


async def test_what_waits_to_be_taken_in_is_open_and_may_be_asked_for_again(
    database: FreshDatabase, connection: asyncpg.Connection, api: Fleet
) -> None:
    await api.register()
    async with session(database.owner_url) as owner:
        timeline = await owner.fetchval("select timeline from tenure.authority")
        await owner.execute("update tenure.authority set timeline = 'other'")
        task_id = await enqueue(connection)
        reply = await api.application.get(f"/v1/tasks/{task_id}/result")
        assert (reply.status_code, reply.json()["state"]) == (200, "open")
        assert reply.json()["phase"] == "waiting"
        for path in (f"/v1/tasks/{task_id}", f"/v1/streams/task/{task_id}"):
            reply = await api.application.get(path)
            assert (reply.status_code, reply.json()["code"]) == (503, "unavailable")
            assert "retry-after" in reply.headers

        async def told() -> bool:
            metrics = (await api.nobody.get("/metrics")).text
            return 'tenure_intake_rows{state="waiting"} 1.0' in metrics

        await eventually(told)
        # Whoever waits is answered once it goes on.
        waiting = asyncio.create_task(api.application.get(f"/v1/tasks/{task_id}/result", wait=30))
        await owner.execute("update tenure.authority set timeline = $1", timeline)
    cancelled = await _cancelled(api, task_id)
    assert cancelled["state"] == "cancelled"
    assert (await waiting).json()["state"] == "cancelled"


async def _cancelled(api: Fleet, task_id: str) -> Any:
    """As a client does it: an answer that says to repeat is repeated."""
    while True:
        reply = await api.application.post(f"/v1/tasks/{task_id}/cancel")
        if reply.status_code != 503:
            return reply.json()
        await asyncio.sleep(0.05)


@pytest.mark.requirement("OPS-05")
async def test_the_intake_is_listed_by_state_page_by_page_for_its_tenant(
    api: Fleet, connection: asyncpg.Connection, client: AsyncClient, database: FreshDatabase
) -> None:
    await api.register()
    refused = [await enqueue(connection, "later", idempotency_key=f"k{n}") for n in range(3)]
    taken = await enqueue(connection)

    async def listed(**query: Any) -> list[Any]:
        return list((await client.intake(**query)).entries)

    async def all_decided() -> bool:
        return not await listed(state="waiting")

    await eventually(all_decided)
    assert [entry.task_id for entry in await listed()] == [taken, *reversed(refused)]
    assert [entry.task_id for entry in await listed(state="taken")] == [taken]
    first = await client.intake(state="refused", limit=2)
    assert [entry.task_id for entry in first.entries] == [refused[2], refused[1]]
    second = await client.intake(state="refused", limit=2, after=first.next)
    assert [entry.task_id for entry in second.entries] == [refused[0]]
    assert second.next is None
    (entry,) = second.entries
    assert (entry.code, entry.idempotency_key) == ("unknown_task_type", "k0")
    assert entry.enqueued_by.startswith("test_shop_")
    assert (await api.stranger.get("/v1/intake")).json() == {"entries": [], "next": None}
    assert (await api.executor.get("/v1/intake")).status_code == 403
    assert (await api.reader.get("/v1/intake?state=odd")).status_code == 422
    assert (await api.reader.get("/v1/intake?limit=1")).status_code == 200


async def test_an_operator_lets_refused_rows_be_decided_anew(
    api: Fleet, connection: asyncpg.Connection, database: FreshDatabase
) -> None:
    later = [await enqueue(connection, "later") for _ in range(2)]
    never = await enqueue(connection, "never")

    async def rows(state: str) -> list[str]:
        listed = (await api.operator.get("/v1/intake", state=state)).json()["entries"]
        return sorted(entry["task_id"] for entry in listed)

    async def three_refused() -> bool:
        return len(await rows("refused")) == 3

    await eventually(three_refused)
    await api.register(types=("later",))
    assert (await api.application.post("/v1/intake/retry", {})).status_code == 403
    for asked, number in (
        ({"type": "other"}, 0),
        ({"code": "invalid_field"}, 0),
        ({"code": None, "type": "other"}, 0),
        ({"type": "later", "code": "unknown_task_type"}, 2),
        ({"type": "later"}, 0),  # they wait, or are taken
    ):
        reply = await api.operator.post("/v1/intake/retry", asked)
        assert (reply.status_code, reply.json()) == (200, {"retried": number})

    async def two_taken() -> bool:
        return await rows("taken") == sorted(later)

    await eventually(two_taken)
    assert (await api.application.get(f"/v1/tasks/{later[0]}")).json()["state"] == "open"
    # Refused a second time, it is one row more, and one at the next retry.
    for number in (1, 2):
        assert (await api.operator.post("/v1/intake/retry", {})).json() == {"retried": 1}

        async def again(number: int = number) -> bool:
            return await rows("refused") == sorted([*later, *[never] * (number + 1)])

        await eventually(again)


async def test_the_command_lists_what_was_refused(
    api: Fleet,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task_id = await enqueue(connection, "later", idempotency_key="order-1")
    monkeypatch.setenv("TENURE_URL", api.coordinator.url)
    monkeypatch.setenv("TENURE_TOKEN", str(TOKENS[2]["token"]))

    async def command(*words: str) -> str:
        assert await asyncio.to_thread(run, words) == 0
        return capsys.readouterr().out

    async def refused() -> bool:
        return "order-1" in await command("intake", "list", "--state", "refused")

    await eventually(refused)
    (line,) = (await command("intake", "list")).splitlines()[1:]
    assert [word in line for word in (task_id, "unknown_task_type", "order-1")] == [True] * 3
    page = json.loads(await command("intake", "list", "--state", "refused", "-o", "json"))
    assert [entry["task_id"] for entry in page["entries"]] == [task_id]
    retried = await command("intake", "retry", "--code", "invalid_field")
    assert retried.endswith("0 rows are decided anew\n")
    assert json.loads(await command("intake", "list", "--state", "taken", "-o", "json")) == {
        "entries": [],
        "next": None,
    }


async def test_the_command_allows_a_login_and_takes_it_back(
    database: FreshDatabase,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TENURE_DATABASE_URL", database.owner_url)

    async def command(*words: str) -> str:
        assert await asyncio.to_thread(run, ("migrate", "application", *words)) == 0
        return capsys.readouterr().out

    async with application(database, ()) as login, session(login.url) as connection:
        printed = await command(login.role, "--print")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await enqueue(connection)
        async with session(database.owner_url) as owner:
            await owner.execute(printed)
            await enqueue(connection)
            await owner.execute(await command(login.role, "--print", "--revoke"))
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await enqueue(connection)
        assert await command(login.role, "--tenant", "acme") == (
            f"{login.role} may enqueue for tenant acme\n"
        )
        await enqueue(connection)
        assert "no longer" in await command(login.role, "--tenant", "acme", "--revoke")
    assert await asyncio.to_thread(run, ("migrate", "application", "nobody_at_all")) == 4
    assert await asyncio.to_thread(run, ("migrate", "application", "x", "--tenant", "X Y")) == 2
