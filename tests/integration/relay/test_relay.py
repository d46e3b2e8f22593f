"""The relay between a real PostgreSQL and a real RabbitMQ, all servers well."""

from dataclasses import replace

import aio_pika
import pytest

from tenure.contract.events import CONTENT_TYPE
from tenure.contract.topology import LOG_CHANNEL
from tenure.relay.app import build
from tenure.relay.config import load_settings
from tenure.relay.core.outcome import Outcome
from tenure.relay.errors import BrokerRefused
from tests.support.isolation import BrokerSpace, FreshDatabase, with_login
from tests.support.log_rows import LogRow, Stream, append, attempt, rows_of
from tests.support.relays import (
    all_passed,
    broker_channel,
    consume,
    count,
    cursors,
    declare_events,
    declare_queue,
    relaying,
)
from tests.support.services import POOLED
from tests.support.sessions import session, until


async def record(database: FreshDatabase, rows: list[LogRow]) -> list[int]:
    async with session(database.owner_url) as owner:
        return await append(owner, rows)


@pytest.mark.requirement("EVENT-02")
@pytest.mark.requirement("RELAY-03")
async def test_events_arrive_in_the_order_of_their_stream_with_the_recorded_bytes(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        exchange = await declare_events(channel, broker.name_prefix)
        queue = await declare_queue(channel, f"{broker.name_prefix}.all", exchange)
        consumer = await consume(channel, queue)
        streams = [Stream() for _ in range(60)]
        rows = rows_of(streams, 8, exchange=exchange, routing_key="default.task.open")
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await record(database, rows[:240])
            await record(database, rows[240:])
            await consumer.has(rows)
            await all_passed(database.relay_url)
    assert consumer.first_sequences() == {stream.entity_id: list(range(1, 9)) for stream in streams}
    consumer.assert_same_bytes(rows)
    assert len(consumer.messages) == len(rows)
    assert all(message.persistent for message in consumer.messages)
    assert {message.content_type for message in consumer.messages} == {CONTENT_TYPE}
    assert len({message.message_id for message in consumer.messages}) == len(rows)


@pytest.mark.requirement("RELAY-02")
async def test_a_row_whose_route_is_required_is_published_only_once_its_queue_exists(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    later = f"{broker.name_prefix}.later"
    async with broker_channel(broker.url) as channel:
        there = await declare_queue(channel, f"{broker.name_prefix}.there")
        stuck, free = Stream(), Stream()
        assignment = stuck.next(routing_key=later, required=True)
        behind = stuck.next(routing_key=there, required=True)
        others = rows_of([free], 5, routing_key=there, required=True)
        async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:
            consumer = await consume(channel, there)
            positions = await record(database, [assignment, behind, *others])
            await consumer.has(others)

            async def returned_twice() -> bool:
                return count(parts, Outcome.RETURNED) >= 2

            await until(returned_twice)
            assert str(behind.event_id) not in consumer.event_ids
            assert (await cursors(database.relay_url))[stuck.shard] < positions[0]

            await declare_queue(channel, later)
            arrived = await consume(channel, later)
            await arrived.has([assignment])
            await consumer.has([behind])
            await all_passed(database.relay_url)
    assert len(arrived.messages) == 1


async def test_a_message_to_a_vanished_node_is_passed_only_once_its_attempt_has_ended(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """Else one dead node would hold up a shard for good."""
    ended, open_one = Stream(), Stream()
    while open_one.shard == ended.shard:
        open_one = Stream()
    async with session(database.owner_url) as owner:
        rows = [
            stream.next(
                routing_key="gone",
                required=True,
                attempt_id=await attempt(owner, stream.entity_id, state),
            )
            for stream, state in ((ended, "cancelled"), (open_one, "submitted"))
        ]
    async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:
        passed, waiting = await record(database, rows)

        async def judged() -> bool:
            return count(parts, Outcome.WITHDRAWN) >= 1 and count(parts, Outcome.RETURNED) >= 2

        await until(judged)

        async def moved() -> bool:
            return (await cursors(database.relay_url))[ended.shard] == passed

        await until(moved)
        assert (await cursors(database.relay_url))[open_one.shard] < waiting
        assert count(parts) == 0  # it was not published
        assert parts.relay.window.rows == 1


@pytest.mark.requirement("RELAY-02")
async def test_an_event_that_nobody_subscribed_to_counts_as_published(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        exchange = await declare_events(channel, broker.name_prefix)
        rows = rows_of([Stream(), Stream()], 3, exchange=exchange, routing_key="a.b.c")
        await record(database, rows)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await all_passed(database.relay_url)


async def test_a_missing_exchange_delays_its_own_rows_only(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    exchange = f"{broker.name_prefix}.not-yet"
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        early = rows_of([Stream(), Stream()], 2, exchange=exchange, routing_key="k")
        others = rows_of([Stream()], 4, routing_key=queue, required=True)
        await record(database, [*early, *others])
        async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:
            await consumer.has(others)

            async def not_sent() -> bool:
                return count(parts, Outcome.NOT_SENT) > 0

            await until(not_sent)
            assert count(parts, Outcome.LOST) == 0
            late = await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC)
            await (await channel.get_queue(queue)).bind(late, "#")
            await consumer.has(early)
            await all_passed(database.relay_url)


async def test_a_refused_message_is_published_again_until_there_is_room(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    full = f"{broker.name_prefix}.full"
    async with broker_channel(broker.url) as channel:
        await channel.declare_queue(
            full, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
        rows = rows_of([Stream() for _ in range(6)], 1, routing_key=full, required=True)
        await record(database, rows)
        async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:

            async def refused() -> bool:
                return count(parts, Outcome.NACKED) >= 5

            await until(refused)
            consumer = await consume(channel, full)
            await consumer.has(rows)
            await all_passed(database.relay_url)
    assert len(consumer.messages) == len(rows)


async def test_a_body_of_several_frames_arrives_whole(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        row = Stream().next(routing_key=queue, required=True, filler="\N{SNOWMAN}" * 150_000)
        lost = Stream().next(routing_key="nowhere", required=True, filler="y" * 300_000)
        await record(database, [lost, row])
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await consumer.has([row])
    consumer.assert_same_bytes([row])


async def test_a_hint_lets_the_relay_look_and_without_one_it_looks_by_itself(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.hinted")
        consumer = await consume(channel, queue)
        rows = rows_of([Stream() for _ in range(4)], 1, routing_key=queue)
        async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:
            await record(database, rows[:2])
            await consumer.has(rows[:2])

            async def listens() -> bool:
                return parts.log.listens

            if not POOLED:  # there nobody can listen, and it looks all the time
                await until(listens)
                parts.relay._pace = replace(parts.relay._pace, listening_poll_seconds=3600.0)

                async def looks_no_more() -> bool:
                    return parts.relay._look_at > parts.relay._clock() + 1800

                await until(looks_no_more)
            await record(database, rows[2:])
            async with session(database.owner_url) as owner:
                await owner.execute("select pg_notify($1, '')", LOG_CHANNEL)
            await consumer.has(rows)


async def test_an_idle_relay_asks_one_cheap_question(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """Everything published: from then on it looks at the end of the log and renews its claims."""
    async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:
        asked: list[str] = []
        fetch = parts.log._fetch

        async def counting(query: str, *arguments: object) -> object:
            asked.append(query)
            return await fetch(query, *arguments)

        async def claimed() -> bool:
            return len(parts.relay.window.claims) == 64 and not parts.relay.window.wanted()

        await until(claimed)
        parts.log._fetch = counting  # type: ignore[method-assign,assignment]  # counts, then asks

        async def many() -> bool:
            return len(asked) >= 30

        await until(many)
        assert set(asked) <= {"follow", "renew", "attend"}


async def test_a_refused_login_has_a_code_of_its_own(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    wrong = with_login(broker.url, "nobody", "wrong")
    parts = build(
        load_settings(
            database_url=database.relay_url, broker_url=wrong, name_prefix=broker.name_prefix
        )
    )
    with pytest.raises(BrokerRefused) as caught:
        await parts.publisher._open()
    assert caught.value.code == "broker_refused"
    assert "wrong" not in str(caught.value)
