"""The clerk: orders transfers and waits until they are booked: ``python -m ledger.order``.

``LEDGER_DATABASE_URL`` is a login that may order and read, and enqueue.
"""

import asyncio
import os

import asyncpg

from ledger.tasks import BookTransfer, Transfer
from tenure.client import AsyncClient, NotDelivered, enqueue

WANTED = [
    ("capital", "cash", 100_000),
    ("cash", "rent", 45_000),
    ("cash", "paper", 1_250),
    ("rent", "cash", 60_000),  # more than there is
]


async def order(connection: asyncpg.Connection, source: str, target: str, cents: int) -> str:
    """The order and the task that will book it are one transaction; the task's id."""
    async with connection.transaction():
        transfer_id = await connection.fetchval(
            "insert into ledger.transfers (source, target, cents) values ($1, $2, $3) returning id",
            source,
            target,
            cents,
        )
        return await enqueue(
            connection,
            BookTransfer,
            Transfer(transfer_id=transfer_id, source=source, target=target, cents=cents),
            idempotency_key=f"transfer {transfer_id}",
        )


async def show_books(connection: asyncpg.Connection) -> None:
    """What is in every account, and the sum of all, which is nothing."""
    for row in await connection.fetch("select * from ledger.books"):
        print(f"{row['account']:<8} {row['cents'] / 100:>10.2f}")


async def main() -> None:
    """One after the other: each needs what the one before has brought."""
    connection = await asyncpg.connect(os.environ["LEDGER_DATABASE_URL"])
    async with AsyncClient.from_environment() as client:
        for source, target, cents in WANTED:
            task_id = await order(connection, source, target, cents)
            line = f"{source} -> {target} {cents / 100:.2f}"
            try:
                booked = await client.task(task_id, BookTransfer).result(timeout=60)
                print(f"{line}: booked under token {booked.fencing_token}")
            except NotDelivered as error:
                print(f"{line}: {error.reason}")
    await show_books(connection)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
