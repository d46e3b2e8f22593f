"""A payment gateway as a process of its own, which charges and then may not answer.

``python -m tests.support.gateway`` prints its port. It takes an identifier once when it was started
with ``--deduplicates``; else every order is a charge. ``POST /trouble`` with ``acted`` or ``lost``
makes it drop so many of the next orders' connections after, or before, it has acted; with
``questions`` it drops those that ask.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from pydantic import BaseModel

from tenure.executor.guards.payment import Declined
from tests.support.repository import REPOSITORY

LIMIT_CENTS = 1_000_000


class Order(BaseModel):
    """What is to be paid."""

    cents: int


class Charge(BaseModel):
    """What was paid."""

    id: str
    cents: int
    number: int


class Http:
    """The gateway as an application writes it down."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def query(self, payment_id: str) -> Charge | None:
        """By our identifier."""
        answer = await self._client.get(f"/charges/{payment_id}")
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return Charge.model_validate_json(answer.content)

    async def act(self, payment_id: str, request: Order) -> Charge:
        """Under our identifier; a duplicate is answered with what was charged."""
        answer = await self._client.post(
            "/charges", json={"id": payment_id, "cents": request.cents}
        )
        if answer.status_code == 402:
            raise Declined("limit", "above the limit.")
        if answer.status_code != 409:
            answer.raise_for_status()
        return Charge.model_validate_json(answer.content)


class HttpNow:
    """The same for handlers in threads."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    def query(self, payment_id: str) -> Charge | None:
        """By our identifier."""
        answer = self._client.get(f"/charges/{payment_id}")
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return Charge.model_validate_json(answer.content)

    def act(self, payment_id: str, request: Order) -> Charge:
        """Under our identifier; a duplicate is answered with what was charged."""
        answer = self._client.post("/charges", json={"id": payment_id, "cents": request.cents})
        if answer.status_code == 402:
            raise Declined("limit", "above the limit.")
        if answer.status_code != 409:
            answer.raise_for_status()
        return Charge.model_validate_json(answer.content)


@dataclass(frozen=True)
class Process:
    """The gateway that runs."""

    url: str
    client: httpx2.AsyncClient

    async def trouble(self, **drops: int) -> None:
        """See the module."""
        (await self.client.post("/trouble", json=drops)).raise_for_status()

    async def ledger(self) -> dict[str, Any]:
        """``charges`` in order, how many orders were ``refused`` as duplicates, and how many
        connections were ``dropped``."""
        found: dict[str, Any] = (await self.client.get("/ledger")).json()
        return found


@asynccontextmanager
async def gateway(*, deduplicates: bool = True) -> AsyncIterator[Process]:
    """Runs for the length of a block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.gateway",
        *(["--deduplicates"] if deduplicates else []),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(await process.stdout.readline())}"
        async with httpx2.AsyncClient(base_url=url, timeout=60.0) as client:
            yield Process(url, client)
    finally:
        process.kill()
        await process.wait()


@dataclass
class _Books:
    deduplicates: bool
    charges: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0
    dropped: int = 0
    drops: dict[str, int] = field(default_factory=dict)

    def _drops(self, kind: str) -> bool:
        self.drops[kind] = self.drops.get(kind, 0) - 1
        drops = self.drops[kind] >= 0
        self.dropped += drops
        return drops

    def _of(self, payment_id: str) -> dict[str, Any] | None:
        return next((each for each in self.charges if each["id"] == payment_id), None)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, object] | None:
        """None: the connection is dropped."""
        match method, path:
            case "POST", "/charges":
                return self._order(json.loads(body))
            case "GET", "/ledger":
                return 200, {
                    "charges": self.charges,
                    "refused": self.refused,
                    "dropped": self.dropped,
                }
            case "POST", "/trouble":
                self.drops = json.loads(body)
                return 200, {}
        if self._drops("questions"):
            return None
        charge = self._of(path.rpartition("/")[2])
        return (404, {}) if charge is None else (200, charge)

    def _order(self, order: dict[str, Any]) -> tuple[int, object] | None:
        if self._drops("lost"):
            return None
        known = self._of(order["id"])
        if known is not None and self.deduplicates:
            self.refused += 1
            return 409, known
        if order["cents"] > LIMIT_CENTS:
            return 402, {}
        charge = {**order, "number": len(self.charges) + 1}
        self.charges.append(charge)
        return None if self._drops("acted") else (201, charge)


async def _serve(books: _Books) -> None:
    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = next(
                (
                    int(line.split(":")[1])
                    for line in head.splitlines()
                    if "content-length:" in line
                ),
                0,
            )
            method, path, _ = head.split(" ", 2)
            answer = books.answer(method.upper(), path, await reader.readexactly(length))
            if answer is not None:
                status, value = answer
                body = json.dumps(value).encode()
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n"
                    "content-type: application/json\r\nconnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # a sender that went away
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(_Books("--deduplicates" in sys.argv)))
