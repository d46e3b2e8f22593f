"""Has texts translated, and pays what it cost: ``python -m paid_calls.ask TEXT…``."""

import os
import sys

import httpx2

from paid_calls.tasks import Bill, PayBill, Text, Translate
from tenure.client import Client


def main(texts: list[str]) -> None:
    """Texts that are asked for again are translated again, for money."""
    with (
        Client.from_environment() as client,
        httpx2.Client(base_url=os.environ["PAID_CALLS_URL"]) as provider,
    ):
        tasks = client.submit_many(Translate, [Text(text=text) for text in texts])
        for text, task in zip(texts, tasks, strict=True):
            translation = task.result(timeout=60)
            print(f"{text} -> {translation.text}, {translation.cents} cents")
        bill = provider.get("/bill").json()
        print(f"{bill['calls']} calls, {bill['owed_cents']} cents owed")
        payment = client.submit(
            PayBill,
            Bill(cents=bill["owed_cents"]),
            # The same bill is not paid twice, also when this program is run twice at once.
            idempotency_key=f"bill for {bill['calls']} calls",
        )
        paid = payment.result(timeout=60)
        print(f"paid {paid.cents} cents, receipt {paid.receipt}")
        print(f"{provider.get('/bill').json()['owed_cents']} cents owed")


if __name__ == "__main__":
    main(sys.argv[1:])
