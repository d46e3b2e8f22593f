"""The client's ``enqueue`` in transactions of asyncpg and psycopg, asynchronous and not."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import asyncpg
import psycopg
import pytest
from psycopg.rows import class_row, dict_row
from pydantic import BaseModel, Field

from tenure.client import EnqueueRefused, TaskType, enqueue
from tenure.contract.errors import InvalidPayload
from tenure.contract.reports import Resources
from tests.support.enqueueing import Login, application, login
from tests.support.isolation import FreshDatabase
from tests.support.sessions import session


class OrderIn(BaseModel):
    order: int | str
    for_whom: str = Field(default="", alias="for")


class Nothing(BaseModel):
    pass


Invoice = TaskType("invoice", input=OrderIn, output=Nothing)
ORDER = OrderIn.model_validate({"order": 17, "for": "Zoë"})


class Application:
    """A transaction's begin, commit and rollback with one of the drivers."""

    def __init__(
        self,
        execute: Callable[[str], Awaitable[Any]],
        enqueue: Callable[..., Awaitable[str]],
    ) -> None:
        self.execute = execute
        self.enqueue = enqueue


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Application]:
    async with session(url) as connection:

        async def ask(input: OrderIn = ORDER, **options: Any) -> str:
            return assert_type(await enqueue(connection, Invoice, input, **options), str)

        yield Application(connection.execute, ask)


@asynccontextmanager
async def with_a_pool_of_asyncpg(url: str) -> AsyncIterator[Application]:
    async with (
        asyncpg.create_pool(url, min_size=0, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        # Codecs that the application has set for itself are not asked.
        for name in ("json", "uuid"):
            await connection.set_type_codec(
                name, encoder=lambda _: "no", decoder=lambda _: "no", schema="pg_catalog"
            )

        async def ask(input: OrderIn = ORDER, **options: Any) -> str:
            return await enqueue(connection, Invoice, input, **options)

        yield Application(connection.execute, ask)


@asynccontextmanager
async def with_async_psycopg(url: str) -> AsyncIterator[Application]:
    async with await psycopg.AsyncConnection.connect(
        url, autocommit=True, row_factory=dict_row
    ) as connection:

        async def ask(input: OrderIn = ORDER, **options: Any) -> str:
            return assert_type(await enqueue(connection, Invoice, input, **options), str)

        async def execute(statement: str) -> None:
            await connection.execute(statement.encode())

        yield Application(execute, ask)


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Application]:
    connect = asyncio.to_thread(
        psycopg.connect, url, autocommit=True, row_factory=class_row(Nothing)
    )
    with await connect as connection:

        async def ask(input: OrderIn = ORDER, **options: Any) -> str:
            def call() -> str:
                return assert_type(enqueue(connection, Invoice, input, **options), str)

            return await asyncio.to_thread(call)

        async def execute(statement: str) -> None:
            await asyncio.to_thread(connection.execute, statement.encode())

        yield Application(execute, ask)


DRIVERS = [with_asyncpg, with_a_pool_of_asyncpg, with_async_psycopg, with_psycopg]


@pytest.fixture
async def shop(emptied_database: FreshDatabase) -> AsyncIterator[Login]:
    async with application(emptied_database) as shop:
        yield shop


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.__name__)
async def app(shop: Login, request: pytest.FixtureRequest) -> AsyncIterator[Application]:
    async with request.param(shop.url) as app:
        await app.execute(f"create table {shop.role}.orders (number integer)")
        yield app


@pytest.fixture
async def owner(emptied_database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    async with session(emptied_database.admin_url) as owner:
        yield owner


async def rows(owner: asyncpg.Connection) -> list[asyncpg.Record]:
    return await owner.fetch("select * from tenure.intake order by intake_id")


@pytest.mark.requirement("OPS-01")
async def test_order_and_task_are_committed_together_or_not_at_all(
    app: Application, shop: Login, owner: asyncpg.Connection
) -> None:
    task_ids = []
    for number, ending in enumerate(("rollback", "commit")):
        await app.execute("begin")
        await app.execute(f"insert into {shop.role}.orders values ({number})")
        task_ids.append(await app.enqueue())
        await app.execute(ending)
    orders = await owner.fetch(f"select number from {shop.role}.orders")
    assert [row["number"] for row in orders] == [1]
    (row,) = await rows(owner)
    assert row["task_id"] == UUID(task_ids[1])
    assert json.loads(row["input"]) == {"order": 17, "for": "Zoë"}


async def test_everything_that_is_asked_for_arrives(
    app: Application, owner: asyncpg.Connection
) -> None:
    now = datetime.now(UTC)
    berlin = datetime.fromisoformat("2100-01-01T01:00:00.000001+01:00")
    await app.enqueue(
        idempotency_key="order-17 🦀",
        priority=-7,
        not_before=now,
        deadline=berlin,
        resources=Resources(cpu_millis=1500),
        tenant="default",
        concurrency_key="acme 🦀",
    )
    (row,) = await rows(owner)
    assert (row["type"], row["idempotency_key"], row["priority"]) == ("invoice", "order-17 🦀", -7)
    assert (row["not_before"], row["deadline"]) == (now, berlin)
    assert (row["cpu_millis"], row["memory_bytes"]) == (1500, 0)
    assert row["concurrency_key"] == "acme 🦀"


@pytest.mark.requirement("LATE-04")
async def test_a_key_gives_the_same_id_and_other_content_is_a_conflict(app: Application) -> None:
    first = await app.enqueue(idempotency_key="k")
    assert await app.enqueue(idempotency_key="k") == first
    with pytest.raises(EnqueueRefused) as caught:
        await app.enqueue(OrderIn(order=18), idempotency_key="k")
    assert caught.value.code == "idempotency_conflict"
    assert first in caught.value.message
    assert caught.value.next_step == "Use a key of its own for each task."


async def test_what_the_database_refuses_ends_at_the_savepoint(
    app: Application, owner: asyncpg.Connection
) -> None:
    await app.execute("begin")
    await app.execute("savepoint before")
    with pytest.raises(EnqueueRefused) as caught:
        await app.enqueue(deadline=datetime.now(UTC) - timedelta(days=1))
    assert caught.value.code == "deadline_in_the_past"
    await app.execute("rollback to before")
    await app.enqueue()
    await app.execute("commit")
    assert len(await rows(owner)) == 1


async def test_what_is_seen_without_the_database_leaves_the_transaction_alone(
    app: Application, owner: asyncpg.Connection
) -> None:
    await app.execute("begin")
    for input in (OrderIn(order="\0"), OrderIn(order="x" * 300_000), OrderIn(order="\ud800")):
        with pytest.raises(InvalidPayload):
            await app.enqueue(input)
    with pytest.raises(InvalidPayload):
        await app.enqueue(idempotency_key="\0")
    with pytest.raises(EnqueueRefused, match="time zone"):
        await app.enqueue(deadline=datetime(2100, 1, 1))  # noqa: DTZ001 - what is refused
    await app.enqueue()
    await app.execute("commit")
    assert len(await rows(owner)) == 1


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.__name__)
async def test_a_login_that_may_not_is_told_who_can_change_that(
    emptied_database: FreshDatabase, driver: Callable[[str], Any]
) -> None:
    async with login(emptied_database) as stranger, driver(stranger.url) as app:
        with pytest.raises(EnqueueRefused) as caught:
            await app.enqueue()
    assert caught.value.code == "forbidden_role"
    assert "tenure migrate application" in caught.value.next_step


async def test_a_database_without_the_schema_is_told(empty_database: FreshDatabase) -> None:
    async with with_asyncpg(empty_database.admin_url) as app:
        with pytest.raises(EnqueueRefused) as caught:
            await app.enqueue()
    assert caught.value.code == "not_migrated"


async def test_other_errors_are_the_drivers_own(app: Application) -> None:
    await app.execute("begin")
    with pytest.raises((asyncpg.PostgresError, psycopg.Error)):
        await app.execute("select nonsense")
    with pytest.raises(
        (asyncpg.InFailedSQLTransactionError, psycopg.errors.InFailedSqlTransaction)
    ):
        await app.enqueue()


async def test_what_is_no_connection_is_refused(shop: Login) -> None:
    pool = asyncpg.create_pool(shop.url, min_size=0)
    with pytest.raises(TypeError, match="not its pool"):
        await enqueue(pool, Invoice, ORDER)
    nothing: Any = object()
    with pytest.raises(TypeError, match="not object"):
        enqueue(nothing, Invoice, ORDER)
