"""Stands for the provider: translates into ROT13 for 3 cents a call, and takes payments.

    python -m paid_calls.provider 8300 .tenure/provider

Calls that cost go through Tenure's middleware, which asks every key once and refuses old tokens.
Payments do as most gateways: the payer chooses an identifier, and each counts once.
"""

import codecs
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tenure.executor.guards.http_receiver import GuardMiddleware
from tenure.executor.guards.http_store import SqliteRequests

PRICE_CENTS = 3
TABLES = """
create table if not exists calls (key text primary key, cents integer not null);
create table if not exists payments (
    receipt integer primary key, payment_id text unique not null, cents integer not null
);
"""


class Books:
    """What the provider is owed and was paid. Each method is one transaction of its database."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.executescript("pragma synchronous = full;" + TABLES)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def charge(self, key: str) -> None:
        """A call costs its price, also when the same one is made again."""
        self._database.execute(
            "insert into calls values (?, ?) on conflict do nothing", (key, PRICE_CENTS)
        )

    def pay(self, payment_id: str, cents: int) -> None:
        """The same identifier is the same payment."""
        self._database.execute(
            "insert into payments (payment_id, cents) values (?, ?) on conflict do nothing",
            (payment_id, cents),
        )

    def payment(self, payment_id: str) -> dict[str, object] | None:
        """What was paid under an identifier."""
        row = self._database.execute(
            "select cents, receipt from payments where payment_id = ?", (payment_id,)
        ).fetchone()
        return (
            None if row is None else {"payment_id": payment_id, "cents": row[0], "receipt": row[1]}
        )

    def bill(self) -> dict[str, int]:
        """All in all."""
        calls, cents = self._database.execute(
            "select count(*), coalesce(sum(cents), 0) from calls"
        ).fetchone()
        payments, paid = self._database.execute(
            "select count(*), coalesce(sum(cents), 0) from payments"
        ).fetchone()
        return {"calls": calls, "payments": payments, "owed_cents": cents - paid}


def provider(books: Books, requests: SqliteRequests) -> GuardMiddleware:
    """The service. ``requests`` is what the middleware remembers of them."""

    async def translate(request: Request) -> JSONResponse:
        text = (await request.json())["text"]
        books.charge(request.headers["idempotency-key"])
        return JSONResponse({"text": codecs.encode(text, "rot13"), "cents": PRICE_CENTS})

    async def pay(request: Request) -> JSONResponse:
        payment_id = request.path_params["payment_id"]
        if request.method == "PUT":
            cents = (await request.json())["cents"]
            if cents <= 0:
                return JSONResponse({"error": "nothing to pay"}, 402)
            books.pay(payment_id, cents)
        payment = books.payment(payment_id)
        return JSONResponse(payment, 404 if payment is None else 200)

    async def bill(request: Request) -> JSONResponse:
        return JSONResponse(books.bill())

    service = Starlette(
        routes=[
            Route("/translations", translate, methods=["POST"]),
            Route("/payments/{payment_id}", pay, methods=["GET", "PUT"]),
            Route("/bill", bill),
        ]
    )
    return GuardMiddleware(
        service,
        requests,
        guarded=lambda scope: scope["path"] == "/translations",
        on_abandoned="repeat",  # a call that is made again is not charged again
        claim_seconds=2.0,
    )


def main(port: int, folder: Path) -> None:
    """Serve until Ctrl-C."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        closing(Books(folder / "books.db")) as books,
        closing(SqliteRequests(folder / "requests.db")) as requests,
    ):
        uvicorn.run(provider(books, requests), port=port)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
