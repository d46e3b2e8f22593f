"""A TCP proxy between a client and a server that can be poisoned, each direction for itself.

It may delay, freeze without closing, drop what a server answers, cut, leave a connection half open,
or pass everything through a filter that knows the protocol. Poison acts on connections that are
open and on later ones alike.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

_CHUNK_BYTES: Final = 65_536


class CutNow(Exception):
    """Raised by a filter: the connection ends here, in both directions."""


class Filter(Protocol):
    """Sees one connection. Each call gives what is to be forwarded of what arrived."""

    def to_server(self, data: bytes) -> bytes:
        """May raise CutNow."""

    def to_client(self, data: bytes) -> bytes:
        """May raise CutNow."""


class Unfiltered:
    """Forwards everything."""

    def to_server(self, data: bytes) -> bytes:
        return data

    def to_client(self, data: bytes) -> bytes:
        return data


@dataclass
class Direction:
    """The poison of one direction."""

    latency_seconds: float = 0.0
    dropping: bool = False  # read and thrown away: the other side believes it was sent
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._flowing.set()

    def freeze(self) -> None:
        """Nothing gets through, and nobody is told."""
        self._flowing.clear()

    def thaw(self) -> None:
        """What had been held goes on."""
        self._flowing.set()

    async def passes(self, data: bytes) -> bytes:
        """What is let through, once it is."""
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
        await self._flowing.wait()
        return b"" if self.dropping else data


class ToxicProxy:
    """``url`` is where clients connect instead of the upstream."""

    def __init__(self, upstream_url: str, make_filter: Callable[[], Filter] = Unfiltered) -> None:
        self._upstream = urlsplit(upstream_url)
        self._make_filter = make_filter
        self.to_server = Direction()
        self.to_client = Direction()
        self.refuse_connections = False
        self._open: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The upstream's URL with this proxy's address in it."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        login, separator, _ = self._upstream.netloc.rpartition("@")
        return self._upstream._replace(netloc=f"{login}{separator}127.0.0.1:{port}").geturl()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def cut(self) -> None:
        """Reset every open connection on both sides."""
        for client, server in self._open:
            client.transport.abort()
            server.transport.abort()

    def leave_half_open(self) -> None:
        """The server's side is reset, the client's stays and hears nothing more."""
        self.to_client.freeze()
        for _, server in self._open:
            server.transport.abort()

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refuse_connections:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(
                self._upstream.hostname, self._upstream.port
            )
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, server_writer)
        self._open.add(pair)
        filter_ = self._make_filter()
        pumps = [
            asyncio.create_task(_pump(reader, server_writer, self.to_server, filter_.to_server)),
            asyncio.create_task(_pump(server_reader, writer, self.to_client, filter_.to_client)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._open.discard(pair)
            for end in pair:
                end.transport.abort()


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    direction: Direction,
    change: Callable[[bytes], bytes],
) -> None:
    with suppress(ConnectionError, CutNow):
        while data := await reader.read(_CHUNK_BYTES):
            if passed := await direction.passes(change(data)):
                writer.write(passed)
                await writer.drain()
        await direction.passes(b"")  # a frozen direction tells nobody that the other side went


@asynccontextmanager
async def toxic(
    upstream_url: str, make_filter: Callable[[], Filter] = Unfiltered
) -> AsyncIterator[ToxicProxy]:
    """A proxy for the length of a block."""
    proxy = ToxicProxy(upstream_url, make_filter)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
