"""The relay killed between any two steps of parking: nothing lost, nothing overtakes (RELAY-04)."""

from pathlib import Path

import pytest

from tenure.cli.drills.strikes import Act, Strike
from tenure.contract.faultpoints import FaultPoint
from tests.support.armed import armed_process, died, reached
from tests.support.books import Arrival, faults, read_log
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import Stream, append, rows_of
from tests.support.parked import ask, make_due, parked_are
from tests.support.relays import (
    all_passed,
    broker_channel,
    consume,
    declare_queue,
    relaying,
)
from tests.support.sessions import session

POINTS = [
    FaultPoint.BEFORE_PUBLISH,
    FaultPoint.AFTER_PUBLISH,
    FaultPoint.BEFORE_UNPARK,
    FaultPoint.AFTER_UNPARK,
]


def environment(database: FreshDatabase, broker: BrokerSpace, **more: str) -> dict[str, str]:
    return {
        "TENURE_DATABASE_URL": database.relay_url,
        "TENURE_BROKER_URL": broker.url,
        "TENURE_NAME_PREFIX": broker.name_prefix,
        "TENURE_RELAY_LISTEN": "127.0.0.1:0",
        "TENURE_RELAY_CLAIM_SECONDS": "1",
        **more,
    }


@pytest.mark.requirement("RELAY-01")
@pytest.mark.requirement("RELAY-04")
@pytest.mark.parametrize("point", [FaultPoint.BEFORE_CURSOR_MOVE, FaultPoint.AFTER_CURSOR_MOVE])
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_relay_killed_while_it_parks_loses_nothing_and_keeps_the_order(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path, point: FaultPoint, nth: int
) -> None:
    async with broker_channel(broker.url) as channel, session(database.owner_url) as owner:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        streams = [Stream() for _ in range(40)]
        large = [
            stream.next(routing_key=queue, required=True, filler="x" * 2000)
            for stream in streams[::4]
        ]
        rows = [*large, *rows_of(streams, 3, routing_key=queue, required=True)]
        await append(owner, rows)
        strike = Strike(point, Act.KILL, tmp_path, nth=nth)
        settings = environment(database, broker, TENURE_RELAY_MAX_BODY_BYTES="1500")
        async with armed_process("relay", settings, strike) as relay:
            await died(relay)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await ask(database, "retry")  # what the first relay parked, if it did
            await consumer.has(rows)
            await all_passed(database.relay_url)
            await parked_are(database)
        log = await read_log(owner, "")
    arrivals = [Arrival(message.event_id, message.body) for message in consumer.messages]
    assert faults(committed=log, arrivals=arrivals) == []


@pytest.mark.requirement("RELAY-01")
@pytest.mark.requirement("RELAY-04")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_relay_killed_while_it_sends_parked_rows_loses_nothing_and_keeps_the_order(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path, point: FaultPoint, nth: int
) -> None:
    """Later rows of the held streams are in the log as well, and wait for those that are parked."""
    async with broker_channel(broker.url) as channel, session(database.owner_url) as owner:
        later = f"{broker.name_prefix}.later"
        rows = rows_of([Stream() for _ in range(10)], 3, routing_key=later, required=True)
        await append(owner, rows)
        async with relaying(
            database.relay_url, broker.url, broker.name_prefix, relay_park_after_seconds=0.2
        ):
            await parked_are(database, *["failed"] * 10, *["behind"] * 20)
        streams = {row.stream.entity_id: row.stream for row in rows}
        rows += rows_of([*streams.values()], 2, routing_key=later, required=True)
        await append(owner, rows[30:])
        await declare_queue(channel, later)
        consumer = await consume(channel, later)
        await make_due(owner)
        strike = Strike(point, Act.KILL, tmp_path, nth=nth)
        async with armed_process("relay", environment(database, broker), strike) as relay:
            await died(relay)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await consumer.has(rows)
            await all_passed(database.relay_url)
            await parked_are(database)
        log = await read_log(owner, "")
    arrivals = [Arrival(message.event_id, message.body) for message in consumer.messages]
    assert faults(committed=log, arrivals=arrivals) == []


@pytest.mark.requirement("RELAY-03")
@pytest.mark.requirement("RELAY-04")
async def test_a_relay_that_stood_still_over_a_parked_row_cannot_note_it(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    """Its claim runs out in front of the note; another relay sends the row again and notes it."""
    async with broker_channel(broker.url) as channel, session(database.owner_url) as owner:
        later = f"{broker.name_prefix}.later"
        rows = rows_of([Stream()], 2, routing_key=later, required=True)
        await append(owner, rows)
        async with relaying(
            database.relay_url, broker.url, broker.name_prefix, relay_park_after_seconds=0.2
        ):
            await parked_are(database, "failed", "behind")
        await declare_queue(channel, later)
        consumer = await consume(channel, later)
        await make_due(owner)
        strike = Strike(FaultPoint.BEFORE_UNPARK, Act.WAIT, tmp_path)
        async with armed_process("relay", environment(database, broker), strike) as stuck:
            await reached(strike)
            async with relaying(database.relay_url, broker.url, broker.name_prefix):
                await consumer.has(rows)
                await parked_are(database)
                strike.go()
                stuck.terminate()
                assert await stuck.wait() == 0
        assert await owner.fetchval("select sum(parked) from tenure.relay_shards") == 0
        log = await read_log(owner, "")
    arrivals = [Arrival(message.event_id, message.body) for message in consumer.messages]
    assert len(arrivals) >= 3
    assert faults(committed=log, arrivals=arrivals) == []
