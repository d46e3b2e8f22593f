"""Counts what crosses the wire between a client and PostgreSQL, by the messages of the protocol."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_EXECUTE, _SIMPLE_QUERY, _READY_FOR_QUERY = b"E", b"Q", b"Z"
_HEAD_BYTES = 5


@dataclass
class Traffic:
    """Message types seen since the last ``clear``, from the client and from the server."""

    client: Counter[bytes] = field(default_factory=Counter)
    server: Counter[bytes] = field(default_factory=Counter)

    @property
    def statements(self) -> int:
        """Statements that the client had executed, of either protocol."""
        return self.client[_EXECUTE] + self.client[_SIMPLE_QUERY]

    @property
    def round_trips(self) -> int:
        """How often the client waited for the server to be ready again."""
        return self.server[_READY_FOR_QUERY]

    def clear(self) -> None:
        """Count from here."""
        self.client.clear()
        self.server.clear()


class _Messages:
    """Cuts a stream into messages: a type of one byte, a length of four that counts itself."""

    def __init__(self, counter: Counter[bytes], *, begins_untyped: bool) -> None:
        self._counter = counter
        self._buffer = bytearray(b"?" if begins_untyped else b"")

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _HEAD_BYTES:
            end = 1 + int.from_bytes(self._buffer[1:_HEAD_BYTES])
            if len(self._buffer) < end:
                return
            self._counter[bytes(self._buffer[:1])] += 1
            del self._buffer[:end]


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[tuple[str, Traffic]]:
    """Another address of the server in ``url``, and what goes through it, on all connections."""
    parts = urlsplit(url)
    traffic = Traffic()
    pumps: set[asyncio.Task[None]] = set()

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, messages: _Messages
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                messages.feed(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(parts.hostname, parts.port)
        for pumping in (
            pump(reader, server_writer, _Messages(traffic.client, begins_untyped=True)),
            pump(server_reader, writer, _Messages(traffic.server, begins_untyped=False)),
        ):
            task = asyncio.create_task(pumping)
            pumps.add(task)
            task.add_done_callback(pumps.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    login = parts.netloc.rpartition("@")[0]
    try:
        yield (
            parts._replace(netloc=f"{login}@127.0.0.1:{port}", query="sslmode=disable").geturl(),
            traffic,
        )
    finally:
        listener.close()
        await asyncio.gather(*pumps)
        await listener.wait_closed()
