"""uvicorn inside our own process: our socket, our signals, a bounded graceful stop."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tenure.coordinator.errors import ListenRefused

KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections, so that it is they who close them."""
BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ListenRefused.

    Its protocol is named, since asyncio switches Nagle's algorithm off only where it is: without
    that, each answer on a kept connection would wait 40 ms for the client's acknowledgement.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        raise ListenRefused(
            f"{host}:{port} cannot be listened on: {error.strerror or error}.",
            next_step="Set TENURE_LISTEN to a free address of this machine, or to port 0.",
        ) from error


class HttpServer:
    """Serves one ASGI application on one socket."""

    def __init__(self, application: Any, listener: socket.socket, *, drain_seconds: float) -> None:
        self._listener = listener
        self._server = _Server(
            uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here depends on where a request came from
                lifespan="off",
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, round(drain_seconds)),
            )
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run(self) -> None:
        """Serve until ``stop``; returns when requests under way are answered, or given up."""
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            self._listener.close()

    def stop(self) -> None:
        """Accept nothing new."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn would raise SIGTERM again after a graceful stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
