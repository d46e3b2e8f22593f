"""An application behind the receiver's half of guarded HTTP, in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tenure.executor.context import Context
from tenure.executor.guards.http import HttpGuard
from tenure.executor.guards.http_receiver import GuardMiddleware, Receive, Scope, Send
from tenure.executor.guards.http_store import RequestStore


@dataclass
class Shop:
    """An application that acts for each request that reaches it."""

    acts: list[bytes] = field(default_factory=list)
    status: list[int] = field(default_factory=list)  # of the next answers; then 201
    size: int = 0  # of the answer's body, on top
    raises: type[Exception] | None = None
    hold: asyncio.Event | None = None
    within: Callable[[Scope], Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        self.acts.append(body)
        if self.hold is not None:
            await self.hold.wait()
        if self.within is not None:
            await self.within(scope)
        if self.raises is not None:
            raise self.raises
        status = self.status.pop(0) if self.status else 201
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"x-order", b"17"), (b"set-cookie", b"session=1")],
            }
        )
        await send({"type": "http.response.body", "body": b"done " + body, "more_body": True})
        await send({"type": "http.response.body", "body": b"." * self.size})


@dataclass
class Receiver:
    """The shop behind the middleware, and a guard that sends to it."""

    shop: Shop
    middleware: GuardMiddleware
    client: httpx2.AsyncClient
    guard: HttpGuard

    async def order(
        self, context: Context[None], body: bytes = b"a", operation: str = "order"
    ) -> httpx2.Response:
        return await self.guard.post(context, "/orders", operation=operation, content=body)


@contextlib.asynccontextmanager
async def receiving(store: RequestStore, **options: Any) -> AsyncIterator[Receiver]:
    shop = Shop()
    middleware = GuardMiddleware(shop, store, **options)
    transport = httpx2.ASGITransport(middleware, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield Receiver(shop, middleware, client, HttpGuard(client))
