"""``/healthz``, ``/readyz`` and ``/metrics`` over plain HTTP/1.1; three GETs need no framework.

Alive judges the own event loop only: an answer is the proof. Ready needs the servers.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tenure.executor.errors import ListenRefused
from tenure.executor.metrics import CONTENT_TYPE

_REQUEST_SECONDS: Final = 5.0
_REQUEST_BYTES: Final = 16_384
_TEXT: Final = "text/plain; charset=utf-8"
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed"}


@dataclass(frozen=True, slots=True)
class Answer:
    """Status code, content type and body."""

    status: int
    body: bytes
    content_type: str = _TEXT


@dataclass(frozen=True, slots=True)
class StatusPages:
    """``not_ready``: why the process cannot be used; empty when it can. ``metrics``: the page."""

    not_ready: Callable[[], str]
    metrics: Callable[[], bytes]

    def answer(self, method: str, path: str) -> Answer:
        """The answer to one request."""
        if method not in ("GET", "HEAD"):
            return Answer(405, b"only GET\n")
        match path.partition("?")[0]:
            case "/healthz":
                return Answer(200, b"alive\n")
            case "/readyz":
                reason = self.not_ready()
                if reason:
                    return Answer(503, f"not ready: {reason}\n".encode())
                return Answer(200, b"ready\n")
            case "/metrics":
                return Answer(200, self.metrics(), CONTENT_TYPE)
        return Answer(404, b"/healthz, /readyz or /metrics\n")


async def serve(
    address: tuple[str, int], pages: StatusPages, *, variable: str = "TENURE_EXECUTOR_LISTEN"
) -> asyncio.Server:
    """Answer at ``address`` (port 0: a free one) until the server is closed. ``variable`` is where
    the address was set.

    Raises ListenRefused.
    """

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that goes away or talks nonsense gets no answer.
        with suppress(OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.partition(b"\r\n")[0].decode("ascii").split(" ")
                writer.write(_response(pages.answer(method, path), with_body=method != "HEAD"))
                await writer.drain()
        writer.close()

    host, port = address
    try:
        return await asyncio.start_server(connected, host, port, limit=_REQUEST_BYTES)
    except OSError as error:
        raise ListenRefused(
            f"{host}:{port} cannot be listened on: {error.strerror or error}.",
            next_step=f"Set {variable} to a free address of this machine.",
        ) from error


def _response(answer: Answer, *, with_body: bool) -> bytes:
    reason = _REASONS.get(answer.status, "Service Unavailable")
    head = (
        f"HTTP/1.1 {answer.status} {reason}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (answer.body if with_body else b"")
