"""The executor on its own: no server runs, and the provider is asked within this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx2
import pytest

from paid_calls.executor import Gateway, Provider, app
from paid_calls.provider import Books, provider
from paid_calls.tasks import Bill, Paid, PayBill, Text, Translate
from tenure.executor import StaleToken
from tenure.executor.guards.http import HttpGuard
from tenure.executor.guards.http_store import SqliteRequests
from tenure.executor.guards.payment import PaymentGuard, SqlitePayments
from tenure.executor.testing import MakeFleet

PATIENCE_SECONDS = 60  # a machine that has other work writes files slowly
FAULTS = ["late_receipt", "kill_node", "duplicate"]


@asynccontextmanager
async def resources(folder: Path) -> AsyncIterator[tuple[Provider, Books]]:
    """What the lifespan opens, and the books of the provider."""
    with (
        closing(Books(folder / "books.db")) as books,
        closing(SqliteRequests(folder / "requests.db")) as requests,
        closing(SqlitePayments(folder / "payments.db")) as record,
    ):
        transport = httpx2.ASGITransport(app=provider(books, requests))
        async with httpx2.AsyncClient(transport=transport, base_url="http://provider") as client:
            payments = PaymentGuard(
                Gateway(client), record, receipt=Paid, gateway_deduplicates=True
            )
            yield Provider(HttpGuard(client), payments), books


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_call_is_charged_once(tenure_fleet: MakeFleet, tmp_path: Path, fault: str) -> None:
    async with (
        resources(tmp_path) as (opened, books),
        tenure_fleet(app, resources=opened, patience_seconds=PATIENCE_SECONDS) as fleet,
    ):
        task = await fleet.submit(Translate, Text(text="Hello"))
        await getattr(fleet, fault)(task)
        assert (await fleet.result(task)).text == "Uryyb"
        assert books.bill()["calls"] == 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_bill_is_paid_once(tenure_fleet: MakeFleet, tmp_path: Path, fault: str) -> None:
    async with (
        resources(tmp_path) as (opened, books),
        tenure_fleet(app, resources=opened, patience_seconds=PATIENCE_SECONDS) as fleet,
    ):
        task = await fleet.submit(PayBill, Bill(cents=300))
        await getattr(fleet, fault)(task)
        assert (await fleet.result(task)).receipt == 1
        assert books.bill() == {"calls": 0, "payments": 1, "owed_cents": -300}


async def test_the_provider_refuses_a_zombie(tenure_fleet: MakeFleet, tmp_path: Path) -> None:
    async with (
        resources(tmp_path) as (opened, books),
        tenure_fleet(app, resources=opened, patience_seconds=PATIENCE_SECONDS) as fleet,
    ):
        task = await fleet.submit(Translate, Text(text="Hello"))
        zombie = await fleet.zombie(task)
        assert isinstance(zombie.raised, StaleToken)
        assert books.bill()["calls"] == 1
