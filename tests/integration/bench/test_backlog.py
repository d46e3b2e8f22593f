"""The log that `make bench` prepares is one that the coordinator could have written."""

from bench import backlog
from bench.figures import passed
from tenure.contract import codec, topology
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import (
    all_passed,
    broker_channel,
    consume,
    cursors,
    declare_queue,
    relaying,
)
from tests.support.sessions import session, until

TASKS = 700


async def test_a_prepared_log_is_published_as_events_in_the_order_of_their_streams(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.backlog")
        consumer = await consume(channel, queue)
        async with session(database.owner_url) as owner:
            positions = await backlog.append(owner, TASKS, queue)
            rows = await owner.fetch("select shard, event_id, body from tenure.log")
        assert passed(positions, await cursors(database.relay_url)) == 0
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await all_passed(database.relay_url)

            async def all_here() -> bool:
                return len(consumer.event_ids) == len(rows)

            await until(all_here)
        assert passed(positions, await cursors(database.relay_url)) == len(rows)
    assert len(rows) == TASKS * backlog.EVENTS
    for row in rows:
        event = codec.decode_event(row["body"])
        assert event.id == str(row["event_id"])
        assert topology.shard_of(event.entity_id) == row["shard"]
    sequences = consumer.first_sequences()
    assert len(sequences) == TASKS
    assert set(map(tuple, sequences.values())) == {tuple(range(1, backlog.EVENTS + 1))}
