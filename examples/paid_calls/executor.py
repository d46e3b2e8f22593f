"""The executor: ``tenure executor paid_calls.executor:app``.

``PAID_CALLS_URL`` is where the provider is.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import httpx2

from paid_calls.tasks import Bill, Paid, PayBill, Text, Translate, Translation
from tenure.executor import Context, Executor, Fail
from tenure.executor.errors import OutcomeUnknown
from tenure.executor.guards.http import HttpGuard
from tenure.executor.guards.payment import Declined, PaymentGuard, SqlitePayments

app = Executor("paid-calls", version="1")


class Gateway:
    """The provider's payments: what the guard needs to know of them."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def query(self, payment_id: str) -> Paid | None:
        """What became of it; None when the provider has never heard of it."""
        answer = await self._client.get(f"/payments/{payment_id}")
        if answer.status_code == 404:
            return None
        return Paid.model_validate_json(answer.raise_for_status().content)

    async def act(self, payment_id: str, request: Bill) -> Paid:
        """Pay under our identifier."""
        answer = await self._client.put(f"/payments/{payment_id}", json={"cents": request.cents})
        if answer.status_code == 402:
            raise Declined("nothing-to-pay")
        return Paid.model_validate_json(answer.raise_for_status().content)


@dataclass(frozen=True)
class Provider:
    """Its two sides, through their guards."""

    calls: HttpGuard
    payments: PaymentGuard[Bill, Paid]


@app.lifespan
@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    """Connections, and the record of what we meant to pay."""
    record_file = Path(os.environ.get("PAID_CALLS_RECORD", ".tenure/paid-calls.db"))
    async with httpx2.AsyncClient(base_url=os.environ["PAID_CALLS_URL"]) as client:
        with closing(SqlitePayments(record_file)) as record:
            payments = PaymentGuard(
                Gateway(client), record, receipt=Paid, gateway_deduplicates=True
            )
            yield Provider(HttpGuard(client), payments)


@app.task(Translate, effects="guarded", guards=lambda provider: [provider.calls])
async def translate(input: Text, context: Context[Provider]) -> Translation:
    """One call, whatever happens: repeated under the same key until it was answered."""
    answer = await context.resources.calls.post(
        context, "/translations", operation="translation", json={"text": input.text}
    )
    return Translation.model_validate_json(answer.raise_for_status().content)


@app.task(PayBill, effects="idempotent")
async def pay_bill(input: Bill, context: Context[Provider]) -> Paid:
    """Our identifier first, written down; and before anything is sent again, the question."""
    try:
        return await context.resources.payments.pay(context, operation="payment", request=input)
    except Declined as declined:
        raise Fail(declined.reason) from declined
    except OutcomeUnknown as unknown:
        raise Fail("payment-unknown", str(unknown)) from unknown
