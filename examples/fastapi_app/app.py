"""The application: ``uvicorn fastapi_app.app:app``.

``SHOP_DATABASE_URL`` is a login that may enqueue; ``TENURE_URL`` and ``TENURE_TOKEN`` lead to the
coordinator, which is only asked for results.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import asyncpg
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from fastapi_app.tasks import Invoice, InvoiceIn, InvoiceOut
from tenure.client import AsyncClient, NotDelivered, ResultTimeout, enqueue

WAIT_SECONDS = 10.0


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connections, for as long as the application runs."""
    async with (
        asyncpg.create_pool(os.environ["SHOP_DATABASE_URL"], min_size=0) as pool,
        AsyncClient.from_environment() as client,
    ):
        app.state.pool = pool
        app.state.client = client
        yield


app = FastAPI(title="Shop", lifespan=lifespan)


async def database(request: Request) -> AsyncIterator[asyncpg.Connection]:
    """A connection for one request."""
    async with request.app.state.pool.acquire() as connection:
        yield connection


def coordinator(request: Request) -> AsyncClient:
    """The client that every request shares."""
    client: AsyncClient = request.app.state.client
    return client


Database = Annotated[asyncpg.Connection, Depends(database)]
Coordinator = Annotated[AsyncClient, Depends(coordinator)]


class Order(BaseModel):
    """What a customer wants."""

    customer: str = Field(min_length=1, max_length=100)
    article: str
    quantity: int = Field(ge=1, le=1000)


class Placed(BaseModel):
    """An order that is there, and so is the task that will invoice it."""

    order_id: int
    task_id: str


@app.post("/orders", status_code=201)
async def place(order: Order, connection: Database) -> Placed:
    """Order, task and stock in one transaction: whatever fails, all of it is undone."""
    async with connection.transaction():
        article = await connection.fetchrow(
            "select price_cents from articles where name = $1", order.article
        )
        if article is None:
            raise HTTPException(404, f"There is no article {order.article!r}.")
        order_id: int = await connection.fetchval(
            "insert into orders (customer, article, quantity) values ($1, $2, $3) returning id",
            order.customer,
            order.article,
            order.quantity,
        )
        task_id = await enqueue(
            connection,
            Invoice,
            InvoiceIn(
                order_id=order_id,
                customer=order.customer,
                article=order.article,
                quantity=order.quantity,
                price_cents=article["price_cents"],
            ),
            idempotency_key=f"invoice for order {order_id}",
        )
        await connection.execute("update orders set task_id = $2 where id = $1", order_id, task_id)
        taken = await connection.execute(
            "update articles set pieces = pieces - $2 where name = $1 and pieces >= $2",
            order.article,
            order.quantity,
        )
        if taken == "UPDATE 0":
            raise HTTPException(409, f"There are not so many of {order.article!r} left.")
    return Placed(order_id=order_id, task_id=task_id)


@app.get("/orders/{order_id}/invoice")
async def invoice(order_id: int, connection: Database, client: Coordinator) -> InvoiceOut:
    """The invoice of an order, waited for if need be."""
    task_id = await connection.fetchval("select task_id::text from orders where id = $1", order_id)
    if task_id is None:
        raise HTTPException(404, f"There is no order {order_id}.")
    try:
        return await client.task(task_id, Invoice).result(timeout=WAIT_SECONDS)
    except ResultTimeout as error:
        headers = {"Retry-After": "1"}
        raise HTTPException(503, "The invoice is not written yet.", headers) from error
    except NotDelivered as error:
        raise HTTPException(500, f"There will be no invoice: {error.message}") from error
