"""A message over which the broker closes the channel: found among many, parked, no other blamed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.relay.core.outcome import Outcome
from tests.support.isolation import FreshDatabase
from tests.support.log_rows import Stream, append, rows_of
from tests.support.parked import ask, parked_are, results
from tests.support.relays import (
    all_passed,
    broker_channel,
    consume,
    count,
    declare_queue,
    relaying,
)
from tests.support.sessions import session, until

pytestmark = pytest.mark.timeout(300)  # a server of its own is started


@pytest.fixture
async def small_broker(server_directory: Path) -> AsyncIterator[PrivateRabbitmq]:
    """It takes messages of at most 4,000 bytes."""
    broker = PrivateRabbitmq(server_directory / "rabbitmq", settings={"max_message_size": "4000"})
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@pytest.mark.requirement("RELAY-04")
async def test_what_the_broker_refuses_is_found_among_many_and_parked(
    database: FreshDatabase, small_broker: PrivateRabbitmq
) -> None:
    url = small_broker.url()
    async with broker_channel(url) as channel, session(database.owner_url) as owner:
        queue = await declare_queue(channel, "q")
        consumer = await consume(channel, queue)
        streams = [Stream() for _ in range(60)]
        rows = rows_of(streams, 2, routing_key=queue, required=True)
        large = [
            Stream().next(routing_key=queue, required=True, filler="x" * 5000) for _ in range(2)
        ]
        mixed = [*rows[:20], large[0], *rows[20:40], large[1], *rows[40:]]
        positions = await append(owner, mixed)
        async with relaying(database.relay_url, url, "t", relay_backoff_cap_seconds=0.1) as parts:
            await consumer.has(rows)
            await all_passed(database.relay_url)
            found = await parked_are(database, "failed", "failed")
            assert [row.event_id for row in found] == [row.event_id for row in large]
            assert {row.reason for row in found} == {"refused"}
            assert all("larger than" in row.detail for row in found)
            assert count(parts, Outcome.SUSPECTED) > 0
            assert count(parts, Outcome.REFUSED) == 4  # each twice, alone

            # Asked to try once more, it harms nobody either.
            assert await ask(database, "retry", [positions[20]]) == [positions[20]]
            more = rows_of(streams, 1, routing_key=queue, required=True)
            await append(owner, more)
            await consumer.has(more)

            async def failed_again() -> bool:
                return await results(database) == [("retry", "failed")]

            await until(failed_again)
            await parked_are(database, "failed", "failed")
    assert consumer.first_sequences() == {stream.entity_id: [1, 2, 3] for stream in streams}
