"""The checks of an HTTP receiver, whoever wrote its half. Needs the extra ``http``.

Judged by statuses alone: 412 for an older token and for a lease that is over, 422 for another body
under the same key, 400 for what is missing, and the first answer for a repetition.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx2

from tenure.executor.context import Context
from tenure.executor.errors import GuardUnavailable
from tenure.executor.guards.conformance import (
    Check,
    Outcome,
    Unexpected,
    probe,
    run,
    successor,
)
from tenure.executor.guards.http import HttpGuard
from tenure.executor.guards.http_wire import fencing_headers

_MISSING = 400
_STALE = 412
_OTHER = 422


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One request that changes something: what it is, and with what body. It acts each time it is
    let through, so it is a receiver's for tests."""

    client: httpx2.AsyncClient
    url: str
    method: str = "POST"
    body: bytes = b"{}"
    content_type: str = "application/json"
    fence_url: str | None = None

    async def send(
        self, context: Context[Any], *, leave_out: str | None = None, body: bytes | None = None
    ) -> httpx2.Response:
        """One guarded request, not repeated."""
        headers = fencing_headers(context, key=context.side_effect("conformance").id)
        if leave_out is not None:
            del headers[leave_out]
        return await self.client.request(
            self.method,
            self.url,
            content=self.body if body is None else body,
            headers=headers | {"Content-Type": self.content_type},
        )


async def check_http(endpoint: Endpoint) -> list[Outcome]:
    """Its outcomes, in order. Raises GuardUnavailable when the receiver is lost."""
    guard = HttpGuard(endpoint.client, fence_url=endpoint.fence_url)

    async def answered(context: Context[Any], *statuses: int, **how: Any) -> httpx2.Response:
        """Raises Unexpected for another status; without ``statuses`` it has to succeed."""
        response = await endpoint.send(context, **how)
        wanted = response.is_success if not statuses else response.status_code in statuses
        if not wanted:
            expected = " or ".join(map(str, statuses)) or "a success"
            raise Unexpected(f"expected {expected}, got {response.status_code}")
        return response

    def same(first: httpx2.Response, again: httpx2.Response) -> None:
        if (first.status_code, first.content) != (again.status_code, again.content):
            raise Unexpected("the repetition got another answer")

    async def once() -> None:
        context = probe()
        first = await answered(context)
        same(first, await answered(context))
        same(first, await answered(successor(context)))

    async def at_once() -> None:
        context = probe()
        answers = await asyncio.gather(*(endpoint.send(context) for _ in range(8)))
        acted = {each.content for each in answers if each.is_success}
        if len(acted) != 1 or any(
            not each.is_success and each.status_code != 409 for each in answers
        ):
            raise Unexpected(f"got {sorted(each.status_code for each in answers)}")

    async def other() -> None:
        context = probe()
        await answered(context)
        await answered(context, _OTHER, body=endpoint.body + b" ")

    async def older() -> None:
        context = probe()
        await answered(successor(context))
        await answered(context, _STALE)

    async def untouched() -> None:
        context = probe()
        await guard.raise_fence(context)
        await guard.raise_fence(successor(context))
        await answered(context, _STALE)

    async def over() -> None:
        await answered(probe(lease_seconds=-5.0), _STALE)

    async def missing() -> None:
        for header in ("Idempotency-Key", "Fencing-Token"):
            await answered(probe(), _MISSING, leave_out=header)

    checks: dict[str, Check] = {
        "a repetition gets the first answer, in every attempt": once,
        "of eight requests at once one acts": at_once,
        "the same key with another body is refused": other,
        "an older token is refused": older,
        "an old holder is refused before its successor has asked": untouched,
        "an equal token is refused after the end of its lease": over,
        "a request without key or token is refused": missing,
    }
    try:
        return await run(checks)
    except httpx2.TransportError as error:
        said = str(error) or type(error).__name__
        raise GuardUnavailable(f"the receiver did not answer: {said}.") from error
