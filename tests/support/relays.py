"""Relays under test, in this process and as processes of their own, and a consumer that records."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import aio_pika
import asyncpg
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tenure.contract import codec, topology
from tenure.contract.events import EVENT_ID_HEADER
from tenure.contract.faultpoints import NO_FAULTS, FaultPoints
from tenure.relay.app import Parts, build
from tenure.relay.config import load_settings
from tenure.relay.core.outcome import Outcome
from tenure.settings.secrets import SecretFile
from tests.support.log_rows import LogRow
from tests.support.pgbouncer import routed
from tests.support.sessions import session, until

_PROGRAM = (
    "import asyncio; from tenure.relay.app import run; from tenure.relay.config import"
    " load_settings; asyncio.run(run(load_settings()))"
)
DEFAULTS: dict[str, object] = {"relay_claim_seconds": 30.0, "relay_backoff_cap_seconds": 0.2}
"""A relay keeps its claims however slow the machine is, so that nothing is published twice for want
of a renewal. A test in which a relay has to lose its claims says for how long they last."""


@asynccontextmanager
async def relaying(
    database_url: str | SecretFile,
    broker_url: str | SecretFile,
    prefix: str,
    faults: FaultPoints = NO_FAULTS,
    **settings: object,
) -> AsyncIterator[Parts]:
    """A relay in this process for the length of a block; then it drains."""
    values = {
        "database_url": routed(database_url) if isinstance(database_url, str) else database_url,
        "broker_url": broker_url,
        "name_prefix": prefix,
        **DEFAULTS,
        **settings,
    }
    parts = build(load_settings(**values), faults)
    stop = asyncio.Event()
    work = asyncio.create_task(parts.work(stop))
    try:
        yield parts
    finally:
        stop.set()
        parts.wake.set()
        await work


@asynccontextmanager
async def relay_process(
    database_url: str, broker_url: str, prefix: str, *, claim_seconds: float = 1.0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A relay as a process of its own, killed at the end of the block when it still runs. Others
    take over ``claim_seconds`` later, and on a busy machine at times while it runs."""
    environment = {
        "PATH": os.environ["PATH"],
        "TENURE_DATABASE_URL": routed(database_url),
        "TENURE_BROKER_URL": broker_url,
        "TENURE_NAME_PREFIX": prefix,
        "TENURE_RELAY_LISTEN": "127.0.0.1:0",
        "TENURE_RELAY_CLAIM_SECONDS": str(claim_seconds),
        "TENURE_LOG_FORMAT": "json",
        "TENURE_POOLED": os.environ.get("TENURE_POOLED", ""),
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PROGRAM, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


@dataclass
class Arrived:
    """One message as a consumer got it."""

    event_id: str
    message_id: str | None
    body: bytes
    content_type: str | None
    persistent: bool


@dataclass
class Consumer:
    """What arrived in one queue, in order."""

    messages: list[Arrived] = field(default_factory=list)

    async def take(self, message: AbstractIncomingMessage) -> None:
        """Record and acknowledge."""
        self.messages.append(
            Arrived(
                event_id=str(message.headers[EVENT_ID_HEADER]),
                message_id=message.message_id,
                body=message.body,
                content_type=message.content_type,
                persistent=message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT,
            )
        )
        await message.ack()

    @property
    def event_ids(self) -> set[str]:
        """Which events arrived at least once."""
        return {message.event_id for message in self.messages}

    async def has(self, rows: Iterable[LogRow]) -> None:
        """Wait until each of the rows has arrived."""
        wanted = {str(row.event_id) for row in rows}

        async def arrived() -> bool:
            return wanted <= self.event_ids

        await until(arrived)

    def first_sequences(self) -> dict[UUID, list[int]]:
        """By stream, the sequence of each event where it arrived for the first time."""
        seen: set[str] = set()
        found: dict[UUID, list[int]] = {}
        for message in self.messages:
            if message.event_id not in seen:
                seen.add(message.event_id)
                event = codec.decode_event(message.body)
                found.setdefault(UUID(event.entity_id), []).append(event.sequence)
        return found

    def assert_same_bytes(self, rows: Iterable[LogRow]) -> None:
        """Every copy of every event has the bytes that were recorded."""
        bodies = {str(row.event_id): row.body for row in rows}
        for message in self.messages:
            assert message.body == bodies[message.event_id]


@asynccontextmanager
async def broker_channel(url: str) -> AsyncIterator[AbstractChannel]:
    """A channel to declare and to consume with."""
    connection = await aio_pika.connect(url)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def declare_events(channel: AbstractChannel, prefix: str) -> str:
    """The events exchange, as the coordinator declares it; returns its name."""
    name = topology.events_exchange(prefix)
    await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
    return name


async def declare_queue(channel: AbstractChannel, name: str, exchange: str | None = None) -> str:
    """A quorum queue, bound to everything on ``exchange`` where one is given."""
    queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
    if exchange is not None:
        await queue.bind(exchange, "#")
    return name


async def consume(channel: AbstractChannel, queue: str) -> Consumer:
    """Record what arrives in a queue."""
    consumer = Consumer()
    await channel.set_qos(prefetch_count=200)
    found = await channel.get_queue(queue)
    await found.consume(consumer.take)
    return consumer


async def cursors(database_url: str) -> dict[int, int]:
    """The stored cursor of each shard."""
    async with session(database_url) as reader:
        rows = await reader.fetch('select shard, "position" from tenure.relay_shards')
        return {row["shard"]: row["position"] for row in rows}


async def all_passed(database_url: str) -> None:
    """Wait until every shard's cursor has passed the shard's last row."""
    async with session(database_url) as reader:

        async def passed() -> bool:
            return not await reader.fetchval(
                """
                select exists (
                    select from tenure.log l join tenure.relay_shards s using (shard)
                    where l."position" > s."position"
                )
                """
            )

        await until(passed)


async def last_positions(connection: asyncpg.Connection) -> dict[int, int]:
    """The last position of each shard that has rows."""
    rows = await connection.fetch('select shard, max("position") as p from tenure.log group by 1')
    return {row["shard"]: row["p"] for row in rows}


async def claim_tokens(connection: asyncpg.Connection) -> dict[int, int]:
    """The claim token of each shard."""
    rows = await connection.fetch("select shard, claim_token from tenure.relay_shards")
    return {row["shard"]: row["claim_token"] for row in rows}


def metric(parts: Parts, name: str) -> int:
    """What a relay has counted under a name without labels."""
    return int(parts.metrics.registry.get_sample_value(f"tenure_relay_{name}") or 0)


def count(parts: Parts, outcome: Outcome | None = None) -> int:
    """How many publishes ended so; without an outcome, how many rows were published."""
    name, labels = "tenure_relay_published_total", {}
    if outcome is not None:
        name, labels = "tenure_relay_publishes_total", {"outcome": outcome.value}
    return int(parts.metrics.registry.get_sample_value(name, labels) or 0)
