"""An ASGI application on a port of this machine, served in this process."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from tenure.cli.local.ports import LOOPBACK


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Signals are pytest's."""


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Its URL, for the length of a block."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        # Who keeps a connection does not find it closed under its next request.
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            timeout_keep_alive=300,
            timeout_graceful_shutdown=1,
        )
        server = _Server(config)
        listener.listen()
        running = asyncio.create_task(server._serve([listener]))
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running
