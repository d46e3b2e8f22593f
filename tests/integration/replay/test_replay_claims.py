"""Claims, positions and bounds of replays in PostgreSQL (REPLAY-01, RELAY-03)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from tenure.contract.replay import ReplayFilter
from tenure.contract.states import ReplayPause, ReplayState
from tenure.coordinator.store.replay import Replays
from tenure.relay.core.replay import Bounds, Course, Progress, Stopped
from tenure.relay.log import RelayLog, load_queries
from tenure.relay.replay_log import ReplayClaim, ReplayLog
from tests.support.isolation import FreshDatabase
from tests.support.log_rows import Stream, rows_of
from tests.support.replays import (
    SessionReader,
    change,
    history,
    look,
    pass_all,
    record,
    rewrite,
    start,
)
from tests.support.sessions import session


class Holder:
    """A relay, as far as it holds replays."""

    def __init__(self, database: FreshDatabase) -> None:
        self.relay_id = uuid4()
        self.log = RelayLog(database.relay_url, self.relay_id, 60)
        self.replays = ReplayLog(self.log, self.relay_id, 60)

    async def take(self, want: int = 4) -> list[Course]:
        """What it was given now."""
        return [course_of(claim) for claim in await self.replays.claim(want)]


def course_of(claim: ReplayClaim) -> Course:
    return Course(
        replay_id=claim.replay_id,
        claim_token=claim.claim_token,
        queue=claim.queue,
        rate=claim.rate,
        start=claim.progress,
        to_position=claim.to_position,
        now=0,
        bounds=Bounds(),
    )


def at(course: Course, position: int, replayed: int = 0) -> Course:
    """The course, said to have come so far."""
    return Course(
        replay_id=course.replay_id, claim_token=course.claim_token, queue=course.queue, rate=1,
        start=Progress(position, replayed, 0), to_position=position, now=0, bounds=Bounds(),
    )  # fmt: skip


@pytest.fixture
async def holders(database: FreshDatabase) -> AsyncIterator[tuple[Holder, Holder]]:
    both = Holder(database), Holder(database)
    yield both
    for one in both:
        await one.log.close()


async def end_claims(database: FreshDatabase) -> None:
    """As if the claims' time had run out."""
    async with session(database.owner_url) as owner:
        await owner.execute("update tenure.replays set claimed_until = clock_timestamp()")


@pytest.mark.requirement("RELAY-03")
@pytest.mark.requirement("REPLAY-01")
async def test_a_relay_that_lost_its_claim_moves_pauses_and_gives_back_nothing(
    database: FreshDatabase, holders: tuple[Holder, Holder]
) -> None:
    positions = await record(database, rows_of([Stream()], 5, exchange="e"))
    replay_id = await start(database, "q")
    old, new = holders
    (before,) = await old.take()
    assert await new.take() == []
    assert await old.replays.advance([at(before, positions[0], 1)]) == {
        replay_id: ReplayState.RUNNING
    }
    await end_claims(database)
    assert await old.replays.advance([at(before, positions[1], 2)]) == {}  # nobody else has it yet
    assert await old.replays.read(before, 10, 10_000) is None
    (after,) = await new.take()
    assert after.claim_token == before.claim_token + 1
    assert after.progress == Progress(positions[0], 1, 0)

    assert await old.replays.advance([at(before, positions[2], 3)]) == {}
    assert await old.replays.read(before, 10, 10_000) is None
    await old.replays.stop(before, Stopped(ReplayPause.QUEUE_MISSING, "late"))
    await old.replays.release([before])
    stands = await look(database, replay_id)
    assert (stands.state, stands.position) == (ReplayState.RUNNING, positions[0])
    assert stands.relay == str(new.relay_id)
    # Nor with the right token and the wrong name.
    assert await old.replays.advance([at(after, positions[2], 3)]) == {}
    assert await new.replays.advance([at(after, positions[2], 3)])


@pytest.mark.requirement("RELAY-03")
async def test_a_claim_that_ends_while_the_call_waits_for_the_row_moves_nothing(
    database: FreshDatabase, holders: tuple[Holder, Holder]
) -> None:
    positions = await record(database, rows_of([Stream()], 2, exchange="e"))
    replay_id = await start(database, "q")
    holder, _ = holders
    (course,) = await holder.take()
    async with session(database.owner_url) as owner, session(database.admin_url) as observer:
        await owner.execute(
            "update tenure.replays set claimed_until = clock_timestamp() + interval '0.3 seconds'"
        )
        blocker = owner.transaction()
        await blocker.start()
        await owner.execute("select from tenure.replays for update")
        answer = asyncio.create_task(holder.replays.advance([at(course, positions[0], 1)]))
        # Waits in the server for the very instant that matters.
        await observer.execute("select pg_sleep_until(max(claimed_until)) from tenure.replays")
        await blocker.rollback()
        assert await answer == {}
    assert (await look(database, replay_id)).replayed == 0


async def test_relays_that_claim_at_once_get_disjoint_replays_the_oldest_first(
    database: FreshDatabase, holders: tuple[Holder, Holder]
) -> None:
    await record(database, rows_of([Stream()], 2, exchange="e"))
    ids = [await start(database, "q") for _ in range(5)]
    one, two = holders
    first = await one.take(2)
    assert {course.replay_id for course in first} == set(ids[:2])
    assert await one.take(2) == []  # it holds as many as it wants
    both = await asyncio.gather(one.take(4), two.take(4))
    taken = [course.replay_id for part in both for course in part]
    assert sorted(taken) == sorted(ids[2:])


@pytest.mark.requirement("REPLAY-01")
async def test_a_position_never_moves_backwards_and_totals_said_twice_count_once(
    database: FreshDatabase, holders: tuple[Holder, Holder]
) -> None:
    positions = await record(database, rows_of([Stream()], 4, exchange="e"))
    replay_id = await start(database, "q")
    holder, _ = holders
    (course,) = await holder.take()
    for position, replayed in ((2, 3), (2, 3), (0, 1)):
        await holder.replays.advance([at(course, positions[position], replayed)])
        stands = await look(database, replay_id)
        assert (stands.position, stands.replayed) == (positions[2], 3)
    with pytest.raises(Exception, match="replay_is_in_its_bounds"):
        await holder.replays.advance([at(course, positions[-1] + 1, 5)])
    assert await holder.replays.advance([at(course, positions[-1], 4)]) == {
        replay_id: ReplayState.COMPLETED
    }
    assert [one.change for one in await history(database, replay_id)] == ["started", "completed"]


async def test_what_was_confirmed_before_a_pause_or_a_cancel_was_heard_of_is_noted(
    database: FreshDatabase, holders: tuple[Holder, Holder]
) -> None:
    positions = await record(database, rows_of([Stream()], 4, exchange="e"))
    holder, _ = holders
    for word, state in (("paused", ReplayState.PAUSED), ("cancelled", ReplayState.CANCELLED)):
        replay_id = await start(database, "q")
        (course,) = await holder.take()
        await change(database, replay_id, word)  # type: ignore[arg-type]  # both are words
        assert await holder.replays.advance([at(course, positions[-1], 4)]) == {replay_id: state}
        stands = await look(database, replay_id)
        assert (stands.state, stands.replayed) == (state, 4)
        await holder.replays.release([course])
        assert await holder.take() == []  # nobody takes what does not run


async def test_reading_keeps_to_rows_bytes_and_the_live_cursors(
    database: FreshDatabase, holders: tuple[Holder, Holder]
) -> None:
    rows = rows_of([Stream()], 6, exchange="e")
    positions = await record(database, rows[:4])
    positions += await record(database, rows[4:], passed=False)
    await start(database, "q")
    holder, _ = holders
    (course,) = await holder.take()

    async def read(limit: int, room: int) -> tuple[list[int], int]:
        found = await holder.replays.read(course, limit, room)
        assert found is not None
        return [row.position for row in found.rows], found.scanned_to

    size = len(rows[0].body)
    assert await read(100, 10**6) == (positions[:4], positions[3])
    assert await read(2, 10**6) == (positions[:2], positions[1])
    assert await read(100, 1) == (positions[:1], positions[0])  # at least one, however large
    assert await read(100, size + 1) == (positions[:2], positions[1])
    course.read_to = positions[3]
    assert await read(100, 10**6) == ([], positions[3])  # the rest is not published so far
    async with session(database.owner_url) as owner:
        await pass_all(owner)
    assert await read(100, 10**6) == (positions[4:], positions[5])


async def test_rows_are_found_by_time_and_a_clock_that_was_set_back_hides_none(
    database: FreshDatabase,
) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    async with session(database.admin_url) as admin:
        await admin.execute(
            """
            insert into tenure.log (shard, order_key, tenant, entity_type, entity_id, epoch,
                sequence, event_id, next_state, copy, exchange, routing_key, required, recorded_at,
                body)
            select n % 64, gen_random_uuid(), case n % 100 when 7 then 'rare' else 'default' end,
                'task', gen_random_uuid(), 1, 1, gen_random_uuid(), 'open', false, 'e', 'k', false,
                -- For an eighth of the log the clock was two hours behind.
                $1::timestamptz + n * interval '1 s'
                    - case when n between 25000 and 31000 then interval '2 hours' else '0' end, ''
            from generate_series(0, 49999) n
            """,
            noon,
        )
    low, high = noon + timedelta(hours=5.5), noon + timedelta(hours=6.5)
    async with session(database.coordinator_url) as connection:
        replays = Replays(SessionReader(connection))
        since = await replays.preview(ReplayFilter(since=high), "q")
        until = await replays.preview(ReplayFilter(until=high), "q")
        both = await replays.preview(ReplayFilter(since=low, until=high), "q")
        rare = await replays.preview(ReplayFilter(tenant="rare"), "q")
    query = (
        "select min(position) as first, max(position) as last, count(*) as rows from tenure.log"
        " where recorded_at >= $1 and recorded_at < $2"
    )
    async with session(database.owner_url) as owner:
        for preview, begin, end in (
            (since, high, noon + timedelta(days=1)),
            (until, noon, high),
            (both, low, high),
        ):
            there = await owner.fetchrow(query, begin, end)
            assert there is not None
            assert preview.from_position <= there["first"]
            assert preview.to_position >= there["last"]
            assert (preview.rows, preview.exact) == (there["rows"], True)
    assert since.from_position > both.from_position > 1  # it does not begin where the log does
    assert not rare.exact
    assert rare.rows == pytest.approx(500, rel=0.15)
    assert len(rare.sample) == 5


@pytest.mark.requirement("REPLAY-01")
async def test_no_question_of_a_replay_reads_the_log_from_end_to_end(
    database: FreshDatabase, holders: tuple[Holder, Holder]
) -> None:
    """Plans are made while the log is empty; then it grows, and nothing has analysed it."""
    holder, _ = holders
    task = Stream()
    (first,) = await record(database, [task.next(exchange="e")])
    by_type = ReplayFilter(types=("tenure.task.failed",))
    by_task = ReplayFilter(task_id=str(task.entity_id))

    async def fetched(connection: asyncpg.Connection) -> int:
        """Rows of the log that this transaction has read so far, by whatever way."""
        return int(
            await connection.fetchval(
                "select sum(seq_tup_read + idx_tup_fetch) from pg_stat_xact_user_tables"
                " where relname ~ '^log_p'"
            )
        )

    async with session(database.coordinator_url) as asking:
        replays = Replays(SessionReader(asking))
        for _ in range(7):
            await replays.preview(by_type, "q")
            await replays.preview(by_task, "q")
        async with session(database.admin_url) as admin:
            await admin.execute("alter table tenure.log_p000001 set (autovacuum_enabled = false)")
            await admin.execute(
                "insert into tenure.log (shard, order_key, tenant, entity_type, entity_id, epoch,"
                " sequence, event_id, next_state, copy, exchange, routing_key, required,"
                " recorded_at, body) select n % 64, id, 'default', 'task', id, 1, 1,"
                " gen_random_uuid(), 'open', false, 'e', 'k', false, now(), ''"
                " from (select n, gen_random_uuid() as id from generate_series(1, 60000) n) g"
            )
            await pass_all(admin)
        async with asking.transaction():
            estimated = await replays.preview(by_type, "q")
            counted = await fetched(asking)
            of_task = await replays.preview(by_task, "q")
            assert await fetched(asking) - counted < 100
        assert not estimated.exact
        assert (of_task.rows, of_task.exact) == (1, True)
        assert counted < 51_000  # forty pieces of a thousand, and twice 5,000 for the sample
    await start(database, "q", types=by_type.types)
    await start(database, "q", task_id=by_task.task_id)
    read = load_queries("replay.sql")["read"]
    scanning, of_one = await holder.take()
    async with session(database.relay_url) as relay:
        for course, wanted, most in ((scanning, [], 11_000), (of_one, [first], 200)):
            async with relay.transaction():
                before = await fetched(relay)
                found = await relay.fetch(
                    read, holder.relay_id, UUID(course.replay_id), course.claim_token, 0, 100, 10**6
                )
                assert [row["position"] for row in found if row["position"]] == wanted
                assert found[0]["scanned_to"] > first
                assert await fetched(relay) - before < most


async def test_every_query_can_be_prepared_with_the_relays_rights(database: FreshDatabase) -> None:
    async with session(database.relay_url) as relay:
        for query in load_queries("replay.sql").values():
            await relay.prepare(query)


async def test_an_attempts_stream_is_found_by_its_task(
    database: FreshDatabase, holders: tuple[Holder, Holder]
) -> None:
    """And by looking through the log once its attempt has been removed."""
    stream, attempt = Stream(), UUID(int=7)
    rows = rows_of([stream], 3, exchange="e")
    await record(database, rows)
    await rewrite(database, rows[1], entity_type="attempt", entity_id=attempt)
    async with session(database.admin_url) as admin:
        await admin.execute("set session_replication_role = replica")
        await admin.execute(
            "insert into tenure.attempts (attempt_id, task_id, tenant, ordinal, state, version,"
            " sequence, node_id, incarnation, lease_id, fencing_token, policy_version,"
            " lease_microseconds, expires_at, scope, dispatch_event_id, dispatched_at,"
            " submitted_at, decided_at) values ($1, $2, 'default', 1, 'submitted', 1, 1, 'n',"
            " gen_random_uuid(), gen_random_uuid(), 1, 1, 1, now(), '{}', gen_random_uuid(),"
            " now(), now(), now())",
            attempt,
            stream.entity_id,
        )
        query = "select order_key from tenure.replays where replay_id = $1"
        one = await start(database, "q", entity_type="attempt", entity_id=str(attempt))
        assert await admin.fetchval(query, UUID(one)) == stream.entity_id
        await admin.execute("delete from tenure.attempts")
        other = await start(database, "q", entity_type="attempt", entity_id=str(attempt))
        assert await admin.fetchval(query, UUID(other)) is None
    holder, _ = holders
    for course in await holder.take():
        found = await holder.replays.read(course, 10, 10**6)
        assert found is not None
        assert [row.event_id for row in found.rows] == [str(rows[1].event_id)]


async def test_a_replay_begun_twice_at_once_is_one(database: FreshDatabase) -> None:
    await record(database, rows_of([Stream()], 2, exchange="e"))
    replay_id = uuid4()
    call = "select tenure.start_replay($1, $2, 'q', '{}', 10, false, 2, true, 'why', 'ops')"
    async with session(database.coordinator_url) as one, session(database.coordinator_url) as two:
        answers = await asyncio.gather(
            one.fetchval(call, replay_id, "a"), two.fetchval(call, replay_id, "a")
        )
        assert sorted(answers) == ["same", "started"]
        assert await one.fetchval(call, replay_id, "b") == "conflict"


async def test_nothing_begins_or_goes_on_while_the_authority_is_in_doubt_and_stopping_is_possible(
    database: FreshDatabase,
) -> None:
    await record(database, rows_of([Stream()], 2, exchange="e"))
    replay_id = await start(database, "q")
    await change(database, replay_id, "paused")
    async with session(database.owner_url) as owner:
        await owner.execute("update tenure.authority set timeline = '0000FFFF'")
    with pytest.raises(Exception, match="authority"):
        await start(database, "q")
    with pytest.raises(Exception, match="authority"):
        await change(database, replay_id, "resumed")
    await change(database, replay_id, "cancelled")
    assert (await look(database, replay_id)).state is ReplayState.CANCELLED


@pytest.mark.parametrize("lease", [timedelta(0), timedelta(minutes=6), None])
async def test_a_claim_for_no_time_or_for_ever_is_refused(
    database: FreshDatabase, lease: timedelta | None
) -> None:
    async with session(database.relay_url) as relay:
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await relay.fetch(load_queries("replay.sql")["claim"], uuid4(), 4, lease)
