"""The bookkeeper: ``tenure executor ledger.executor:app``.

``LEDGER_DATABASE_URL`` is a login that may book and read, and call the guard.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledger.tasks import Booked, BookTransfer, Transfer
from tenure.executor import Context, Executor, Fail
from tenure.executor.guards.sql import Connection, SqlGuard

app = Executor("bookkeeper", version="1")


@app.lifespan
@asynccontextmanager
async def books() -> AsyncIterator[SqlGuard]:
    """Connections, for as long as the executor runs."""
    async with SqlGuard(os.environ["LEDGER_DATABASE_URL"], schema="ledger") as guard:
        yield guard


@app.task(BookTransfer, effects="guarded", guards=lambda books: [books])
async def book(input: Transfer, context: Context[SqlGuard]) -> Booked:
    """One transaction: the guard's check, its note that this is done, and both entries."""
    async with context.resources.transaction(context, operation="booking") as effect:
        if not effect.already_done:
            await write(effect.connection, input, context.fencing_token)
        token = await effect.connection.fetchval(
            "select fencing_token from ledger.entries where transfer_id = $1 limit 1",
            input.transfer_id,
        )
    return Booked(transfer_id=input.transfer_id, fencing_token=token)


async def write(connection: Connection, transfer: Transfer, token: int) -> None:
    """Raises Fail when there is not enough to take, and nothing is written."""
    await connection.execute(
        # In one order, so that no two transfers wait for each other.
        "select from ledger.accounts where name in ($1, $2) order by name for update",
        transfer.source,
        transfer.target,
    )
    taken = await connection.execute(
        "update ledger.accounts set balance_cents = balance_cents - $2"
        " where name = $1 and (balance_cents >= $2 or may_overdraw)",
        transfer.source,
        transfer.cents,
    )
    if taken == "UPDATE 0":
        raise Fail("insufficient-funds", f"{transfer.source} has no {transfer.cents} cents.")
    await connection.execute(
        "update ledger.accounts set balance_cents = balance_cents + $2 where name = $1",
        transfer.target,
        transfer.cents,
    )
    await connection.executemany(
        "insert into ledger.entries values ($1, $2, $3, $4)",
        [
            (transfer.transfer_id, transfer.source, -transfer.cents, token),
            (transfer.transfer_id, transfer.target, transfer.cents, token),
        ],
    )
