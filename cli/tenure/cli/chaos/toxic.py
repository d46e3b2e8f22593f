"""A TCP proxy between a client and a server that can be poisoned, each direction for itself.

It may delay, freeze without closing, drop what a server answers, cut, leave a connection half open,
or pass everything through a filter that knows the protocol. Latency, freezing and dropping act on
connections that are open and on later ones alike; ``cut`` and ``leave_half_open`` act on those that
are open, so that a new one is whole.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol
from urllib.parse import urlsplit

_CHUNK_BYTES: Final = 65_536


class CutNow(Exception):
    """Raised by a filter: the connection ends here, in both directions, once ``last`` is sent."""

    def __init__(self, last: bytes = b"") -> None:
        super().__init__()
        self.last = last


class Side(Enum):
    """One of the two that the proxy stands between."""

    CLIENT = auto()
    SERVER = auto()


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
    dropped: int = 0  # bytes
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
        if not self.dropping:
            return data
        self.dropped += len(data)
        return b""


class ToxicProxy:
    """``url`` is where clients connect instead of the upstream."""

    def __init__(self, upstream_url: str, make_filter: Callable[[], Filter] = Unfiltered) -> None:
        self._upstream = urlsplit(upstream_url)
        self._make_filter = make_filter
        self.to_server = Direction()
        self.to_client = Direction()
        self.refuse_connections = False
        self.accepted = 0  # connections ever
        self._open: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The upstream's URL with this proxy's address in it."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        login, separator, _ = self._upstream.netloc.rpartition("@")
        return self._upstream._replace(netloc=f"{login}{separator}127.0.0.1:{port}").geturl()

    def lead_to(self, upstream_url: str) -> None:
        """New connections go to that server: the address moved, as after a failover."""
        self._upstream = urlsplit(upstream_url)

    @property
    def connections(self) -> int:
        """How many are open, half open ones too."""
        return len(self._open)

    def freeze(self) -> None:
        """Both directions."""
        self.to_server.freeze()
        self.to_client.freeze()

    def thaw(self) -> None:
        """Both directions."""
        self.to_server.thaw()
        self.to_client.thaw()

    def cut(self) -> None:
        """Reset every open connection on both sides."""
        for link in self._open:
            link.reset(Side.CLIENT)
            link.reset(Side.SERVER)

    def leave_half_open(self, gone: Side) -> None:
        """Of every open connection the side ``gone`` is reset. The other one is not told: what it
        sends is swallowed, and it hears nothing more until it closes."""
        for link in self._open:
            link.gone = gone
            link.reset(gone)

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        self.refuse_connections = True  # for those that were accepted and not served yet
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            # Cancelled by ``stop``; streams would log it.
            with suppress(OSError, asyncio.CancelledError):
                if not self.refuse_connections:
                    await self._forward(reader, writer)
        finally:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        self.accepted += 1
        link = _Link((reader, writer), server)
        self._open.add(link)
        try:
            await link.run(self.to_server, self.to_client, self._make_filter())
        finally:
            self._open.discard(link)
            link.reset(Side.CLIENT)
            link.reset(Side.SERVER)


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection: the proxy's ends to the client and to the server."""

    def __init__(self, client: _Ends, server: _Ends) -> None:
        self._client_reader, self._client_writer = client
        self._server_reader, self._server_writer = server
        self.gone: Side | None = None

    def reset(self, side: Side) -> None:
        """That side sees its connection reset."""
        writer = self._client_writer if side is Side.CLIENT else self._server_writer
        writer.transport.abort()

    async def run(self, to_server: Direction, to_client: Direction, filter_: Filter) -> None:
        """Until a side ends it; where one is gone, until the other does."""
        pumps = {
            Side.CLIENT: asyncio.create_task(
                _pump(self._client_reader, self._server_writer, to_server, filter_.to_server)
            ),
            Side.SERVER: asyncio.create_task(
                _pump(self._server_reader, self._client_writer, to_client, filter_.to_client)
            ),
        }
        try:
            await asyncio.wait(pumps.values(), return_when=asyncio.FIRST_COMPLETED)
            if self.gone is not None:
                await pumps[Side.CLIENT if self.gone is Side.SERVER else Side.SERVER]
        finally:
            for pump in pumps.values():
                pump.cancel()
            await asyncio.gather(*pumps.values(), return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    direction: Direction,
    change: Callable[[bytes], bytes],
) -> None:
    """Until the sender closes. Whether there is still somebody to receive is nothing to it."""
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK_BYTES):
            try:
                passed = await direction.passes(change(data))
            except CutNow as cut:
                await _send(writer, cut.last)
                return
            await _send(writer, passed)
    await direction.passes(b"")  # a frozen direction tells nobody that the other side went


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data and not writer.transport.is_closing():
        with suppress(ConnectionError):
            writer.write(data)
            await writer.drain()


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
