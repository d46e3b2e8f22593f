"""A proxy between a client and a coordinator that loses answers the coordinator has given."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class AnswerLosingProxy:
    """Forwards connections. ``lose`` answers never reach the client: its connection is reset
    instead. ``lost`` has the first line of each, so that a test knows what was decided behind it.
    """

    def __init__(self, host: str, port: int) -> None:
        self.lose = 0
        self.lost: list[str] = []
        self._target = (host, port)
        self._links: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it or an answer is lost."""
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
            try:
                await self._both(reader, writer, server_reader, server_writer)
            finally:
                server_writer.transport.abort()
        except (ConnectionError, asyncio.CancelledError):
            pass  # ended from one side: the other is ended below
        finally:
            writer.transport.abort()
            self._links.discard(task)

    async def _both(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        directions = [
            asyncio.create_task(_forward(client, to_server)),
            asyncio.create_task(self._answers(server, to_client)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _answers(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(65536):
            if self.lose:
                self.lose -= 1
                self.lost.append(data.partition(b"\r\n")[0].decode())
                return
            client.write(data)
            await client.drain()

    async def close(self) -> None:
        """End every connection."""
        for task in tuple(self._links):
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def answer_losing_proxy(url: str) -> AsyncIterator[tuple[AnswerLosingProxy, str]]:
    """A proxy in front of the server in ``url``, and the URL that leads through it."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = AnswerLosingProxy(parts.hostname, parts.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, f"http://127.0.0.1:{port}"
    finally:
        server.close()
        await proxy.close()
