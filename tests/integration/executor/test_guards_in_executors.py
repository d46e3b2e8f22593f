"""Executors whose handlers write through several guards: each effect once, over two attempts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from obstore.store import LocalStore
from pydantic import BaseModel

from tenure.executor import Context, Executor, Retry, TaskType
from tenure.executor.guards.http import BlockingHttpGuard
from tenure.executor.guards.http_receiver import GuardMiddleware, Receive, Scope, Send
from tenure.executor.guards.http_store import SqliteRequests
from tenure.executor.guards.objects import ObjectGuard, Reference, read, resolve
from tenure.executor.guards.psycopg import PsycopgGuard
from tests.support.coordinator import fleet
from tests.support.downstream import downstream
from tests.support.executors import executing, registered, result, settings_of
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.serving import serving


class In(BaseModel):
    """What is written everywhere."""

    text: str


class Out(BaseModel):
    """What became of it."""

    files: Reference
    order: str
    replayed: bool
    effects: list[str]


EVERYWHERE = TaskType("everywhere", input=In, output=Out)


@dataclass(frozen=True)
class Resources:
    """The receivers, through their guards."""

    ledger: PsycopgGuard
    files: ObjectGuard
    shop: BlockingHttpGuard


def executor(ledger_url: str, store: Any, shop_url: str) -> Executor:
    """A plain function that writes to all three, and comes back once it has."""
    app = Executor("everywhere", version="1")
    attempts: list[str] = []

    @app.lifespan
    @asynccontextmanager
    async def resources() -> AsyncIterator[Resources]:
        with (
            PsycopgGuard(ledger_url) as ledger,
            httpx2.Client(base_url=shop_url, timeout=60) as client,
        ):
            yield Resources(ledger, ObjectGuard(store), BlockingHttpGuard(client))

    @app.task(
        EVERYWHERE,
        effects="guarded",
        guards=lambda resources: [resources.ledger, resources.files, resources.shop],
    )
    def write(input: In, context: Context[Resources]) -> Out:
        to = context.resources
        with to.ledger.transaction(context, operation="row") as effect:
            if not effect.already_done:
                effect.connection.execute(
                    "insert into effects (task_id, value) values (%s, %s)",
                    (context.task_id, input.text),
                )
        with to.files.outputs_now(context) as outputs:
            if not outputs.already_done:
                outputs.put_now("text", input.text.encode())
        answer = to.shop.post(context, "/orders", operation="order", content=input.text)
        attempts.append(context.attempt_id)
        if len(attempts) == 1:
            raise Retry("once more", after=0.0)
        return Out(
            files=outputs.reference,
            order=answer.text,
            replayed="idempotent-replayed" in answer.headers,
            effects=[f"{each.name} {each.state}" for each in context.side_effects],
        )

    return app


@pytest.mark.requirement("LEASE-10")
async def test_a_handler_in_a_thread_writes_everywhere_once_over_two_attempts(
    database: FreshDatabase, broker: BrokerSpace, empty_database: FreshDatabase, tmp_path: Path
) -> None:
    orders: list[bytes] = []

    async def shop(scope: Scope, receive: Receive, send: Send) -> None:
        orders.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"order %d" % len(orders)})

    store = LocalStore(tmp_path / "objects", mkdir=True)
    with closing(SqliteRequests(tmp_path / "requests.db")) as requests:
        async with (
            fleet(database, broker) as api,
            downstream(empty_database.admin_url) as ledger,
            serving(GuardMiddleware(shop, requests)) as shop_url,
            executing(
                executor(ledger.writer_url, store, shop_url), settings_of(api, broker, tmp_path)
            ),
        ):
            await registered(api, "node-1")
            task_id = await api.submit(type="everywhere", input={"text": "once"})
            ended = await result(api, task_id)
            rows = await ledger.effects(task_id)
    assert ended["state"] == "delivered"
    output = Out.model_validate(ended["output"])
    assert rows == ["once"]
    assert orders == [b"once"]
    assert (output.order, output.replayed) == ("order 1", True)
    (entry,) = (await resolve(store, output.files)).entries
    assert await read(store, entry) == b"once"
    assert output.effects == ["row done", "outputs done", "order done"]
