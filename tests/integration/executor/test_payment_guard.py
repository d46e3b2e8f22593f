"""A payment happens once, although its gateway acts and does not answer (LEASE-10)."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tenure.executor.context import Context
from tenure.executor.errors import (
    CommitUnknown,
    EffectConflict,
    OutcomeUnknown,
    StaleToken,
)
from tenure.executor.guards.payment import Declined, PaymentGuard, PaymentRecord, SqlitePayments
from tenure.executor.guards.payment_postgres import PostgresPayments
from tenure.executor.guards.payment_table import table
from tenure.executor.guards.sql import SqlGuard
from tests.support.downstream import Downstream, downstream
from tests.support.gateway import LIMIT_CENTS, Charge, Http, Order, Process, gateway
from tests.support.isolation import DatabaseServer
from tests.support.leases import attempt

ORDER = Order(cents=1250)


@pytest.fixture(scope="module")
async def ledger(database_server: DatabaseServer) -> AsyncIterator[Downstream]:
    async with database_server.fresh() as database, downstream(database.admin_url) as made:
        await made.owner.execute(table(roles=[made.role]))
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
async def record(
    request: pytest.FixtureRequest, tmp_path: Path, ledger: Downstream
) -> AsyncIterator[PaymentRecord]:
    if request.param == "postgres":
        async with SqlGuard(ledger.writer_url) as guard:
            yield PostgresPayments(guard)
        return
    with contextlib.closing(SqlitePayments(tmp_path / "payments.db")) as payments:
        yield payments


@pytest.fixture(scope="module")
async def once() -> AsyncIterator[Process]:
    """A gateway that takes an identifier once."""
    async with gateway() as process:
        yield process


@pytest.fixture(scope="module")
async def careless() -> AsyncIterator[Process]:
    """A gateway that charges as often as it is asked to."""
    async with gateway(deduplicates=False) as process:
        yield process


def payments(
    process: Process, record: PaymentRecord, *, deduplicates: bool = True
) -> PaymentGuard[Order, Charge]:
    return PaymentGuard(
        Http(process.client), record, receipt=Charge, gateway_deduplicates=deduplicates
    )


def first(seconds: float = 60.0) -> Context[None]:
    return attempt(remaining_seconds=seconds, ordinal=1)


def second(context: Context[None]) -> Context[None]:
    return attempt(context.task_id, 2, ordinal=2)


async def charged(process: Process, charge: Charge) -> int:
    """How often."""
    ledger = await process.ledger()
    return sum(each["id"] == charge.id for each in ledger["charges"])


async def test_a_payment_is_made_once_and_answered_again_without_the_gateway(
    once: Process, record: PaymentRecord
) -> None:
    context = first()
    paid = await payments(once, record).pay(context, operation="charge", request=ORDER)
    assert paid.id == context.side_effect("charge").id
    await once.trouble(lost=100)
    try:
        again = await payments(once, record).pay(second(context), operation="charge", request=ORDER)
    finally:
        await once.trouble()
    assert again == paid
    assert await charged(once, paid) == 1


@pytest.mark.requirement("LEASE-10")
@pytest.mark.parametrize("trouble", ["acted", "lost"])
async def test_a_payment_that_was_not_answered_is_asked_for_before_it_is_repeated(
    once: Process, record: PaymentRecord, trouble: str
) -> None:
    await once.trouble(**{trouble: 1})
    refused = (await once.ledger())["refused"]
    paid = await payments(once, record).pay(first(), operation="charge", request=ORDER)
    assert await charged(once, paid) == 1
    assert (await once.ledger())["refused"] == refused, "nothing was sent that was there"


@pytest.mark.requirement("LEASE-10")
async def test_a_successor_asks_what_became_of_a_payment_that_was_intended(
    careless: Process, record: PaymentRecord
) -> None:
    """The first attempt learns nothing more after the gateway has charged."""
    context = first(seconds=1.5)
    guard = payments(careless, record, deduplicates=False)
    await careless.trouble(acted=1, questions=100)
    with pytest.raises(CommitUnknown):
        await guard.pay(context, operation="charge", request=ORDER)
    await careless.trouble()
    paid = await guard.pay(second(context), operation="charge", request=ORDER)
    assert await charged(careless, paid) == 1


@pytest.mark.requirement("LEASE-10")
async def test_what_may_still_be_on_its_way_to_a_careless_gateway_is_left_to_a_person(
    careless: Process, record: PaymentRecord
) -> None:
    await careless.trouble(lost=1)
    context = first()
    guard = payments(careless, record, deduplicates=False)
    for holder in (context, second(context)):
        with pytest.raises(OutcomeUnknown):
            await guard.pay(holder, operation="charge", request=ORDER)
    ids = {each["id"] for each in (await careless.ledger())["charges"]}
    assert context.side_effect("charge").id not in ids


async def test_a_declined_payment_is_declined_for_every_attempt(
    once: Process, record: PaymentRecord
) -> None:
    context = first()
    guard = payments(once, record)
    too_much = Order(cents=LIMIT_CENTS + 1)
    for holder in (context, second(context)):
        with pytest.raises(Declined) as declined:
            await guard.pay(holder, operation="charge", request=too_much)
        assert declined.value.reason == "limit"


async def test_an_operation_is_one_request(once: Process, record: PaymentRecord) -> None:
    context = first()
    guard = payments(once, record)
    await guard.pay(context, operation="charge", request=ORDER)
    with pytest.raises(EffectConflict):
        await guard.pay(context, operation="charge", request=Order(cents=1))
    other = await guard.pay(context, operation="another", request=Order(cents=1))
    assert await charged(once, other) == 1


async def test_a_gateway_that_is_away_leaves_the_outcome_to_the_next_attempt(
    once: Process, record: PaymentRecord
) -> None:
    await once.trouble(lost=100)
    try:
        with pytest.raises(CommitUnknown):
            await payments(once, record).pay(first(seconds=1.0), operation="charge", request=ORDER)
    finally:
        await once.trouble()


@pytest.mark.requirement("LEASE-10")
async def test_a_stale_attempt_is_refused_before_it_sends_anything(
    once: Process, ledger: Downstream
) -> None:
    context = first()
    async with SqlGuard(ledger.writer_url) as sql:
        record = PostgresPayments(sql)
        await record.raise_fence(second(context))
        with pytest.raises(StaleToken):
            await payments(once, record).pay(context, operation="charge", request=ORDER)
    ids = {each["id"] for each in (await once.ledger())["charges"]}
    assert context.side_effect("charge").id not in ids


async def test_a_record_that_is_lost_costs_a_question(once: Process, tmp_path: Path) -> None:
    """The second attempt runs on another machine, whose file knows nothing."""
    context = first()
    paid = []
    for name, holder in (("one", context), ("two", second(context))):
        with contextlib.closing(SqlitePayments(tmp_path / name)) as record:
            paid.append(await payments(once, record).pay(holder, operation="charge", request=ORDER))
    assert paid[0] == paid[1]
    assert await charged(once, paid[0]) == 1


async def test_the_executors_account_may_write_the_record_and_delete_nothing(
    ledger: Downstream,
) -> None:
    writer = await asyncpg.connect(ledger.writer_url)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await writer.execute("delete from tenure_payment")
    finally:
        await writer.close()
