"""A relay killed in a replay at each of its named points; confirms that never come."""

import signal
from pathlib import Path

import pytest

from tenure.cli.chaos.toxic import toxic
from tenure.cli.drills.strikes import Act, Strike
from tenure.contract.faultpoints import FaultPoint
from tenure.contract.states import ReplayState
from tenure.relay.replay import SUBJECT
from tests.support.armed import armed_process, died, reached, stopped
from tests.support.books import Arrival, faults, read_log
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import Stream, rows_of
from tests.support.relays import broker_channel, declare_queue, relaying
from tests.support.replays import became, listen, look, record, start
from tests.support.sessions import session, until
from tests.support.toxic_filters import WithoutConfirms

POINTS = {
    # No more than 200 are unconfirmed at once, however much a slow machine publishes together.
    FaultPoint.BEFORE_PUBLISH: 4,
    FaultPoint.AFTER_PUBLISH: 4,
    FaultPoint.AFTER_CONFIRM: 4,
    # Noted twice a second, and at the end.
    FaultPoint.BEFORE_CURSOR_MOVE: 2,
    FaultPoint.AFTER_CURSOR_MOVE: 2,
}
"""Where, and how often it is surely reached while 1,000 rows are published at a rate."""


def environment(database: FreshDatabase, broker: BrokerSpace) -> dict[str, str]:
    return {
        "TENURE_DATABASE_URL": database.relay_url,
        "TENURE_BROKER_URL": broker.url,
        "TENURE_NAME_PREFIX": broker.name_prefix,
        "TENURE_RELAY_LISTEN": "127.0.0.1:0",
        "TENURE_RELAY_CLAIM_SECONDS": "60",
    }


async def end_claims(database: FreshDatabase) -> None:
    """As time would: claims so short that a test waits for them are lost on a busy machine as well,
    and then more is published twice than what was not noted."""
    async with session(database.owner_url) as owner:
        for change in (
            "relay_shards set claimed_until = clock_timestamp() where relay_id is not null",
            "replays set claimed_until = clock_timestamp() where relay_id is not null",
            "relays set attends_until = clock_timestamp()",
        ):
            await owner.execute(f"update tenure.{change}")


@pytest.mark.requirement("REPLAY-01")
@pytest.mark.parametrize(("point", "nth"), list(POINTS.items()))
async def test_a_relay_killed_in_a_replay_loses_nothing_and_another_goes_on_in_order(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path, point: FaultPoint, nth: int
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        again = await listen(channel, queue)
        rows = rows_of([Stream() for _ in range(250)], 4, exchange="e", routing_key="k")
        await record(database, rows)
        replay_id = await start(database, queue, rate=1_000)
        strike = Strike(point, Act.KILL, tmp_path, nth=nth, subject=SUBJECT)
        async with armed_process("relay", environment(database, broker), strike) as relay:
            await died(relay)
            assert strike.sign() is not None
        await end_claims(database)
        between = await look(database, replay_id)
        assert between.state is ReplayState.RUNNING
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            done = await became(database, replay_id, ReplayState.COMPLETED)
            await again.has(rows)
    async with session(database.owner_url) as owner:
        committed = await read_log(owner, "e")
    arrivals = [Arrival(event_id, body) for event_id, _, body in again.messages]
    assert faults(committed=committed, arrivals=arrivals) == []
    assert (done.replayed, done.position) == (len(rows), done.to_position)
    # What was noted is not published again.
    assert len(again.messages) - len(rows) <= len(rows) - between.replayed


@pytest.mark.requirement("REPLAY-01")
@pytest.mark.requirement("RELAY-03")
async def test_a_relay_that_was_stopped_meanwhile_moves_nothing_when_it_wakes(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    """It stands before it notes how far it came; another relay takes over and completes."""
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        again = await listen(channel, queue)
        rows = rows_of([Stream() for _ in range(20)], 4, exchange="e", routing_key="k")
        await record(database, rows)
        replay_id = await start(database, queue, rate=200)
        strike = Strike(FaultPoint.BEFORE_CURSOR_MOVE, Act.STOP, tmp_path, nth=1, subject=SUBJECT)
        async with armed_process("relay", environment(database, broker), strike) as relay:
            pid = await reached(strike)
            assert pid == relay.pid
            await stopped(pid)
            await end_claims(database)
            async with relaying(database.relay_url, broker.url, broker.name_prefix):
                done = await became(database, replay_id, ReplayState.COMPLETED)
            relay.send_signal(signal.SIGCONT)
            relay.terminate()
            assert await relay.wait() == 0
        await again.has(rows)
        assert await look(database, replay_id) == done
        async with session(database.owner_url) as owner:
            assert await owner.fetchval("select claim_token from tenure.replays") == 2


@pytest.mark.requirement("REPLAY-01")
async def test_without_confirms_little_is_under_way_next_to_none_beside_live_and_nothing_is_noted(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    withheld = True
    async with (
        toxic(broker.url, lambda: WithoutConfirms(lambda: withheld)) as proxy,
        broker_channel(broker.url) as channel,
    ):
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        again = await listen(channel, queue)
        rows = rows_of([Stream() for _ in range(400)], 2, exchange="e", routing_key="k")
        await record(database, rows)
        beside = await start(database, queue)
        async with relaying(
            database.relay_url, proxy.url, broker.name_prefix,
            relay_confirm_timeout_seconds=60, relay_drain_seconds=0.1,
        ) as parts:  # fmt: skip
            parts.replays._live_waits = lambda: True

            async def under_way(number: int) -> bool:
                return parts.replays.in_flight == number

            await until(lambda: under_way(10))
            parts.replays._live_waits = lambda: False
            await until(lambda: under_way(200))
            assert (await look(database, beside)).replayed == 0
            assert parts.replays.courses[0].progress.replayed == 0
            (course,) = parts.replays.courses
            assert len(course._entries) <= 512
        withheld = False
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            await became(database, beside, ReplayState.COMPLETED)
            await again.has(rows)
