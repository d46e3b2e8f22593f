"""Replays over a real PostgreSQL and a real RabbitMQ, all servers well (REPLAY-01)."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import aio_pika
import pytest

from tenure.contract.states import EntityType, ReplayPause, ReplayState
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import LogRow, Stream, rows_of
from tests.support.relays import broker_channel, declare_events, declare_queue, relaying
from tests.support.replays import (
    became,
    change,
    history,
    listen,
    look,
    park,
    record,
    rewrite,
    start,
    subscribe,
)
from tests.support.sessions import session, until


@pytest.mark.requirement("REPLAY-01")
async def test_a_replay_publishes_the_recorded_bytes_in_order_to_one_queue_and_says_whose_it_is(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        exchange = await declare_events(channel, broker.name_prefix)
        live = await declare_queue(channel, f"{broker.name_prefix}.live", exchange)
        queue = await declare_queue(channel, f"{broker.name_prefix}.again")
        streams = [Stream() for _ in range(30)]
        rows = rows_of(streams, 8, exchange=exchange, routing_key="default.task.open")
        await record(database, rows)
        replay_id = await start(database, queue)
        again = await listen(channel, queue)
        elsewhere = await listen(channel, live)
        async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:
            done = await became(database, replay_id, ReplayState.COMPLETED)
            assert parts.metrics.registry.get_sample_value("tenure_relay_replayed_total") == 240
        await again.has(rows)
    bodies = {str(row.event_id): row.body for row in rows}
    assert len(again.messages) == len(rows)
    assert all(
        body == bodies[event_id] and of == replay_id for event_id, of, body in again.messages
    )
    for stream in streams:
        ids = [str(row.event_id) for row in rows if row.stream is stream]
        assert [one for one in again.event_ids if one in set(ids)] == ids
    assert elsewhere.messages == []
    assert (done.replayed, done.held_back, done.expected) == (240, 0, 240)
    assert done.position == done.to_position
    assert (done.created_by, done.reason) == ("ops", "a test")
    assert done.ended_at is not None
    assert [(each.change, each.actor) for each in await history(database, replay_id)] == [
        ("started", "ops"),
        ("completed", "relay"),
    ]


@pytest.mark.requirement("REPLAY-01")
async def test_each_condition_chooses_its_rows_and_all_of_them_have_to_hold(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        one, other = Stream(), Stream()
        rows = rows_of([one, other], 6, exchange="e", routing_key="k")
        attempt, node = uuid4(), uuid4()
        positions = await record(database, rows)
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        for n, row in enumerate(rows):
            await rewrite(database, row, recorded_at=noon + timedelta(minutes=n))
        await rewrite(database, rows[2], tenant="shop")
        await rewrite(database, rows[3], next_state="delivered")
        await rewrite(database, rows[4], entity_type="attempt", entity_id=attempt)
        await rewrite(
            database, rows[5], entity_type="node", entity_id=node, order_key=node,
            next_state="active",
        )  # fmt: skip
        await rewrite(database, rows[6], exchange="", routing_key="node.q", copy=True)
        await rewrite(database, rows[7], exchange="", routing_key="plain.q")
        events = {n for n in range(12) if n != 6}
        mine = {n for n in events if rows[n].stream is one}
        cases: list[tuple[dict[str, Any], set[int]]] = [
            ({}, events),
            ({"from_position": positions[3]}, {n for n in events if n >= 3}),
            ({"to_position": positions[3]}, {0, 1, 2, 3}),
            ({"from_position": positions[2], "to_position": positions[2]}, {2}),
            ({"since": noon + timedelta(minutes=8)}, {8, 9, 10, 11}),
            ({"until": noon + timedelta(minutes=2)}, {0, 1}),
            ({"tenant": "shop"}, {2}),
            ({"task_id": str(one.entity_id)}, mine),
            ({"entity_type": EntityType.NODE}, {5}),
            ({"entity_type": EntityType.TASK}, events - {4, 5}),
            ({"entity_type": EntityType.NODE, "entity_id": str(node)}, {5}),
            ({"entity_type": EntityType.ATTEMPT, "entity_id": str(attempt)}, {4}),
            ({"types": ("tenure.task.delivered", "tenure.node.active")}, {3, 5}),
            ({"destination": "node.q"}, {6}),
            ({"destination": "plain.q"}, {7}),
            ({"task_id": str(one.entity_id), "since": noon + timedelta(minutes=8)}, {8, 10}),
            ({"tenant": "shop", "types": ("tenure.task.delivered",)}, set()),
            ({"since": noon + timedelta(days=1)}, set()),
            ({"from_position": positions[-1] + 1}, set()),
        ]
        replays = []
        for n, (asked, wanted) in enumerate(cases):
            queue = await declare_queue(channel, f"{broker.name_prefix}.case-{n}")
            replay_id = await start(database, queue, **asked)
            replays.append((replay_id, await listen(channel, queue), asked, wanted))
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            for replay_id, again, asked, wanted in replays:
                done = await became(database, replay_id, ReplayState.COMPLETED)
                await again.has(rows[n] for n in wanted)
                assert set(again.event_ids) == {str(rows[n].event_id) for n in wanted}, asked
                assert (done.replayed, done.expected) == (len(wanted), len(wanted)), asked
                assert done.expected_exactly


@pytest.mark.requirement("REPLAY-01")
async def test_it_stands_at_a_word_and_goes_on_from_there_or_ends_for_good(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        again = await listen(channel, queue)
        rows = rows_of([Stream() for _ in range(50)], 4, exchange="e", routing_key="k")
        await record(database, rows)
        # So slowly that it is not at its end before a word reaches it.
        replay_id = await start(database, queue, rate=5)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await again.has(rows[:1])
            await change(database, replay_id, "paused")
            stands = await became(database, replay_id, ReplayState.PAUSED, ReplayPause.OPERATOR)
            published = stands.replayed
            assert 0 < published < len(rows)
            await again.counts(published)
            await change(database, replay_id, "paused")  # once more: nothing changes

            await change(database, replay_id, "resumed")
            await again.has(rows[: published + 1])
            await change(database, replay_id, "cancelled")
            ended = await became(database, replay_id, ReplayState.CANCELLED)
            assert published < ended.replayed < len(rows)
            await again.counts(ended.replayed)
            assert len(set(again.event_ids)) == len(again.messages)
        said = [(each.change, each.actor) for each in await history(database, replay_id)]
        assert said == [(what, "ops") for what in ("started", "paused", "resumed", "cancelled")]


@pytest.mark.requirement("REPLAY-01")
async def test_a_missing_queue_pauses_it_and_drops_nothing(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        rows = rows_of([Stream() for _ in range(20)], 3, exchange="e", routing_key="k")
        await record(database, rows)
        queue = f"{broker.name_prefix}.later"
        replay_id = await start(database, queue)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            stands = await became(
                database, replay_id, ReplayState.PAUSED, ReplayPause.QUEUE_MISSING
            )
            assert stands.replayed == 0
            assert queue in (stands.pause_detail or "")
            again = await listen(channel, await declare_queue(channel, queue))
            await change(database, replay_id, "resumed")
            await became(database, replay_id, ReplayState.COMPLETED)
            await again.has(rows)
        assert len(again.messages) == len(rows)
        assert [each.actor for each in await history(database, replay_id)] == [
            "ops", "relay", "ops", "relay",
        ]  # fmt: skip


async def test_a_row_that_cannot_be_sent_pauses_it_there(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        large = Stream().next(exchange="e", routing_key="k", filler="x" * 2000)
        rows = [*rows_of([Stream()], 2, exchange="e", routing_key="k"), large]
        positions = await record(database, rows)
        replay_id = await start(database, queue)
        async with relaying(
            database.relay_url, broker.url, broker.name_prefix, relay_max_body_bytes=1500
        ):
            stands = await became(database, replay_id, ReplayState.PAUSED, ReplayPause.NOT_SENDABLE)
        assert f"position {positions[-1]}" in (stands.pause_detail or "")
        assert stands.position < positions[-1]


async def test_a_full_queue_is_tried_again_until_there_is_room(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    full = f"{broker.name_prefix}.full"
    async with broker_channel(broker.url) as channel:
        await channel.declare_queue(
            full, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
        rows = rows_of([Stream() for _ in range(6)], 1, exchange="e", routing_key="k")
        await record(database, rows)
        replay_id = await start(database, full)
        async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:

            async def refused() -> bool:
                name = "tenure_relay_replay_publishes_total"
                count = parts.metrics.registry.get_sample_value(name, {"outcome": "nacked"})
                return (count or 0) >= 5

            await until(refused)
            again = await listen(channel, full)
            await became(database, replay_id, ReplayState.COMPLETED)
            await again.has(rows)
    assert len(again.messages) == len(rows)


@pytest.mark.requirement("REPLAY-01")
async def test_it_never_overtakes_the_live_cursors(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """A row that the live relay cannot publish holds up what lies behind it."""
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        again = await listen(channel, queue)
        there = f"{broker.name_prefix}.there"
        before = rows_of([Stream() for _ in range(5)], 2, exchange="", routing_key=queue)
        stuck = Stream().next(exchange="", routing_key=there, required=True)
        after = rows_of([stuck.stream], 2, exchange="", routing_key=there, required=True)
        await record(database, before)
        (position, *_) = await record(database, [stuck, *after], passed=False)
        replay_id = await start(database, queue)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await again.has(before)

            async def waits() -> bool:
                return (await look(database, replay_id)).waits_for_live

            await until(waits)
            assert (await look(database, replay_id)).position == position - 1
            live = await listen(channel, await declare_queue(channel, there))
            await live.has([stuck, *after])
            await became(database, replay_id, ReplayState.COMPLETED)
            await again.has([stuck, *after])
    assert len(again.messages) == len(before) + 3


@pytest.mark.requirement("REPLAY-01")
async def test_it_stops_before_what_the_queues_consumers_may_have_forgotten_unless_forced(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        again = await listen(channel, queue)
        rows = rows_of([Stream()], 6, exchange="e", routing_key="k")
        await record(database, rows)
        for row in rows[3:]:  # a clock that was set back: the newer rows are the older ones
            await rewrite(database, row, recorded_at=datetime.now(UTC) - timedelta(hours=3))
        await subscribe(database, queue, timedelta(hours=2))
        replay_id = await start(database, queue)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            stands = await became(
                database, replay_id, ReplayState.PAUSED, ReplayPause.BEHIND_DEDUPE_RETENTION
            )
            assert stands.replayed < len(rows)
            assert set(again.event_ids) <= {str(row.event_id) for row in rows[:3]}
            await change(database, replay_id, "resumed")
            await became(
                database, replay_id, ReplayState.PAUSED, ReplayPause.BEHIND_DEDUPE_RETENTION
            )
            await change(database, replay_id, "resumed", force=True)
            done = await became(database, replay_id, ReplayState.COMPLETED)
            await again.has(rows)
        assert done.forced


@pytest.mark.requirement("RELAY-04")
@pytest.mark.requirement("REPLAY-01")
async def test_rows_that_are_parked_and_what_waits_behind_them_are_left_out_and_counted(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    """What has not been published is no matter for a replay: the shard's relay publishes it."""
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        again = await listen(channel, queue)
        held, flowing, free = Stream(), Stream(), Stream()
        rows = rows_of([held, flowing, free], 4, exchange="e", routing_key="k")
        await record(database, rows)
        await park(database, rows[3], holds=True)  # the second of the held stream
        await park(database, rows[4], holds=False)  # the second of the one that flows
        replay_id = await start(database, queue)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            done = await became(database, replay_id, ReplayState.COMPLETED)
            await again.has(row for n, row in enumerate(rows) if n not in (3, 4, 6, 9))
        assert len(again.messages) == 8
        assert (done.replayed, done.held_back) == (8, 4)


async def test_live_rows_flow_while_a_replay_is_under_way(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        live_queue = await declare_queue(channel, f"{broker.name_prefix}.live")
        again, live = await listen(channel, queue), await listen(channel, live_queue)
        old = rows_of([Stream() for _ in range(100)], 10, exchange="e", routing_key="k")
        await record(database, old)
        replay_id = await start(database, queue, rate=20)
        async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:
            await again.has(old[:1])
            new = rows_of([Stream() for _ in range(100)], 5, routing_key=live_queue, required=True)
            await record(database, new, passed=False)
            await live.has(new)
            assert (await look(database, replay_id)).state is ReplayState.RUNNING
            assert parts.replays.in_flight <= 200
            await change(database, replay_id, "cancelled")
            await became(database, replay_id, ReplayState.CANCELLED)
    assert all(of is None for _, of, _ in live.messages)


async def test_a_relay_that_stops_hands_its_replays_over_without_a_double(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        again = await listen(channel, queue)
        rows: list[LogRow] = rows_of([Stream() for _ in range(30)], 4, exchange="e")
        await record(database, rows)
        replay_id = await start(database, queue, rate=25)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await again.has(rows[:10])
        between = await look(database, replay_id)
        assert between.relay is None
        assert 0 < between.replayed < len(rows)
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await became(database, replay_id, ReplayState.COMPLETED)
            await again.has(rows)
    assert len(again.messages) == len(rows)
    async with session(database.owner_url) as owner:
        query = "select claim_token from tenure.replays"
        assert await owner.fetchval(query) == 2


async def test_nothing_is_asked_of_the_broker_while_there_is_nothing_to_replay(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with relaying(database.relay_url, broker.url, broker.name_prefix) as parts:

        async def looked() -> bool:
            return parts.replays._look_at > 0

        await until(looked)
        assert parts.replays._connection is None
        connection = await aio_pika.connect(broker.url)
        async with connection:
            queue = await declare_queue(await connection.channel(), f"{broker.name_prefix}.q")
            await record(database, [Stream().next(exchange="e")])
            replay_id = await start(database, queue)
            await became(database, replay_id, ReplayState.COMPLETED)
        assert parts.replays._connection is not None
