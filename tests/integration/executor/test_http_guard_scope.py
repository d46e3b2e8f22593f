"""What the lease permits, as a receiver of guarded HTTP sees it (LEASE-11)."""

from typing import Any

import httpx2
import pytest

from tenure.contract.scope import Scope as Permitted
from tenure.executor.context import Context
from tenure.executor.errors import OutOfScope, StaleToken
from tenure.executor.guards.http_receiver import Scope
from tenure.executor.guards.http_store import RequestStore
from tenure.executor.guards.http_wire import fencing_headers
from tests.support.leases import attempt
from tests.support.shop import Receiver, receiving


def successor_of(context: Context[None]) -> Context[None]:
    return attempt(context.task_id, 2)


async def post(receiver: Receiver, headers: Any) -> httpx2.Response:
    return await receiver.client.post("/orders", content=b"a", headers=headers)


def effect_of(scope: Scope) -> tuple[str, str]:
    return "order", str(scope["path"]).removeprefix("/")


@pytest.mark.requirement("LEASE-11")
async def test_a_receiver_refuses_what_the_lease_does_not_permit(store: RequestStore) -> None:
    """The handler names an object that it may touch, and asks for another."""
    permitted = Permitted(operations=("order",), objects=("orders/{order}",))
    async with receiving(store, effect_of=effect_of) as receiver:
        context = attempt(scope=permitted, input={"order": 17, "secret": "s"})
        assert "secret" not in fencing_headers(context)["Fencing-Scope"]
        answer = await receiver.guard.post(
            context, "/orders/17", operation="order", key="orders/17", content=b"right"
        )
        assert answer.status_code == 201
        with pytest.raises(OutOfScope):
            await receiver.guard.post(
                successor_of_scoped(context), "/orders/18", operation="order", key="orders/17"
            )
        assert receiver.shop.acts == [b"right"]
        assert (await receiver.guard.post(attempt(), "/any", operation="o")).status_code == 201


def successor_of_scoped(context: Context[None]) -> Context[None]:
    return attempt(context.task_id, 2, scope=context.scope.granted, input={"order": 17})


@pytest.mark.requirement("LEASE-11")
@pytest.mark.parametrize("value", ["", '"{}"', '"[]"', "bare", '"{\\"scopes\\":[]}"'])
async def test_a_scope_that_is_not_understood_permits_nothing(
    store: RequestStore, value: str
) -> None:
    async with receiving(store, effect_of=effect_of) as receiver:
        answer = await post(
            receiver, fencing_headers(attempt(), key="k") | {"Fencing-Scope": value}
        )
        assert (answer.status_code, receiver.shop.acts) == (400, [])


@pytest.mark.requirement("LEASE-11")
async def test_a_scope_that_no_header_can_carry_permits_nothing(store: RequestStore) -> None:
    long = attempt(scope=Permitted(objects=tuple(f"{n}{'x' * 290}" for n in range(100))))
    async with receiving(store, effect_of=effect_of) as receiver:
        answer = await post(receiver, fencing_headers(long, key="k"))
        assert (answer.status_code, receiver.shop.acts) == (400, [])
    async with receiving(store) as receiver:  # that asks nothing about it
        assert (await post(receiver, fencing_headers(long, key="k"))).status_code == 201


@pytest.mark.requirement("LEASE-11")
async def test_a_stale_attempt_is_refused_whatever_its_scope(store: RequestStore) -> None:
    async with receiving(store, effect_of=effect_of) as receiver:
        context = attempt()
        await receiver.guard.raise_fence(successor_of(context))
        with pytest.raises(StaleToken):
            await receiver.guard.post(context, "/orders/17", operation="order")
