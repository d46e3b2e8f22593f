"""A proxy in front of PostgreSQL that cuts a connection around a COMMIT, or between messages."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from urllib.parse import urlsplit

_READY_FOR_QUERY = b"Z"
_SIMPLE_QUERY = b"Q"
_SSL_REQUEST = (80877103).to_bytes(4)
_GSS_REQUEST = (80877104).to_bytes(4)


class Cut(Enum):
    """When a connection is cut; each cut happens once, then the proxy is plain again."""

    BEFORE_COMMIT = auto()  # the server never sees the COMMIT
    AFTER_COMMIT = auto()  # the server has answered it, the client does not hear


class CommitProxy:
    """Forwards whole messages. ``url`` is where clients connect; ``cut`` is the next fault, and so
    is ``messages_left``: a cut instead of the message, of either direction, after so many."""

    def __init__(self, upstream_url: str) -> None:
        self._upstream = urlsplit(upstream_url)
        self.cut: Cut | None = None
        self.messages_left: int | None = None
        self.refuse_connections = False
        self.cuts = 0
        self.on_cut: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The upstream URL with this proxy's address in it."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        login = self._upstream.netloc.rpartition("@")[0]
        return self._upstream._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()

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
            await _cut_off(writer)
            return
        upstream_reader, upstream_writer = await asyncio.open_connection(
            self._upstream.hostname, self._upstream.port
        )
        committing = asyncio.Event()
        directions: list[asyncio.Task[None]] = []
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):  # a client that gave up
                upstream_writer.write(await _read_start_up(reader, writer))
                directions = [
                    asyncio.create_task(self._to_server(reader, upstream_writer, committing)),
                    asyncio.create_task(self._to_client(upstream_reader, writer, committing)),
                ]
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            await _cut_off(writer)
            await _cut_off(upstream_writer)

    async def _to_server(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, committing: asyncio.Event
    ) -> None:
        while True:
            kind, message = await _read_message(reader)
            if self._used_up():
                return
            if kind == _SIMPLE_QUERY and message[5:].upper().startswith(b"COMMIT"):
                if self.cut is Cut.BEFORE_COMMIT:
                    self._cut()
                    return
                if self.cut is Cut.AFTER_COMMIT:
                    committing.set()
            writer.write(message)
            await writer.drain()

    async def _to_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, committing: asyncio.Event
    ) -> None:
        while True:
            kind, message = await _read_message(reader)
            if self._used_up():
                return
            if committing.is_set():
                if kind == _READY_FOR_QUERY:
                    self._cut()
                    return
                continue
            writer.write(message)
            await writer.drain()

    def _used_up(self) -> bool:
        if self.messages_left is None:
            return False
        self.messages_left -= 1
        if self.messages_left >= 0:
            return False
        self.messages_left = None
        self._cut()
        return True

    def _cut(self) -> None:
        self.cut = None
        self.cuts += 1
        self.on_cut()


async def _cut_off(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def _read_start_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The message that names user and database: it has no type byte, and may follow requests for
    encryption, which are declined."""
    while True:
        length = await reader.readexactly(4)
        message = length + await reader.readexactly(int.from_bytes(length) - 4)
        if message[4:] not in (_SSL_REQUEST, _GSS_REQUEST):
            return message
        writer.write(b"N")


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)


@asynccontextmanager
async def commit_proxy(upstream_url: str) -> AsyncIterator[CommitProxy]:
    """A proxy for the length of a block. It offers no TLS."""
    proxy = CommitProxy(upstream_url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
