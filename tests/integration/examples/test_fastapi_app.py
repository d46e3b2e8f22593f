"""The example application with everything behind it: orders, tasks, and invoices."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
import uvicorn

from fastapi_app import prepare
from fastapi_app.app import app as shop
from fastapi_app.worker import app as worker
from tenure.contract.ids import DEFAULT_TENANT
from tenure.coordinator.store import applications
from tests.support.coordinator import TOKENS, Fleet, fleet
from tests.support.executors import executing, settings_of
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying
from tests.support.sessions import session
from tests.support.waiting import eventually


@pytest.fixture
async def login(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The shop's login, prepared as its README says."""
    name = f"test_shop_{secrets.token_hex(6)}"
    await prepare.prepare(database.admin_url, name)
    url = await prepare.prepare(database.admin_url, name)  # may be run again
    await applications.allow(database.owner_url, name, DEFAULT_TENANT)
    monkeypatch.setenv("SHOP_DATABASE_URL", url)
    yield name
    async with session(database.admin_url) as admin:
        await admin.execute(f"drop schema {name} cascade; drop owned by {name}; drop role {name}")


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


@asynccontextmanager
async def serving(coordinator_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The application over real HTTP, for the length of a block."""
    monkeypatch.setenv("TENURE_URL", coordinator_url)
    monkeypatch.setenv("TENURE_TOKEN", str(TOKENS[0]["token"]))
    config = uvicorn.Config(shop, port=0, log_config=None, lifespan="on", timeout_keep_alive=300)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as customer:
            yield customer
    finally:
        server.should_exit = True
        await task


def order(article: str = "lamp", quantity: int = 1) -> dict[str, Any]:
    return {"customer": "Zoë", "article": article, "quantity": quantity}


async def counts(owner: asyncpg.Connection, login: str) -> tuple[int, int, int]:
    """Orders, rows of the intake, and lamps left."""
    orders = await owner.fetchval(f"select count(*) from {login}.orders")
    enqueued = await owner.fetchval("select count(*) from tenure.intake")
    lamps = await owner.fetchval(f"select pieces from {login}.articles where name = 'lamp'")
    return orders, enqueued, lamps


@pytest.mark.requirement("OPS-01")
async def test_an_order_is_invoiced_and_one_that_fails_leaves_nothing(
    api: Fleet,
    login: str,
    database: FreshDatabase,
    broker: BrokerSpace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        serving(api.coordinator.url, monkeypatch) as customer,
        session(database.admin_url) as owner,
        relaying(database.relay_url, broker.url, broker.name_prefix),
        executing(worker, settings_of(api, broker, tmp_path)),
    ):

        async def known() -> bool:
            return bool(await owner.fetchval("select count(*) from tenure.task_types"))

        await eventually(known)
        placed = await customer.post("/orders", json=order(quantity=3))
        assert placed.status_code == 201, placed.text
        number = placed.json()["order_id"]
        while (invoice := await customer.get(f"/orders/{number}/invoice")).status_code == 503:
            pass  # it has waited for ten seconds, and says to ask again
        assert invoice.json() == {"number": f"INV-{number:06}", "total_cents": 14_700}
        assert await counts(owner, login) == (1, 1, 7)

        assert (await customer.post("/orders", json=order(quantity=8))).status_code == 409
        assert (await customer.post("/orders", json=order("sofa"))).status_code == 404
        assert (await customer.get("/orders/77/invoice")).status_code == 404
        assert await counts(owner, login) == (1, 1, 7)


async def test_orders_are_taken_while_the_coordinator_is_away_and_invoiced_later(
    login: str,
    database: FreshDatabase,
    broker: BrokerSpace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving("http://127.0.0.1:1", monkeypatch) as customer:
        placed = [await customer.post("/orders", json=order()) for _ in range(3)]
    assert [reply.status_code for reply in placed] == [201] * 3
    async with fleet(database, broker) as api, session(database.admin_url) as owner:
        await api.register(types=("invoice",))

        async def states() -> list[str]:
            rows = await owner.fetch("select state from tenure.intake where state <> 'refused'")
            return [row["state"] for row in rows]

        async def taken() -> bool:
            # Rows decided before anybody had registered the type were refused.
            await api.operator.post("/v1/intake/retry", {"type": "invoice"})
            return await states() == ["taken"] * 3

        await eventually(taken)
    assert {reply.json()["task_id"] for reply in placed} == set(await tasks(database))


async def tasks(database: FreshDatabase) -> list[str]:
    async with session(database.owner_url) as owner:
        rows = await owner.fetch("select task_id::text as id from tenure.tasks")
    return [row["id"] for row in rows]


async def test_what_the_shop_has_to_set_is_read_from_the_stack(
    login: str,
    database: FreshDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stack = tmp_path / "connection.json"
    stack.write_text(
        json.dumps(
            {"url": "http://x", "tokens": {"application": "t'"}, "database_url": database.admin_url}
        )
    )

    async def prepared(url: str) -> str:
        assert url == database.admin_url
        return "postgresql://shop"

    monkeypatch.setattr(prepare, "prepare", prepared)
    monkeypatch.setattr("sys.argv", ["prepare", str(stack)])
    await asyncio.to_thread(prepare.main)
    assert capsys.readouterr().out.splitlines() == [
        "export SHOP_DATABASE_URL=postgresql://shop",
        "export TENURE_URL=http://x",
        "export TENURE_TOKEN='t'\"'\"''",
    ]
