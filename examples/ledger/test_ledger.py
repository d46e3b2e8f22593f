"""The bookkeeper over a database of the test's own, which is made where the local stack's is, or
where ``LEDGER_TEST_DATABASE_URL`` says. No coordinator, relay or broker runs."""

import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from ledger.executor import app
from ledger.prepare import prepare
from ledger.tasks import BookTransfer, Transfer
from tenure.executor import StaleToken
from tenure.executor.guards.sql import Connection, SqlGuard
from tenure.executor.testing import MakeFleet, NotDelivered

PATIENCE_SECONDS = 60  # a database that has other work answers slowly


def administrator_url() -> str:
    """Of somebody who may make databases."""
    given = os.environ.get("LEDGER_TEST_DATABASE_URL")
    if given is not None:
        return given
    running = Path(".tenure/connection.json")
    if not running.exists():
        pytest.fail(
            "no database: run `tenure up` in this folder, or set LEDGER_TEST_DATABASE_URL",
            pytrace=False,
        )
    stack = json.loads(running.read_text(encoding="utf-8"))
    return str(stack["database_url"])


@asynccontextmanager
async def ledger() -> AsyncIterator[tuple[SqlGuard, Connection]]:
    """What the lifespan opens, and a connection of the ledger's owner. Both go with the block."""
    name = f"test_ledger_{secrets.token_hex(4)}"
    administrator = await asyncpg.connect(administrator_url())
    await administrator.execute(f"create database {name}")
    try:
        owner_url = urlsplit(administrator_url())._replace(path=f"/{name}").geturl()
        keeper_url = await prepare(owner_url, "keeper", name)
        owner = await asyncpg.connect(owner_url)
        async with SqlGuard(keeper_url, schema="ledger") as guard:
            yield guard, owner
        await owner.close()
    finally:
        await administrator.execute(f"drop database {name} with (force)")
        await administrator.execute(f"drop role if exists {name}")
        await administrator.close()


async def transfer(owner: Connection, source: str = "capital", cents: int = 100) -> Transfer:
    """An order into the cash, as the clerk writes it down."""
    transfer_id = await owner.fetchval(
        "insert into ledger.transfers (source, target, cents) values ($1, 'cash', $2) returning id",
        source,
        cents,
    )
    return Transfer(transfer_id=transfer_id, source=source, target="cash", cents=cents)


async def balances(owner: Connection) -> dict[str, int]:
    """What the accounts hold that hold anything."""
    rows = await owner.fetch("select name, balance_cents from ledger.accounts")
    return {row["name"]: row["balance_cents"] for row in rows if row["balance_cents"]}


@pytest.mark.parametrize("fault", ["late_receipt", "kill_node", "duplicate"])
async def test_a_transfer_is_booked_once(tenure_fleet: MakeFleet, fault: str) -> None:
    async with (
        ledger() as (guard, owner),
        tenure_fleet(app, resources=guard, patience_seconds=PATIENCE_SECONDS) as fleet,
    ):
        task = await fleet.submit(BookTransfer, await transfer(owner))
        await getattr(fleet, fault)(task)
        await fleet.result(task)
        assert await balances(owner) == {"capital": -100, "cash": 100}


async def test_the_database_refuses_a_zombie(tenure_fleet: MakeFleet) -> None:
    async with (
        ledger() as (guard, owner),
        tenure_fleet(app, resources=guard, patience_seconds=PATIENCE_SECONDS) as fleet,
    ):
        task = await fleet.submit(BookTransfer, await transfer(owner))
        zombie = await fleet.zombie(task)
        assert isinstance(zombie.raised, StaleToken)
        assert await balances(owner) == {"capital": -100, "cash": 100}


async def test_what_is_not_there_is_not_taken(tenure_fleet: MakeFleet) -> None:
    async with (
        ledger() as (guard, owner),
        tenure_fleet(app, resources=guard, patience_seconds=PATIENCE_SECONDS) as fleet,
    ):
        task = await fleet.submit(BookTransfer, await transfer(owner, source="rent"))
        with pytest.raises(NotDelivered, match="insufficient-funds"):
            await fleet.result(task)
        assert await balances(owner) == {}
