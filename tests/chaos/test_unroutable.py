"""Messages that the broker confirms and that reached no queue: never taken for published."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from tenure.relay.app import Parts
from tenure.relay.core.outcome import Outcome
from tests.support.books import Arrival, faults, read_log
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import Stream, append, rows_of
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
from tests.support.sessions import session, until

FAILING = ("tenure_relay_failing_streams", "returned")


async def metric(parts: Parts, name: str, *labels: str) -> float:
    """As an operator's alarm reads it."""
    page = (await parts.metrics_page()).decode()
    return next(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if (sample.name, *sample.labels.values()) == (name, *labels)
    )


@pytest.mark.requirement("RELAY-02")
async def test_a_returned_message_is_not_confirmed_by_its_twin_on_the_same_channel(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """A full window of pairs that share an event id, the one unroutable, the other routable: no
    publish is left without an end, and none takes the other's."""
    pairs = 250
    missing = f"{broker.name_prefix}.later"
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        unroutable = rows_of([Stream() for _ in range(pairs)], 1, routing_key=missing)
        twins = rows_of([Stream() for _ in range(pairs)], 1, routing_key=queue)
        for lost, found in zip(unroutable, twins, strict=True):
            lost.required = found.required = True
            found.event_id = lost.event_id
        async with session(database.owner_url) as owner:
            mixed = [row for pair in zip(unroutable, twins, strict=True) for row in pair]
            positions = await append(owner, mixed)
        async with relaying(
            database.relay_url,
            broker.url,
            broker.name_prefix,
            relay_max_in_flight=2 * pairs,
            relay_backoff_cap_seconds=30.0,
        ) as parts:
            await consumer.has(twins)

            async def each_returned() -> bool:
                return parts.relay.window.failing_streams == {Outcome.RETURNED: pairs}

            await until(each_returned)

            async def ended() -> bool:
                return parts.relay.window.in_flight == 0

            await until(ended)
            assert count(parts, Outcome.TIMED_OUT) == count(parts, Outcome.LOST) == 0
            assert count(parts) == len(consumer.messages) == pairs
            stored = await cursors(database.relay_url)
            for row, position in zip(mixed[::2], positions[::2], strict=True):
                assert stored[row.stream.shard] < position
        await declare_queue(channel, missing)
        late = await consume(channel, missing)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await late.has(unroutable)
            await all_passed(database.relay_url)
    late.assert_same_bytes(unroutable)


@pytest.mark.requirement("RELAY-02")
async def test_what_the_broker_confirms_while_a_binding_is_gone_arrives_once_it_is_back(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        exchange = await declare_events(channel, broker.name_prefix)
        name = await declare_queue(channel, f"{broker.name_prefix}.q", exchange)
        queue = await channel.get_queue(name)
        consumer = await consume(channel, name)
        bound = rows_of([Stream() for _ in range(5)], 1, exchange=exchange, routing_key="a.b.c")
        unbound = rows_of(
            [Stream() for _ in range(20)], 1, exchange=exchange, routing_key="a.b.c", required=True
        )
        async with (
            session(database.owner_url) as owner,
            relaying(database.relay_url, broker.url, broker.name_prefix) as parts,
        ):
            await append(owner, bound)
            await consumer.has(bound)
            await all_passed(database.relay_url)
            published = count(parts)
            assert await metric(parts, *FAILING) == 0

            await queue.unbind(exchange, "#")
            with capture_logs() as said:
                await append(owner, unbound)

                async def alarmed() -> bool:
                    return await metric(parts, *FAILING) == len(unbound)

                await until(alarmed)
                tries = count(parts, Outcome.RETURNED)

                async def tried_again() -> bool:
                    return count(parts, Outcome.RETURNED) >= tries + len(unbound)

                await until(tried_again)
            (line,) = [entry for entry in said if entry["event"] == "not_published"]
            assert (line["outcome"], line["required"]) == ("returned", True)
            assert "NO_ROUTE" in line["detail"]
            assert count(parts) == published
            assert (await parts.log.lag()).rows == len(unbound)

            await queue.bind(exchange, "#")
            await consumer.has(unbound)
            await all_passed(database.relay_url)

            async def calm() -> bool:
                return await metric(parts, *FAILING) == 0

            await until(calm)
            log = await read_log(owner, exchange)
    arrivals = [Arrival(message.event_id, message.body) for message in consumer.messages]
    assert faults(committed=log, arrivals=arrivals) == []
    assert len(arrivals) == len(bound) + len(unbound)
