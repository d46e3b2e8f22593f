"""The answer to a call that parks or unparks is lost: whatever it did, nothing overtakes."""

import pytest

from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import Stream, append, rows_of
from tests.support.parked import ask, parked_are
from tests.support.postgres_filters import Cut, Cuts, readable
from tests.support.relays import all_passed, broker_channel, consume, declare_queue, relaying
from tests.support.sessions import session, until

pytestmark = [
    pytest.mark.direct("the filter reads the protocol between relay and server"),
    pytest.mark.requirement("RELAY-03"),
    pytest.mark.requirement("RELAY-04"),
]
LOST = [Cut.BEFORE_COMMIT, Cut.REPLY_LOST, Cut.REPLY_TORN]


@pytest.mark.parametrize("cut", LOST)
@pytest.mark.parametrize("call", ["relay_advance", "relay_unpark"])
async def test_a_lost_answer_about_parked_rows_changes_neither_order_nor_count(
    database: FreshDatabase, broker: BrokerSpace, call: str, cut: Cut
) -> None:
    """The relay gives the shards back and takes them again, and learns what the call had done."""
    cuts = Cuts()
    async with (
        broker_channel(broker.url) as channel,
        session(database.owner_url) as owner,
        readable(database.relay_url, cuts) as proxy,
    ):
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        streams = [Stream() for _ in range(12)]
        large = [
            stream.next(routing_key=queue, required=True, filler="x" * 2000)
            for stream in streams[:4]
        ]
        rows = [*large, *rows_of(streams, 3, routing_key=queue, required=True)]
        plan = cuts.next("relay_advance", cut) if call == "relay_advance" else None
        await append(owner, rows)
        async with relaying(
            proxy.url, broker.url, broker.name_prefix, relay_max_body_bytes=1500
        ) as parts:
            await parked_are(database, *["failed"] * 4, *["behind"] * 12)
            await all_passed(database.relay_url)
            if call == "relay_unpark":
                plan = cuts.next("relay_unpark", cut)
                positions = await ask(database, "skip", failed_as="unsendable")
                assert len(positions) == 4
            else:
                parts.publisher._max_body_bytes = 10_000
                await ask(database, "retry", failed_as="unsendable")
            sent = rows if call == "relay_advance" else rows[4:]
            more = rows_of(streams, 1, routing_key=queue, required=True)
            await append(owner, more)
            await consumer.has([*sent, *more])
            await all_passed(database.relay_url)
            await parked_are(database)

            async def nothing_is_counted() -> bool:
                return bool(await owner.fetchval("select sum(parked) = 0 from tenure.relay_shards"))

            await until(nothing_is_counted)
        assert plan is not None
        assert plan.cuts == 1
    skipped = large if call == "relay_unpark" else []
    assert consumer.first_sequences() == {
        stream.entity_id: [
            row.sequence for row in [*rows, *more] if row.stream is stream and row not in skipped
        ]
        for stream in streams
    }
    consumer.assert_same_bytes([*rows, *more])
