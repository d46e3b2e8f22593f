"""Several relays at once: shares, hand-over and takeover (RELAY-03)."""

import signal
from contextlib import AsyncExitStack
from datetime import timedelta
from uuid import uuid4

import pytest

from tenure.contract.topology import SHARD_COUNT
from tenure.relay.app import Parts
from tenure.relay.log import RelayLog
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import Stream, append, rows_of
from tests.support.relays import (
    all_passed,
    broker_channel,
    consume,
    declare_queue,
    metric,
    relay_process,
    relaying,
)
from tests.support.sessions import session, until


def held(relays: list[Parts]) -> list[int]:
    return sorted(len(parts.relay.window.claims) for parts in relays)


async def share_evenly(relays: list[Parts]) -> None:
    """Wait until all shards are held, by all relays in equal parts."""
    each, rest = divmod(SHARD_COUNT, len(relays))
    fair = [each] * (len(relays) - rest) + [each + 1] * rest

    async def even() -> bool:
        shards = [shard for parts in relays for shard in parts.relay.window.claims]
        return held(relays) == fair and sorted(shards) == list(range(SHARD_COUNT))

    await until(even)


async def test_relays_that_attend_are_counted_in_the_order_they_joined(
    database: FreshDatabase,
) -> None:
    relays = [RelayLog(database.relay_url, uuid4(), 60) for _ in range(3)]
    assert [await relay.attend() for relay in relays] == [(1, 0), (2, 1), (3, 2)]
    assert [await relay.attend() for relay in relays] == [(3, 0), (3, 1), (3, 2)]
    await relays[0].leave()
    assert [await relay.attend() for relay in relays[1:]] == [(2, 0), (2, 1)]
    async with session(database.owner_url) as owner:
        await owner.execute(
            "update tenure.relays set attends_until = clock_timestamp() where relay_id = $1",
            relays[1]._relay_id,
        )
    assert await relays[2].attend() == (1, 0)
    assert await relays[1].attend() == (2, 1)  # it was away: it joins anew
    for relay in relays:
        await relay.close()


async def test_a_relay_that_left_without_a_word_is_forgotten(database: FreshDatabase) -> None:
    relay = RelayLog(database.relay_url, uuid4(), 60)
    async with session(database.owner_url) as owner:
        await owner.execute(
            "insert into tenure.relays select gen_random_uuid(), now(), now() - $1::interval"
            " from generate_series(1, 5)",
            timedelta(hours=2),
        )
        assert await relay.attend() == (1, 0)
        assert await owner.fetchval("select count(*) from tenure.relays") == 1
    await relay.close()


@pytest.mark.requirement("RELAY-03")
async def test_relays_that_come_and_go_share_evenly_and_publish_nothing_twice(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """Rows are appended all the while, so that shards are handed over in the middle of work."""
    async with (
        broker_channel(broker.url) as channel,
        session(database.owner_url) as owner,
        AsyncExitStack() as first,
    ):
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        streams = [Stream() for _ in range(150)]
        rows = []

        async def record(count: int) -> None:
            rows.extend(rows_of(streams, count, routing_key=queue, required=True))
            await append(owner, rows[-count * len(streams) :])

        arguments = (database.relay_url, broker.url, broker.name_prefix)

        # Their claims last so long that a shard moves by hand-over only.
        relays = [await first.enter_async_context(relaying(*arguments))]
        await share_evenly(relays)
        await record(4)
        async with AsyncExitStack() as others:
            for _ in range(2):
                relays.append(await others.enter_async_context(relaying(*arguments)))
                await record(4)
                await share_evenly(relays)
            await record(4)
        await share_evenly(relays[:1])  # the others stopped, and handed theirs over
        await record(1)
        await consumer.has(rows)
        await all_passed(database.relay_url)
        assert len(consumer.messages) == len(rows)
        assert [metric(parts, "claims_lost_total") for parts in relays] == [0, 0, 0]
        # Half of all to the second, then a third of the rest to the third: no more than needed.
        assert metric(relays[0], "handed_over_total") == 32 + 10
    assert consumer.first_sequences() == {
        stream.entity_id: list(range(1, stream.sequence + 1)) for stream in streams
    }


@pytest.mark.requirement("RELAY-03")
async def test_the_shards_of_a_killed_relay_are_shared_by_those_that_are_left(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    arguments = (database.relay_url, broker.url, broker.name_prefix)
    async with (
        relay_process(*arguments) as doomed,
        relaying(*arguments) as one,
        relaying(*arguments) as two,
    ):

        async def three_share() -> bool:
            return held([one, two]) in ([21, 21], [21, 22])

        await until(three_share)
        doomed.send_signal(signal.SIGKILL)
        await doomed.wait()
        await share_evenly([one, two])


async def test_a_relay_without_the_broker_takes_no_part(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    away = (database.relay_url, "amqp://guest:guest@127.0.0.1:1", broker.name_prefix)
    async with relaying(*away) as parts:

        async def asked() -> bool:
            return parts.relay.database_well

        await until(asked)
        async with relaying(database.relay_url, broker.url, broker.name_prefix) as other:
            await share_evenly([other])
        assert parts.relay.window.claims == {}
    async with session(database.owner_url) as owner:
        assert await owner.fetchval("select count(*) from tenure.relays") == 0
