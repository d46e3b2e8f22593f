"""Claims and cursors of the relay in PostgreSQL (RELAY-03)."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tenure.relay.core.rows import Cursor, Follow, Want
from tenure.relay.errors import LogNotMigrated, LogUnavailable
from tenure.relay.log import RelayLog, load_queries
from tests.support.isolation import FreshDatabase, with_path
from tests.support.log_rows import Stream, append, rows_of
from tests.support.sessions import blocked, session

LEASE = timedelta(seconds=60)
RENEW = "select tenure.relay_renew($1, $2, $3, $4)"
ADVANCE = "select tenure.relay_advance($1, $2, $3, $4, '{}', '{}', '{}', '{}', '{}')"


async def end_claims(database: FreshDatabase) -> None:
    """As if the claims' time had run out."""
    async with session(database.owner_url) as owner:
        await owner.execute("update tenure.relay_shards set claimed_until = clock_timestamp()")


async def stored(database: FreshDatabase, shard: int) -> tuple[int, int]:
    """Cursor and claim token of a shard."""
    async with session(database.relay_url) as reader:
        row = await reader.fetchrow(
            'select "position", claim_token from tenure.relay_shards where shard = $1', shard
        )
        assert row is not None
        return row["position"], row["claim_token"]


async def some_rows(database: FreshDatabase, count: int) -> tuple[Stream, list[int]]:
    stream = Stream()
    async with session(database.owner_url) as owner:
        return stream, await append(owner, rows_of([stream], count))


async def test_a_shard_has_one_holder_and_every_change_of_hands_raises_its_token(
    database: FreshDatabase,
) -> None:
    one, two = (RelayLog(database.relay_url, uuid4(), 60) for _ in range(2))
    first = await one.claim(64)
    assert {claim.shard for claim in first} == set(range(64))
    assert await two.claim(64) == []
    await end_claims(database)
    second = await two.claim(64)
    assert {claim.claim_token for claim in first} == {1}
    assert {claim.claim_token for claim in second} == {2}
    await one.close()
    await two.close()


async def test_relays_that_claim_at_once_get_disjoint_shards(database: FreshDatabase) -> None:
    relays = [RelayLog(database.relay_url, uuid4(), 60) for _ in range(4)]
    answers = await asyncio.gather(*(relay.claim(16) for relay in relays))
    again = await asyncio.gather(*(relay.claim(16) for relay in relays))
    taken = [claim.shard for answer in (*answers, *again) for claim in answer]
    assert sorted(taken) == list(range(64))
    for relay in relays:
        await relay.close()


@pytest.mark.requirement("RELAY-03")
@pytest.mark.parametrize("forbidden", [(), ("hashjoin", "mergejoin"), ("nestloop",)])
async def test_a_claim_takes_no_more_than_it_wants_whatever_the_plan(
    database: FreshDatabase, forbidden: tuple[str, ...]
) -> None:
    async with session(database.relay_url) as relay:
        for method in forbidden:
            await relay.execute(f"set enable_{method} = off")
        claim, relay_id = load_queries()["claim"], uuid4()
        assert [row["shard"] for row in await relay.fetch(claim, relay_id, 7, LEASE)] == [*range(7)]
        assert len(await relay.fetch(claim, relay_id, 10, LEASE)) == 3
        assert await relay.fetch(claim, relay_id, 10, LEASE) == []


async def test_a_released_shard_is_free_at_once(database: FreshDatabase) -> None:
    one, two = (RelayLog(database.relay_url, uuid4(), 60) for _ in range(2))
    claims = {claim.shard: claim.claim_token for claim in await one.claim(64)}
    await one.release({0: claims[0], 1: claims[1] + 1})  # the second token is none of its own
    assert [claim.shard for claim in await two.claim(64)] == [0]
    await one.close()
    await two.close()


@pytest.mark.requirement("RELAY-03")
async def test_a_relay_that_lost_its_claim_cannot_move_the_cursor(
    database: FreshDatabase,
) -> None:
    stream, positions = await some_rows(database, 3)
    old, new = (RelayLog(database.relay_url, uuid4(), 60) for _ in range(2))
    before = {claim.shard: claim for claim in await old.claim(64)}[stream.shard]
    assert await old.advance([Cursor(stream.shard, before.claim_token, positions[0])])

    await end_claims(database)
    late = Cursor(stream.shard, before.claim_token, positions[1])
    assert await old.advance([late]) == set()  # nobody else has taken it yet
    after = {claim.shard: claim for claim in await new.claim(64)}[stream.shard]
    assert after.position == positions[0]
    assert await old.advance([late]) == set()
    assert await old.renew({stream.shard: before.claim_token}) == set()
    assert await stored(database, stream.shard) == (positions[0], after.claim_token)

    # Nor with the right token and the wrong name.
    forged = Cursor(stream.shard, after.claim_token, positions[2])
    assert await old.advance([forged]) == set()
    assert await new.advance([forged]) == {stream.shard}
    await old.close()
    await new.close()


@pytest.mark.requirement("RELAY-03")
async def test_an_older_claim_of_the_same_relay_counts_for_nothing(
    database: FreshDatabase,
) -> None:
    """A relay that was stopped, and took its shard again, may still hold answers of before."""
    stream, positions = await some_rows(database, 1)
    relay = RelayLog(database.relay_url, uuid4(), 60)
    old = {claim.shard: claim for claim in await relay.claim(64)}[stream.shard]
    await end_claims(database)
    new = {claim.shard: claim for claim in await relay.claim(64)}[stream.shard]
    assert new.claim_token == old.claim_token + 1
    assert await relay.renew({stream.shard: old.claim_token}) == set()
    assert await relay.advance([Cursor(stream.shard, old.claim_token, positions[0])]) == set()
    await relay.release({stream.shard: old.claim_token})
    assert await relay.renew({stream.shard: new.claim_token}) == {stream.shard}
    await relay.close()


async def test_a_cursor_never_moves_backwards_nor_past_the_log(database: FreshDatabase) -> None:
    stream, positions = await some_rows(database, 2)
    relay = RelayLog(database.relay_url, uuid4(), 60)
    claim = {claim.shard: claim for claim in await relay.claim(64)}[stream.shard]
    assert await relay.advance([Cursor(stream.shard, claim.claim_token, positions[1])])
    assert await relay.advance([Cursor(stream.shard, claim.claim_token, positions[0])]) == set()
    with pytest.raises(LogUnavailable, match="pass the end of the log"):
        await relay.advance([Cursor(stream.shard, claim.claim_token, positions[1] + 1)])
    assert (await stored(database, stream.shard))[0] == positions[1]
    await relay.close()


@pytest.mark.requirement("RELAY-03")
@pytest.mark.parametrize("call", ["renew", "advance"])
async def test_a_claim_that_ends_while_the_call_waits_for_the_row_gives_nothing(
    database: FreshDatabase, call: str
) -> None:
    """The blocker changes nothing: only a clock read after the lock sees that time ran out."""
    stream, positions = await some_rows(database, 1)
    relay_id = uuid4()
    relay = RelayLog(database.relay_url, relay_id, 60)
    claim = {claim.shard: claim for claim in await relay.claim(64)}[stream.shard]
    await relay.close()
    async with (
        session(database.owner_url) as owner,
        session(database.owner_url) as waiting,
        session(database.admin_url) as observer,
    ):
        await owner.execute(
            "update tenure.relay_shards set claimed_until = clock_timestamp() + interval '1 second'"
        )
        blocker = owner.transaction()
        await blocker.start()
        await owner.execute("select from tenure.relay_shards for update")
        shards, tokens = [stream.shard], [claim.claim_token]
        arguments: list[Any] = [relay_id, shards, tokens]
        arguments.append(LEASE if call == "renew" else positions)
        answer = asyncio.create_task(
            waiting.fetch(RENEW if call == "renew" else ADVANCE, *arguments)
        )
        await blocked(observer, waiting)
        # Waits in the server for the very instant that matters.
        await observer.execute("select pg_sleep_until(max(claimed_until)) from tenure.relay_shards")
        await blocker.rollback()
        assert await answer == []


@pytest.mark.parametrize("lease", [timedelta(0), timedelta(minutes=6), None])
async def test_a_claim_for_no_time_or_for_ever_is_refused(
    database: FreshDatabase, lease: timedelta | None
) -> None:
    async with session(database.relay_url) as relay:
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await relay.fetch(load_queries()["claim"], uuid4(), 64, lease)


async def test_reading_keeps_to_shards_rows_and_bytes(database: FreshDatabase) -> None:
    one, other = Stream(), Stream(UUID(int=1))
    while other.shard == one.shard:
        other = Stream()
    async with session(database.owner_url) as owner:
        positions = await append(owner, rows_of([one, other], 4))
    relay = RelayLog(database.relay_url, uuid4(), 60)

    async def read(rows: int, body_bytes: int, after: int = 0) -> list[int]:
        found, end = await relay.read([Want(one.shard, after, rows, body_bytes)])
        assert end == positions[-1]
        assert {row.stream for row in found} <= {("task", one.entity_id)}
        return [row.position for row in found]

    mine = positions[0::2]
    found, _ = await relay.read([Want(one.shard, 0, 1, 1)])
    size = len(found[0].body)
    assert await read(100, 10**6) == mine
    assert await read(2, 10**6) == mine[:2]
    assert await read(100, 10**6, after=mine[1]) == mine[2:]
    assert await read(100, 1) == mine[:1]  # at least one, however large
    assert await read(100, size) == mine[:1]
    assert await read(100, size + 1) == mine[:2]
    assert await read(100, 10**6, after=mine[-1]) == []
    lag = await relay.lag()
    assert lag.rows == 8
    assert lag.seconds > 0
    await relay.close()


async def test_following_keeps_to_shards_rows_and_bytes_and_tells_the_end_of_the_log(
    database: FreshDatabase,
) -> None:
    one, two, other = Stream(), Stream(), Stream()
    while two.shard == one.shard:
        two = Stream()
    while other.shard in (one.shard, two.shard):
        other = Stream()
    async with session(database.owner_url) as owner:
        positions = await append(owner, rows_of([one, two, other], 4))
    relay = RelayLog(database.relay_url, uuid4(), 60)

    async def follow(rows: int, body_bytes: int, after: int = 0) -> list[int]:
        asked = Follow([one.shard, two.shard], after, rows, body_bytes)
        found, end = await relay.follow(asked)
        assert {row.stream for row in found} <= {("task", each.entity_id) for each in (one, two)}
        assert end == positions[-1]
        return [row.position for row in found]

    ours = [position for n, position in enumerate(positions) if n % 3 < 2]
    found, _ = await relay.follow(Follow([one.shard, two.shard], 0, 1, 1))
    size = len(found[0].body)
    assert await follow(100, 10**6) == ours
    assert await follow(3, 10**6) == ours[:3]
    assert await follow(100, 10**6, after=ours[1]) == ours[2:]
    assert await follow(100, 1) == ours[:1]  # at least one, however large
    assert await follow(100, size) == ours[:1]
    assert await follow(100, size + 1) == ours[:2]
    assert await follow(100, 10**6, after=ours[-1]) == []
    assert await follow(100, 10**6, after=positions[-1]) == []
    await relay.close()


async def test_an_empty_log_has_the_end_0(database: FreshDatabase) -> None:
    relay = RelayLog(database.relay_url, uuid4(), 60)
    assert await relay.read([Want(0, 0, 1, 1)]) == ([], 0)
    assert await relay.follow(Follow([0], 0, 1, 1)) == ([], 0)
    await relay.close()


async def test_every_query_can_be_prepared_with_the_relays_rights(database: FreshDatabase) -> None:
    async with session(database.relay_url) as relay:
        for name, query in load_queries().items():
            statement = await relay.prepare(query)
            assert statement.get_query() == query, name


async def test_reads_use_indexes_on_a_log_that_was_never_analysed(
    database: FreshDatabase,
) -> None:
    """A plan made while the log was empty is kept: it must not be one of sequential scans."""
    async with session(database.relay_url) as relay:
        await relay.execute("set plan_cache_mode = force_generic_plan")
        queries = load_queries()
        shards = "array[0, 1]::smallint[]"
        numbers = "array[10, 10]::bigint[]"
        for name, arguments in (
            ("follow", "0, array[0, 1]::smallint[], 10, 10"),
            ("read", f"{shards}, {numbers}, {numbers}, {numbers}"),
            ("lag", "10"),
            ("held", shards),
            ("due", f"{shards}, 10, 10, 10"),
        ):
            await relay.execute(f"prepare {name} as {queries[name]}")
            plan = await relay.fetch(f"explain execute {name}({arguments})")
            text = "\n".join(line[0] for line in plan)
            assert "Index" in text
            assert "Seq Scan on log" not in text
            assert "Seq Scan on parked" not in text


async def test_a_database_without_the_schema_is_told_apart_from_one_that_is_away(
    empty_database: FreshDatabase,
) -> None:
    relay = RelayLog(empty_database.owner_url, uuid4(), 60)
    with pytest.raises(LogNotMigrated) as caught:
        await relay.check()
    await relay.close()
    assert caught.value.code == "not_migrated"
    away = RelayLog(with_path("postgresql://a:b@127.0.0.1:1", "nowhere"), uuid4(), 60)
    with pytest.raises(LogUnavailable) as unavailable:
        await away.claim(1)
    assert unavailable.value.code == "unavailable"
