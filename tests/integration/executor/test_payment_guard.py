"""A payment happens once, although its gateway acts and does not answer (LEASE-10)."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import asyncpg
import httpx2
import pytest

from tenure.contract.scope import Scope
from tenure.executor.clock import Clock
from tenure.executor.context import Context
from tenure.executor.core.paying import Known
from tenure.executor.errors import (
    AuthorityOver,
    CommitUnknown,
    EffectConflict,
    OutcomeUnknown,
    OutOfScope,
    StaleToken,
)
from tenure.executor.guards.payment import (
    BlockingPaymentGuard,
    Declined,
    Entry,
    PaymentGuard,
    PaymentRecord,
    SqlitePayments,
)
from tenure.executor.guards.payment_postgres import PostgresPayments
from tenure.executor.guards.payment_psycopg import PsycopgPayments
from tenure.executor.guards.payment_table import table
from tenure.executor.guards.psycopg import PsycopgGuard
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.side_effects import SideEffect
from tests.support.attempts import HandClock
from tests.support.downstream import Downstream, downstream
from tests.support.gateway import LIMIT_CENTS, Charge, Http, HttpNow, Order, Process, gateway
from tests.support.isolation import DatabaseServer
from tests.support.leases import attempt
from tests.support.waiting import eventually

ORDER = Order(cents=1250)


@pytest.fixture(scope="module")
async def ledger(database_server: DatabaseServer) -> AsyncIterator[Downstream]:
    async with database_server.fresh() as database, downstream(database.admin_url) as made:
        await made.owner.execute(table(roles=[made.role]))
        yield made


class Fenced(PaymentRecord, Protocol):
    """A record that may be named in ``guards``."""

    async def raise_fence(self, context: Context[Any]) -> None:
        """Shut older attempts out."""


@dataclass
class InThreads:
    """A record of handlers in threads, as those on the event loop have theirs."""

    record: SqlitePayments | PsycopgPayments

    @property
    def shared(self) -> bool:
        return self.record.shared

    async def raise_fence(self, context: Context[Any]) -> None:
        await self.record.raise_fence(context)

    async def intend(self, context: Context[Any], begun: SideEffect, digest: str) -> Entry:
        return await asyncio.to_thread(self.record.intend_now, context, begun, digest)

    async def settle(self, context: Context[Any], begun: SideEffect, entry: Entry) -> None:
        await asyncio.to_thread(self.record.settle_now, context, begun, entry)


@pytest.fixture(params=["sqlite", "postgres", "sqlite in threads", "postgres in threads"])
async def record(
    request: pytest.FixtureRequest, tmp_path: Path, ledger: Downstream
) -> AsyncIterator[Fenced]:
    if request.param == "postgres":
        async with SqlGuard(ledger.writer_url) as guard:
            yield PostgresPayments(guard)
    elif request.param == "postgres in threads":
        with PsycopgGuard(ledger.writer_url) as blocking:
            yield InThreads(PsycopgPayments(blocking))
    else:
        with contextlib.closing(SqlitePayments(tmp_path / "payments.db")) as payments:
            yield InThreads(payments) if request.param == "sqlite in threads" else payments


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


class Threaded:
    """The guard of handlers in threads, called from the event loop."""

    def __init__(self, url: str, record: SqlitePayments | PsycopgPayments, **options: Any) -> None:
        self._url, self._record, self._options = url, record, options

    async def pay(
        self, context: Context[Any], *, operation: str, request: Order, key: str = ""
    ) -> Charge:
        def work() -> Charge:
            with httpx2.Client(base_url=self._url, timeout=60.0) as client:
                guard: BlockingPaymentGuard[Order, Charge] = BlockingPaymentGuard(
                    HttpNow(client), self._record, **self._options
                )
                return guard.pay(context, operation=operation, request=request, key=key)

        return await asyncio.to_thread(work)


def payments(
    process: Process, record: PaymentRecord, *, deduplicates: bool = True
) -> PaymentGuard[Order, Charge] | Threaded:
    if isinstance(record, InThreads):
        return Threaded(
            process.url, record.record, receipt=Charge, gateway_deduplicates=deduplicates
        )
    return PaymentGuard(
        Http(process.client), record, receipt=Charge, gateway_deduplicates=deduplicates
    )


def first(clock: Clock | None = None) -> Context[None]:
    return attempt(ordinal=1, clock=clock)


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
    clock = HandClock()
    context = first(clock)
    guard = payments(careless, record, deduplicates=False)
    await careless.trouble(acted=1, questions=1000)
    paying = asyncio.create_task(guard.pay(context, operation="charge", request=ORDER))
    charge = context.side_effect("charge").id

    async def acted() -> bool:
        return charge in {each["id"] for each in (await careless.ledger())["charges"]}

    await eventually(acted)
    clock.pass_seconds(60.0)
    with pytest.raises(CommitUnknown):
        await paying
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
    clock = HandClock()
    before = (await once.ledger())["dropped"]
    await once.trouble(lost=1000)
    try:
        paying = asyncio.create_task(
            payments(once, record).pay(first(clock), operation="charge", request=ORDER)
        )

        async def sent() -> bool:
            return bool((await once.ledger())["dropped"] > before)

        await eventually(sent)
        clock.pass_seconds(60.0)
        with pytest.raises(CommitUnknown):
            await paying
    finally:
        await once.trouble()


@pytest.mark.requirement("LEASE-10")
async def test_a_stale_attempt_is_refused_before_it_sends_anything(
    once: Process, record: Fenced
) -> None:
    context = first()
    await record.raise_fence(second(context))
    with pytest.raises(StaleToken) as stale:
        await payments(once, record).pay(context, operation="charge", request=ORDER)
    assert stale.value.seen_token == second(context).fencing_token
    ids = {each["id"] for each in (await once.ledger())["charges"]}
    assert context.side_effect("charge").id not in ids


@pytest.mark.requirement("LEASE-10")
async def test_an_attempt_whose_lease_is_over_by_the_record_s_clock_sends_nothing(
    once: Process, record: Fenced
) -> None:
    """By its own clock it may act."""
    context = attempt(expires_in_seconds=-1.0, ordinal=1)
    with pytest.raises(AuthorityOver):
        await payments(once, record).pay(context, operation="charge", request=ORDER)
    ids = {each["id"] for each in (await once.ledger())["charges"]}
    assert context.side_effect("charge").id not in ids


@pytest.mark.requirement("LEASE-11")
async def test_what_the_lease_does_not_permit_is_not_written_down(record: Fenced) -> None:
    """The guard has asked before; this is the record, asked by whoever does not."""
    context = attempt(scope=Scope(operations=("charge",), objects=("orders/{id}",)),
                      input={"id": 17}, ordinal=1)  # fmt: skip
    await record.raise_fence(context)
    for operation, key in (("refund", "orders/17"), ("charge", "orders/18"), ("charge", "")):
        with pytest.raises(OutOfScope):
            await record.intend(context, context.side_effect(operation, key=key), "digest")
    permitted = context.side_effect("charge", key="orders/17")
    assert (await record.intend(context, permitted, "digest")).known == "new"
    await record.settle(context, permitted, Entry(Known.PAID, "digest", "{}"))
    assert (await record.intend(context, permitted, "digest")).known == "paid"


@pytest.mark.requirement("LEASE-10")
async def test_what_was_paid_is_written_down_also_when_the_lease_is_over_meanwhile(
    tmp_path: Path,
) -> None:
    now = [time.time()]

    class Slow:
        async def query(self, payment_id: str) -> Charge | None:
            raise AssertionError("the record knows")

        async def act(self, payment_id: str, request: Order) -> Charge:
            now[0] += 3600.0
            return Charge(id=payment_id, cents=request.cents, number=1)

    with contextlib.closing(SqlitePayments(tmp_path / "slow", clock=lambda: now[0])) as record:
        guard = PaymentGuard(Slow(), record, receipt=Charge, gateway_deduplicates=False)
        context = first()
        paid = await guard.pay(context, operation="charge", request=ORDER)
        later = attempt(context.task_id, 2, expires_in_seconds=7200.0, ordinal=2)
        assert await guard.pay(later, operation="charge", request=ORDER) == paid


def test_a_thread_that_is_to_end_does_not_wait_for_a_gateway_that_is_away(tmp_path: Path) -> None:
    class Away:
        def query(self, payment_id: str) -> Charge | None:
            raise ConnectionError("away")

        def act(self, payment_id: str, request: Order) -> Charge:
            raise ConnectionError("away")

    context = first()
    context.ask_to_end()
    with contextlib.closing(SqlitePayments(tmp_path / "away")) as record:
        guard = BlockingPaymentGuard(Away(), record, receipt=Charge, gateway_deduplicates=True)
        with pytest.raises(CommitUnknown, match="was to end"):
            guard.pay(context, operation="charge", request=ORDER)


class Confused:
    """Takes the money and says so wrongly, or not at all; asked for it, it errs at first."""

    def __init__(self, answer: object, first_word: object) -> None:
        self.charges: list[str] = []
        self.asked = 0
        self._answer, self._first_word = answer, first_word

    def query_now(self, payment_id: str) -> Any:
        self.asked += 1
        if self.asked > 1:
            return Charge(id=payment_id, cents=ORDER.cents, number=1)
        return _said(self._first_word)

    def act_now(self, payment_id: str, request: Order) -> Any:
        self.charges.append(payment_id)
        return _said(self._answer)

    async def query(self, payment_id: str) -> Any:
        return self.query_now(payment_id)

    async def act(self, payment_id: str, request: Order) -> Any:
        return self.act_now(payment_id, request)


def _said(what: object) -> object:
    if isinstance(what, Exception):
        raise what
    return what


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("answer", [ConnectionError("lost"), None, {"id": "1"}], ids=repr)
@pytest.mark.parametrize("first_word", [Declined("who are you?"), "paid"], ids=repr)
async def test_only_what_was_sent_is_declined_and_only_a_receipt_is_an_answer(
    tmp_path: Path, kind: str, answer: object, first_word: object
) -> None:
    confused, context = Confused(answer, first_word), first()
    blocking = SimpleNamespace(query=confused.query_now, act=confused.act_now)
    how: Any = {"receipt": Charge, "gateway_deduplicates": True}
    what: Any = {"operation": "charge", "request": ORDER}
    with contextlib.closing(SqlitePayments(tmp_path / "payments")) as record:
        if kind == "coroutine":
            charge = await PaymentGuard(confused, record, **how).pay(context, **what)
        else:
            guard = BlockingPaymentGuard(blocking, record, **how)
            charge = await asyncio.to_thread(lambda: guard.pay(context, **what))
    assert (charge.id, len(confused.charges), confused.asked) == (confused.charges[0], 1, 2)


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
