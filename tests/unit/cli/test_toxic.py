"""Each poison of the toxic proxy, shown on a server that echoes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from tenure.cli.chaos.toxic import CutNow, Side, ToxicProxy, toxic
from tests.support.waiting import eventually

LATENCY_SECONDS = 0.05


@dataclass
class Echo:
    """Answers each chunk with itself. ``heard``: everything that arrived; ``open``: sessions."""

    heard: bytes = b""
    open: int = 0
    lost: list[str] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.writers.append(writer)
        try:
            while data := await reader.read(1024):
                self.heard += data
                writer.write(data)
        except ConnectionError as error:
            self.lost.append(type(error).__name__)
        finally:
            self.open -= 1
            writer.close()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[ToxicProxy]:
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with toxic(f"tcp://127.0.0.1:{port}") as made:
        yield made
    server.close()


class Client:
    """One connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def hears(self, data: bytes) -> None:
        assert await self.reader.readexactly(len(data)) == data

    async def exchanges(self, data: bytes) -> None:
        self.send(data)
        await self.hears(data)

    async def is_reset(self) -> None:
        """Or at its end, which tells it as much."""
        with suppress(ConnectionError):
            assert await self.reader.read() == b""


@asynccontextmanager
async def connected(proxy: ToxicProxy) -> AsyncIterator[Client]:
    port = int(proxy.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
async def test_latency_is_added_to_a_direction(proxy: ToxicProxy, direction: str) -> None:
    clock = asyncio.get_running_loop().time
    async with connected(proxy) as client:
        getattr(proxy, direction).latency_seconds = LATENCY_SECONDS
        began = clock()
        await client.exchanges(b"slow")
        assert clock() - began >= LATENCY_SECONDS


async def test_what_a_frozen_direction_to_the_server_holds_arrives_after_the_thaw(
    proxy: ToxicProxy, echo: Echo
) -> None:
    async with connected(proxy) as client, connected(proxy) as other:
        await client.exchanges(b"before")
        proxy.to_server.freeze()
        client.send(b" held")
        other.send(b" too")
        echo.writers[0].write(b"from the server")  # the other direction flows
        await client.hears(b"from the server")
        assert echo.heard == b"before"
        proxy.to_server.thaw()
        await client.hears(b" held")
        await other.hears(b" too")


async def test_what_a_frozen_direction_to_the_client_holds_arrives_after_the_thaw(
    proxy: ToxicProxy, echo: Echo
) -> None:
    async with connected(proxy) as client:
        await client.exchanges(b"before")
        proxy.to_client.freeze()
        client.send(b" held")
        await eventually(lambda: echo.heard == b"before held")
        hearing = asyncio.create_task(client.hears(b" held"))
        echo.writers[0].close()  # nobody is told of that either
        await eventually(lambda: echo.writers[0].is_closing())
        assert not hearing.done()
        proxy.thaw()
        await hearing
        await client.is_reset()


async def test_dropped_answers_are_gone_and_the_questions_arrive(
    proxy: ToxicProxy, echo: Echo
) -> None:
    async with connected(proxy) as client:
        proxy.to_client.dropping = True
        client.send(b"unanswered")
        await eventually(lambda: proxy.to_client.dropped == len(b"unanswered"))
        assert echo.heard == b"unanswered"
        proxy.to_client.dropping = False
        await client.exchanges(b"answered")


async def test_a_cut_resets_both_sides_of_what_is_open_and_nothing_later(
    proxy: ToxicProxy, echo: Echo
) -> None:
    async with connected(proxy) as client:
        await client.exchanges(b"x")
        proxy.cut()
        await client.is_reset()
        await eventually(lambda: echo.open == 0 and proxy.connections == 0)
        async with connected(proxy) as other:
            await other.exchanges(b"y")


async def test_refused_connections_never_reach_the_server(proxy: ToxicProxy, echo: Echo) -> None:
    proxy.refuse_connections = True
    async with connected(proxy) as client:
        await client.is_reset()
    assert echo.writers == []


async def test_with_the_server_gone_a_half_open_client_is_told_nothing_until_it_closes(
    proxy: ToxicProxy, echo: Echo
) -> None:
    async with connected(proxy) as client:
        await client.exchanges(b"before")
        proxy.leave_half_open(Side.SERVER)
        await eventually(lambda: echo.open == 0)
        hearing = asyncio.create_task(client.reader.read(1))
        for _ in range(20):  # more than one, since a reset is seen by the second
            client.send(b" swallowed")
            await client.writer.drain()
            async with connected(proxy) as other:
                await other.exchanges(b"x")
        assert echo.heard == b"before" + 20 * b"x"
        assert not hearing.done()
        hearing.cancel()
        await eventually(lambda: proxy.connections == 1)
    await eventually(lambda: proxy.connections == 0)


async def test_with_the_client_gone_a_half_open_server_keeps_its_session(
    proxy: ToxicProxy, echo: Echo
) -> None:
    async with connected(proxy) as client:
        await client.exchanges(b"before")
        proxy.leave_half_open(Side.CLIENT)
        await client.is_reset()
    for _ in range(20):
        echo.writers[0].write(b"swallowed")
        async with connected(proxy) as other:
            await other.exchanges(b"x")
    await eventually(lambda: (echo.open, proxy.connections) == (1, 1))
    assert echo.lost == []
    echo.writers[0].close()
    await eventually(lambda: proxy.connections == 0)


async def test_a_filter_cuts_once_what_it_let_through_has_gone(echo: Echo) -> None:
    class Once:
        def to_server(self, data: bytes) -> bytes:
            raise CutNow(data[:2])

        def to_client(self, data: bytes) -> bytes:
            return data

    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with toxic(f"tcp://127.0.0.1:{port}", Once) as proxy, connected(proxy) as client:
        client.send(b"abc")
        await client.is_reset()
        await eventually(lambda: bool(echo.writers) and echo.open == 0)
    server.close()
    assert echo.heard in (b"ab", b"")  # a reset may overtake it
