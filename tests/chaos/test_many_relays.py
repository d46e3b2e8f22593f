"""Many relays on one log: what a row published by several, or out of turn, would look like."""

import asyncio
import random
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from tenure.contract.faultpoints import FaultPoint
from tenure.relay.app import Parts
from tests.support.books import Arrival, faults, read_log
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import LogRow, Stream, append, rows_of
from tests.support.relays import (
    all_passed,
    broker_channel,
    consume,
    count,
    declare_queue,
    relaying,
)
from tests.support.sessions import session

pytestmark = pytest.mark.timeout(300)  # some ten thousand rows each, and a busy machine


class Delays:
    """A random delay before each batch that is published, up to 50 ms."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    async def reach(self, point: FaultPoint, subject: str = "") -> None:
        """Delays a publish."""
        if point is FaultPoint.BEFORE_PUBLISH:
            await asyncio.sleep(self._random.uniform(0, 0.05))


@pytest.mark.requirement("RELAY-03")
async def test_messages_of_one_sender_never_overtake_each_other_whatever_relay_has_them(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """Batches of twenty, each relay delayed at random, and a fourth relay that comes and goes."""
    arguments = (database.relay_url, broker.url, broker.name_prefix)
    async with broker_channel(broker.url) as channel, AsyncExitStack() as relays:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        streams = [Stream() for _ in range(200)]
        rows: list[LogRow] = []
        owner = await relays.enter_async_context(session(database.owner_url))

        async def write(each: int) -> None:
            more = rows_of(streams, each, routing_key=queue, required=True)
            await append(owner, more)
            rows.extend(more)

        async def all_have_published(some: list[Parts]) -> None:
            """However quick the others are: there is more as long as one has had nothing."""
            while not all(count(parts) for parts in some):
                await write(1)
                await asyncio.sleep(0.1)

        await write(50)

        def delayed(seed: int) -> AbstractAsyncContextManager[Parts]:
            return relaying(*arguments, Delays(seed), relay_max_in_flight=20)

        await all_have_published(
            [await relays.enter_async_context(delayed(seed)) for seed in range(3)]
        )
        async with delayed(3) as passing:
            await all_have_published([passing])
        await consumer.has(rows)
        await all_passed(database.relay_url)
    assert consumer.first_sequences() == {
        stream.entity_id: list(range(1, stream.sequence + 1)) for stream in streams
    }
    consumer.assert_same_bytes(rows)
    assert len(consumer.messages) == len(rows)


@pytest.mark.requirement("RELAY-03")
async def test_rows_that_several_relays_could_pick_are_sent_once(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """Twenty thousand rows while five relays start one after another: no fault, no duplicate."""
    arguments = (database.relay_url, broker.url, broker.name_prefix)
    async with (
        broker_channel(broker.url) as channel,
        session(database.owner_url) as owner,
        AsyncExitStack() as relays,
    ):
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        rows = rows_of([Stream() for _ in range(1000)], 20, routing_key=queue, required=True)
        await append(owner, rows)
        five = [await relays.enter_async_context(relaying(*arguments)) for _ in range(5)]
        await consumer.has(rows)
        await all_passed(database.relay_url)
        assert sum(count(parts) for parts in five) == len(rows)
        log = await read_log(owner, "")
    arrivals = [Arrival(message.event_id, message.body) for message in consumer.messages]
    assert len(arrivals) == len(rows)
    assert faults(committed=log, arrivals=arrivals) == []
