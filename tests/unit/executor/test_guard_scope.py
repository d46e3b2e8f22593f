"""No guard begins what the lease does not permit; a key tells effects of one operation apart."""

from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
import sqlalchemy
from obstore.store import LocalStore
from pydantic import BaseModel

from tenure.contract.scope import Scope
from tenure.executor.context import Context
from tenure.executor.errors import GuardUnavailable, OutOfScope
from tenure.executor.guards.http import BlockingHttpGuard, HttpGuard
from tenure.executor.guards.objects import ObjectGuard
from tenure.executor.guards.payment import PaymentGuard, SqlitePayments
from tenure.executor.guards.psycopg import PsycopgGuard
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.guards.sql_common import inbox_name
from tenure.executor.guards.sqlalchemy import SqlAlchemyGuard
from tenure.executor.scope import GrantedScope
from tests.support.leases import attempt

NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"
SCOPE = Scope(operations=("write",), objects=("orders/17",))

Act = Callable[[Path, Context[None], str, str], Awaitable[None]]


class Order(BaseModel):
    """What is paid, and the receipt."""

    id: str = ""


class Bank:
    """Takes everything."""

    async def query(self, payment_id: str) -> Order | None:
        return None

    async def act(self, payment_id: str, request: Order) -> Order:
        return Order(id=payment_id)


async def sql(folder: Path, context: Context[None], operation: str, key: str) -> None:
    async with SqlGuard(NOWHERE).transaction(context, operation=operation, key=key):
        pass


async def psycopg(folder: Path, context: Context[None], operation: str, key: str) -> None:
    with PsycopgGuard(NOWHERE).transaction(context, operation=operation, key=key):
        pass


async def orm(folder: Path, context: Context[None], operation: str, key: str) -> None:
    guard = SqlAlchemyGuard(sqlalchemy.create_engine(NOWHERE.replace("ql:", "ql+psycopg:")))
    with guard.transaction(context, operation=operation, key=key):
        pass


async def http(folder: Path, context: Context[None], operation: str, key: str) -> None:
    transport = httpx2.MockTransport(lambda request: httpx2.Response(201))
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        await HttpGuard(client).post(context, "/orders", operation=operation, key=key)


async def blocking_http(folder: Path, context: Context[None], operation: str, key: str) -> None:
    transport = httpx2.MockTransport(lambda request: httpx2.Response(201))
    with httpx2.Client(transport=transport, base_url="http://shop") as client:
        BlockingHttpGuard(client).post(context, "/orders", operation=operation, key=key)


async def objects(folder: Path, context: Context[None], operation: str, key: str) -> None:
    guard = ObjectGuard(LocalStore(folder), operations=(operation,))
    async with guard.outputs(context, operation=operation, key=key):
        pass


async def payment(folder: Path, context: Context[None], operation: str, key: str) -> None:
    with closing(SqlitePayments(folder / "payments.db")) as record:
        guard = PaymentGuard(Bank(), record, receipt=Order, gateway_deduplicates=True)
        await guard.pay(context, operation=operation, key=key, request=Order())


ACTS: dict[str, Act] = {
    act.__name__: act for act in (sql, psycopg, orm, http, blocking_http, objects, payment)
}


@pytest.mark.requirement("LEASE-11")
@pytest.mark.parametrize("name", list(ACTS))
async def test_no_guard_begins_what_the_lease_does_not_permit(name: str, tmp_path: Path) -> None:
    act = ACTS[name]
    context = attempt(scope=SCOPE)
    for operation, key in (("write", "orders/18"), ("write", ""), ("delete", "orders/17")):
        with pytest.raises(OutOfScope):
            await act(tmp_path, context, operation, key)
    assert [each.name for each in context.side_effects] == []
    try:
        await act(tmp_path, context, "write", "orders/17")
    except GuardUnavailable:
        pass  # it was permitted, and nobody is there
    assert [(each.name, each.key) for each in context.side_effects] == [("write", "orders/17")]


@pytest.mark.requirement("LEASE-11")
def test_a_receiver_reads_what_the_sender_does_whatever_the_input_has() -> None:
    """Fields that no pattern reads are neither sent nor in the way of the others."""
    objects = ("{text}", "{number}", "{real}", "{flag}", "{nothing}", "{many}", "{nul}", "plain")
    input = {
        "text": "a", "number": 17, "real": 1e16, "flag": True, "secret": "s",
        "nothing": None, "many": [1], "nul": "\0",
    }  # fmt: skip
    sent = GrantedScope(Scope(objects=objects), input, Scope(operations=("write",)))
    said = sent.to_json()
    assert said is not None
    read = GrantedScope.from_json(said)
    assert read.fields == {"text": "a", "number": "17", "real": "1e+16", "flag": "true"}
    permitted = ["a", "17", "1e+16", "true", "plain"]
    for scope in (sent, read):
        for target in (*permitted, "", "None", "[1]", "\0"):
            assert scope.permits("write", target) is (target in permitted), target
        assert not scope.permits("read", "a")
    assert read.to_json() == said


def test_no_two_effects_have_one_name_in_the_inbox() -> None:
    pairs = [("a", ""), ("a", "b"), ("a b", ""), ("a", " b"), ('["a", "b"]', ""), ("", "ab")]
    assert len({inbox_name(operation, key) for operation, key in pairs}) == len(pairs)


async def test_requests_carry_the_trace_of_the_submission_unless_they_have_one() -> None:
    sent: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers.get("traceparent"))
        return httpx2.Response(201)

    context = attempt()
    context.traceparent = "00-5f0c9a1e7d3b48269c41d0e2f7a8b613-4e1d9c20b7a35f68-01"
    async with httpx2.AsyncClient(
        transport=httpx2.MockTransport(answer), base_url="http://shop"
    ) as client:
        guard = HttpGuard(client)
        await guard.post(context, "/orders", operation="a")
        await guard.post(context, "/orders", operation="b", headers={"TraceParent": "mine"})
        await guard.post(attempt(), "/orders", operation="c")
    assert sent == [context.traceparent, "mine", None]
