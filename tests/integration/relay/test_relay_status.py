"""The relay's pages, and the names of aiormq that it relies on."""

import asyncio
import socket

import aiormq
import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenure.contract.topology import SHARD_COUNT
from tenure.relay.core.outcome import Outcome
from tenure.relay.errors import ListenRefused
from tenure.relay.publisher import PRIVATE_NAMES
from tenure.relay.status import StatusPages, serve
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import Stream, append, rows_of
from tests.support.relays import (
    all_passed,
    broker_channel,
    declare_events,
    relaying,
)
from tests.support.sessions import session, until


async def get(server: asyncio.Server, path: str) -> httpx2.Response:
    host, port = server.sockets[0].getsockname()[:2]
    async with httpx2.AsyncClient() as client:
        return await client.get(f"http://{host}:{port}{path}")


async def test_alive_asks_nobody_and_ready_says_what_is_missing() -> None:
    asked: list[str] = []

    async def metrics() -> bytes:
        return b"metrics"

    def not_ready() -> str:
        asked.append("ready")
        return "the database does not answer"

    server = await serve(("127.0.0.1", 0), StatusPages(not_ready, metrics))
    async with server:
        alive = await get(server, "/healthz")
        assert (alive.status_code, asked) == (200, [])
        ready = await get(server, "/readyz")
        assert ready.status_code == 503
        assert "the database does not answer" in ready.text
        assert (await get(server, "/nothing")).status_code == 404
        host, port = server.sockets[0].getsockname()[:2]
        async with httpx2.AsyncClient() as client:
            posted = await client.post(f"http://{host}:{port}/metrics", content=b"x")
        assert posted.status_code == 405
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"nonsense\r\n\r\n")
        assert await reader.read() == b""
        writer.close()


async def test_an_address_that_is_taken_is_a_coded_error() -> None:
    async def metrics() -> bytes:
        return b""

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ListenRefused) as caught:
            await serve(taken.getsockname(), StatusPages(lambda: "", metrics))
    assert caught.value.code == "listen_refused"


async def test_metrics_show_lag_and_what_became_of_publishes(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        exchange = await declare_events(channel, broker.name_prefix)
    published = rows_of([Stream() for _ in range(30)], 1, exchange=exchange, routing_key="a.b.c")
    stuck = rows_of([Stream() for _ in range(3)], 1, routing_key="nowhere", required=True)
    async with session(database.owner_url) as owner:
        await append(owner, published)
    async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:
        await all_passed(database.relay_url)
        async with session(database.owner_url) as owner:
            await append(owner, stuck)

        async def all_stuck() -> bool:
            return parts.relay.window.failing_streams == {Outcome.RETURNED: 3}

        await until(all_stuck)

        async def all_claimed() -> bool:
            return len(parts.relay.window.claims) == SHARD_COUNT

        await until(all_claimed)
        text = (await parts.metrics_page()).decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["tenure_relay_published_total",] == 30
    assert found["tenure_relay_publishes_total", "acked"] == 30
    assert found["tenure_relay_publishes_total", "returned"] >= 3
    assert found["tenure_relay_rows_read_total",] == 33
    assert found["tenure_relay_lag_rows",] == 3
    assert found["tenure_relay_lag_seconds",] > 0
    assert found["tenure_relay_claims",] == SHARD_COUNT
    assert found["tenure_relay_connected", "broker"] == 1
    assert found["tenure_relay_connected", "database"] == 1
    assert found["tenure_relay_duplicates_possible_total",] == 0


async def test_the_private_names_of_aiormq_exist(broker: BrokerSpace) -> None:
    """They are no promise of its authors: this fails first when a new version drops one."""
    connection = await aiormq.connect(broker.url)
    try:
        channel = await connection.channel()
        owners = {"channel": channel, "connection": connection}
        for owner, names in PRIVATE_NAMES.items():
            for name in names:
                assert hasattr(owners[owner], name), f"{owner}.{name}"
        assert getattr(channel, "delivery_tag") == 0  # noqa: B009 - not in its abstract class
        assert isinstance(getattr(connection, PRIVATE_NAMES["connection"][0]), asyncio.Event)
    finally:
        await connection.close()
