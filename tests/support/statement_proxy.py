"""A proxy that understands PostgreSQL's messages, to cut a connection at an exact one.

Each statement goes as Bind, Execute, Sync; its implicit transaction commits at the Sync, and only
ReadyForQuery says so. The proxy forwards whole messages and can end or hold a connection around the
Sync of the next statement with a given text in it.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

_ENCRYPTION_REQUESTS = (80877103, 80877104)
_FLUSH = b"H\x00\x00\x00\x04"
_EXECUTED = (b"C", b"s")  # CommandComplete, or PortalSuspended where one row was asked for


class Cut(Enum):
    """What happens to the statement's connection."""

    BEFORE_COMMIT = "executed, but the Sync never arrives: rolled back"
    REPLY_LOST = "committed, and nothing of the answer comes back"
    REPLY_TORN = "committed; the rows come back, but not that it was committed"
    SYNC_HELD = "executed; the Sync waits until the server ends the connection"


@dataclass
class Plan:
    """A cut of the next statement with ``text`` in it.

    ``reached`` once it has been executed; ``sqlstate`` is what the server said when it was the one
    who ended the connection.
    """

    text: str
    cut: Cut
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    sqlstate: str | None = None


class StatementProxy:
    """Forwards connections to a server. Use ``statement_proxy``."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._plans: list[Plan] = []
        self._links: set[asyncio.Task[None]] = set()

    def next(self, text: str, cut: Cut) -> Plan:
        """Cut the next statement that has ``text`` in it. One plan is for one statement."""
        plan = Plan(text, cut)
        self._plans.append(plan)
        return plan

    def claim(self, query: str) -> Plan | None:
        """The plan for this statement, which is used up by that."""
        for plan in self._plans:
            if plan.text in query:
                self._plans.remove(plan)
                return plan
        return None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # ended from one side: the other is ended below
        finally:
            writer.transport.abort()
            self._links.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        startup = await _packet(reader)
        while struct.unpack("!i", startup[4:8])[0] in _ENCRYPTION_REQUESTS:
            writer.write(b"N")
            startup = await _packet(reader)
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        try:
            server_writer.write(startup)
            link = _Link(self, reader, writer, server_reader, server_writer)
            await link.run()
        finally:
            server_writer.transport.abort()

    async def close(self) -> None:
        """End every connection."""
        for task in tuple(self._links):
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)


class _Link:
    """Both directions of one connection, after its first packet."""

    def __init__(
        self,
        proxy: StatementProxy,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client, self._to_client = client, to_client
        self._server, self._to_server = server, to_server
        self._statements: dict[bytes, str] = {}
        self._plan: Plan | None = None

    async def run(self) -> None:
        """Until one side ends, or the plan ends it."""
        directions = [
            asyncio.create_task(self._from_client()),
            asyncio.create_task(self._from_server()),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _from_client(self) -> None:
        while True:
            kind, message = await _message(self._client)
            match kind:
                case b"P":
                    name, query = message[5:].split(b"\0", 2)[:2]
                    self._statements[name] = query.decode()
                case b"B":
                    name = message[5:].split(b"\0", 2)[1]
                    self._plan = self._proxy.claim(self._statements.get(name, ""))
                case b"S" if self._plan is not None:
                    if self._plan.cut in (Cut.BEFORE_COMMIT, Cut.SYNC_HELD):
                        message = _FLUSH  # the answer comes without the commit
            self._to_server.write(message)
            await self._to_server.drain()

    async def _from_server(self) -> None:
        while True:
            kind, message = await _message(self._server)
            cut = None if self._plan is None else self._plan.cut
            if kind == b"E" and self._plan is not None:
                fields = message[5:].split(b"\0")
                self._plan.sqlstate = next(f[1:].decode() for f in fields if f[:1] == b"C")
            if kind in _EXECUTED and self._plan is not None:
                self._plan.reached.set()
                if cut is Cut.BEFORE_COMMIT:
                    return
            if kind == b"Z" and cut in (Cut.REPLY_LOST, Cut.REPLY_TORN):
                return
            if cut is not Cut.REPLY_LOST:
                self._to_client.write(message)
                await self._to_client.drain()


async def _packet(reader: asyncio.StreamReader) -> bytes:
    """A packet without a type: its length counts itself."""
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack("!i", head)[0] - 4)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """A message's type, and the whole of it."""
    head = await reader.readexactly(5)
    body = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
    return head[:1], head + body


@asynccontextmanager
async def statement_proxy(url: str) -> AsyncIterator[tuple[StatementProxy, str]]:
    """A proxy in front of the server in ``url``, and the URL that leads through it."""
    parts = urlsplit(url)
    proxy = StatementProxy(parts.hostname or "127.0.0.1", parts.port or 5432)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    login = parts.netloc.rpartition("@")[0]
    try:
        yield proxy, parts._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()
    finally:
        server.close()
        await proxy.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await server.wait_closed()
