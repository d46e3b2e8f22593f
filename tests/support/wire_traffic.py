"""Counts what crosses the wire between a client and PostgreSQL, by the messages of the protocol."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.postgres_filters import Messages, readable

_EXECUTE, _SIMPLE_QUERY, _READY_FOR_QUERY = b"E", b"Q", b"Z"


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


class _Counted:
    """A filter of one connection that changes nothing and counts."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._client = Messages(begins_untyped=True)
        self._server = Messages(begins_untyped=False)

    def to_server(self, data: bytes) -> bytes:
        self._traffic.client.update(kind for kind, _ in self._client.feed(data))
        return data

    def to_client(self, data: bytes) -> bytes:
        self._traffic.server.update(kind for kind, _ in self._server.feed(data))
        return data


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[tuple[str, Traffic]]:
    """Another address of the server in ``url``, and what goes through it, on all connections."""
    traffic = Traffic()
    async with readable(url, lambda: _Counted(traffic)) as proxy:
        yield proxy.url, traffic
