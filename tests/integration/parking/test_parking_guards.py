"""What the database refuses about parked rows, whoever asks (RELAY-03, RELAY-04)."""

from collections.abc import Sequence
from uuid import uuid4

import asyncpg
import pytest

from tenure.relay.core.outcome import Outcome
from tenure.relay.core.parking import BEHIND, Parking, Unparked, Unparking
from tenure.relay.core.rows import Cursor
from tenure.relay.errors import LogUnavailable
from tenure.relay.log import RelayLog
from tests.support.isolation import FreshDatabase
from tests.support.log_rows import Stream, append, rows_of
from tests.support.parked import ask, parked
from tests.support.sessions import session


class Shard:
    """One shard with rows of one stream, and a relay that holds it."""

    def __init__(self, database: FreshDatabase) -> None:
        self.database = database
        self.stream = Stream()
        self.log = RelayLog(database.relay_url, uuid4(), 60)
        self.positions: list[int] = []
        self.token = 0

    async def begin(self, rows: int) -> None:
        async with session(self.database.owner_url) as owner:
            self.positions = await append(owner, rows_of([self.stream], rows))
        await self.claim()

    async def claim(self) -> None:
        claims = {claim.shard: claim for claim in await self.log.claim(64)}
        self.token = claims[self.stream.shard].claim_token

    def move(self, to: int, *parkings: Parking) -> Cursor:
        return Cursor(self.stream.shard, self.token, self.positions[to], parkings)

    def park(self, *indexes: int) -> list[Parking]:
        first, *behind = indexes
        return [
            Parking(self.positions[first], Outcome.RETURNED, "why", holds=True, retry_after=None),
            *(Parking(self.positions[each], BEHIND, "", holds=True) for each in behind),
        ]

    def ended(self, what: Unparking, *indexes: int) -> list[Unparked]:
        return [
            Unparked(
                self.stream.shard,
                self.token,
                self.positions[each],
                ("task", self.stream.entity_id),
                what,
            )
            for each in indexes
        ]

    async def states(self) -> list[str]:
        return [row.state for row in await parked(self.database)]

    async def due(self) -> list[int]:
        """Indexes of what may be published now."""
        found = await self.log.due([self.stream.shard])
        return [self.positions.index(each.row.position) for each in found]

    async def count(self) -> int:
        async with session(self.database.relay_url) as reader:
            rows = await reader.fetchval("select sum(parked) from tenure.relay_shards")
            return int(rows)


async def end_claims(database: FreshDatabase) -> None:
    async with session(database.owner_url) as owner:
        await owner.execute("update tenure.relay_shards set claimed_until = clock_timestamp()")


@pytest.mark.requirement("RELAY-04")
async def test_the_first_of_a_stream_is_due_then_the_next_until_none_is_left(
    database: FreshDatabase,
) -> None:
    shard = Shard(database)
    await shard.begin(4)
    assert await shard.log.advance([shard.move(2, *shard.park(0, 1, 2))])
    assert await shard.states() == ["failed", "behind", "behind"]
    assert await shard.count() == 3
    assert await shard.due() == []  # nobody asked
    assert await ask(database, "retry", [shard.positions[2]]) == [shard.positions[0]]
    assert await shard.due() == [0, 1, 2]
    key = ("task", shard.stream.entity_id)
    assert await shard.log.unpark(shard.ended(Unparking.PUBLISHED, 0)) == {key: True}
    assert await shard.due() == [1, 2]
    failed = shard.ended(Unparking.FAILED, 1)[0]
    again = failed._replace(reason="nacked", detail="full", retry_after=3_600_000_000)
    assert await shard.log.unpark([again]) == {key: True}
    assert await shard.states() == ["failed", "behind"]
    assert await shard.due() == []
    assert await shard.log.unpark(shard.ended(Unparking.SKIPPED, 1, 2)) == {key: False}
    assert await shard.states() == []
    assert await shard.count() == 0
    assert await shard.log.held([shard.stream.shard]) == {}
    assert await shard.log.advance([shard.move(3)])
    await shard.log.close()


@pytest.mark.requirement("RELAY-04")
async def test_no_cursor_passes_a_row_of_a_held_stream(database: FreshDatabase) -> None:
    shard = Shard(database)
    await shard.begin(3)
    await shard.log.advance([shard.move(0, *shard.park(0))])
    with pytest.raises(LogUnavailable, match="a row of a stream that is held"):
        await shard.log.advance([shard.move(2, *shard.park(0, 1)[1:])])
    assert await shard.states() == ["failed"]
    assert await shard.log.advance([shard.move(2, *shard.park(0, 1, 2)[1:])])
    assert await shard.states() == ["failed", "behind", "behind"]
    await shard.log.close()


async def test_what_was_to_wait_is_the_first_when_nothing_before_it_is_left(
    database: FreshDatabase,
) -> None:
    shard = Shard(database)
    await shard.begin(2)
    await shard.log.advance([shard.move(0, *shard.park(0))])
    await shard.log.unpark(shard.ended(Unparking.PUBLISHED, 0))
    assert await shard.log.advance([shard.move(1, *shard.park(0, 1)[1:])])
    assert await shard.due() == [1]
    await shard.log.close()


@pytest.mark.requirement("RELAY-03")
@pytest.mark.requirement("RELAY-04")
async def test_a_relay_that_lost_its_claim_neither_parks_nor_unparks(
    database: FreshDatabase,
) -> None:
    old, new = Shard(database), Shard(database)
    await old.begin(3)
    new.stream, new.positions = old.stream, old.positions
    await old.log.advance([old.move(0, *old.park(0))])
    await end_claims(database)
    assert await old.log.advance([old.move(2, *old.park(0, 1, 2)[1:])]) == set()
    assert await old.log.unpark(old.ended(Unparking.PUBLISHED, 0)) == {}
    await new.claim()
    for late in (old, new):  # nor with the right token and the wrong name
        late.token = new.token
        if late is old:
            assert await old.log.advance([old.move(2, *old.park(0, 1, 2)[1:])]) == set()
            assert await old.log.unpark(old.ended(Unparking.PUBLISHED, 0)) == {}
    assert await new.states() == ["failed"]
    assert await new.log.advance([new.move(2, *new.park(0, 1, 2)[1:])])
    # Once more, as after a lost answer: parked once.
    assert await new.log.advance([new.move(2, *new.park(0, 1, 2)[1:])]) == set()
    assert await new.count() == 3
    await old.log.close()
    await new.log.close()


@pytest.mark.requirement("RELAY-04")
async def test_only_what_the_move_passes_is_parked(database: FreshDatabase) -> None:
    shard = Shard(database)
    await shard.begin(4)
    await shard.log.advance([shard.move(1)])
    outside = [*shard.park(0), *shard.park(3)]
    assert await shard.log.advance([shard.move(2, *outside)])
    assert await shard.states() == []
    assert await shard.count() == 0
    await shard.log.close()


@pytest.mark.parametrize(
    "statement",
    [
        "insert into tenure.parked select * from tenure.parked",
        "update tenure.parked set skip = true",
        "delete from tenure.parked",
        "delete from tenure.parked_requests",
    ],
)
async def test_services_change_parked_rows_through_the_functions_only(
    database: FreshDatabase, statement: str
) -> None:
    for url in (database.relay_url, database.coordinator_url):
        async with session(url) as service:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await service.execute(statement)


@pytest.mark.requirement("OPS-08")
async def test_requests_that_were_carried_out_go_with_time(database: FreshDatabase) -> None:
    async with (
        session(database.owner_url) as owner,
        session(database.coordinator_url) as coordinator,
    ):
        await owner.execute(
            "insert into tenure.parked_requests (position, tenant, event_id, stream_type,"
            " stream_id, action, reason, requested_by, requested_at, carried_out_at, result)"
            " select 1, 'default', gen_random_uuid(), 'task', gen_random_uuid(), 'skip', 'x', 'y',"
            " now() - age, now() - age, 'skipped'"
            " from unnest(array['400 days', '2 days']::interval[]) age"
        )
        await coordinator.execute("select tenure.remove_old('changes', 10)")
        assert await owner.fetchval("select count(*) from tenure.parked_requests") == 1


async def test_a_request_for_what_is_not_parked_reaches_nothing(database: FreshDatabase) -> None:
    async def nothing(action: str, positions: Sequence[int] | None) -> bool:
        return await ask(database, action, positions) == []

    assert await nothing("retry", [1, 2])
    assert await nothing("skip", [1])
    assert await nothing("retry", None)
