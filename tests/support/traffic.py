"""Counts what crosses the wire between a client and PostgreSQL, by the messages of the protocol."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.support.toxic import toxic

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


class _Counted:
    """A filter of one connection that changes nothing and counts."""

    def __init__(self, traffic: Traffic) -> None:
        self._client = _Messages(traffic.client, begins_untyped=True)
        self._server = _Messages(traffic.server, begins_untyped=False)

    def to_server(self, data: bytes) -> bytes:
        self._client.feed(data)
        return data

    def to_client(self, data: bytes) -> bytes:
        self._server.feed(data)
        return data


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[tuple[str, Traffic]]:
    """Another address of the server in ``url``, and what goes through it, on all connections."""
    traffic = Traffic()
    readable = urlsplit(url)._replace(query="sslmode=disable").geturl()
    async with toxic(readable, lambda: _Counted(traffic)) as proxy:
        yield proxy.url, traffic
