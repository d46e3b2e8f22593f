"""Answers HTTP as a coordinator would, by script: for unit tests of the executor's HTTP side.

It keeps nothing and decides nothing; what is about durability or decisions runs on the real one.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Answering = Callable[[str, str, bytes], Response]
"""From method, path with query, and body to the answer."""


@dataclass
class StandIn:
    """A server on a free port. ``answer`` is replaced by tests."""

    url: str
    answer: Answering
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    callers: list[tuple[str, int]] = field(default_factory=list)


@contextmanager
def coordinator_stand_in() -> Iterator[StandIn]:
    """Serve from a thread, so that blocking clients can be tested in one process."""
    listener = socket.create_server(("127.0.0.1", 0))
    stand_in = StandIn(
        url=f"http://127.0.0.1:{listener.getsockname()[1]}",
        answer=lambda method, path, body: Response(status_code=404),
    )

    async def serve(request: Request) -> Response:
        body = await request.body()
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        stand_in.requests.append((request.method, path, body))
        stand_in.tokens.append(request.headers.get("authorization"))
        if request.client is not None:
            stand_in.callers.append((request.client.host, request.client.port))
        return stand_in.answer(request.method, path, body)

    app = Starlette(routes=[Route("/{path:path}", serve, methods=["GET", "POST"])])
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", lifespan="off", timeout_keep_alive=300)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield stand_in
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
