"""What has ended goes when it is too old, and what goes on stays whole (OPS-08)."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from tenure.contract.states import RetentionKind
from tenure.coordinator.retention import IN_ORDER, Retention
from tenure.coordinator.store.verify import verify
from tests.support.ageing import age
from tests.support.authority import Bench, replica
from tests.support.history import live
from tests.support.isolation import DatabaseServer, FreshDatabase
from tests.support.sessions import session

ENDED = {
    "tasks": "ended_at is not null",
    "attempts": "ended_at is not null",
    "receipts": "true",
    "commands": "true",
    "intake": "state <> 'waiting'",
    "renewals": "true",
    "health_reviews": "closed_at is not null",
    "incarnations": "state = 'gone'",
    "fact_changes": "true",
    "dead_letters": "true",
    "parked_requests": "carried_out_at is not null",
    "replays": "ended_at is not null",
    "profiles": "type = 'forgotten'",
    "executables": "name = 'forgotten'",
}
GOES_ON = {
    "tasks": "ended_at is null",
    "attempts": "ended_at is null",
    "task_inputs": "task_id in (select task_id from tenure.tasks where ended_at is null)",
    "reservations": "true",
    "incarnations": "state <> 'gone'",
    "intake": "state = 'waiting'",
    "health_reviews": "closed_at is null",
    "nodes": "incarnation is not null",
    "replays": "ended_at is null",
    "replay_changes": "replay_id in (select replay_id from tenure.replays where ended_at is null)",
}


FORGOTTEN = """
    insert into tenure.profiles select (jsonb_populate_record(p, jsonb_build_object(
        'type', 'forgotten', 'digest', '\\x' || repeat('ab', 32)))).*
    from tenure.profiles p limit 1;
    insert into tenure.executables (tenant, digest, name, version, registered_at, seen_at)
    values ('default', '\\xab', 'forgotten', '1', now(), now());
    select tenure.remove_old('profiles', 1), tenure.remove_old('executables', 1);
"""
"""What nothing names, as removal has noticed."""

OPERATORS_WORDS = """
    insert into tenure.dead_letters (queue, event_id, reason, message_id, body_bytes, first_at,
        last_at) values ('q', 'e', 'expired', 'm', 0, now(), now());
    insert into tenure.parked_requests (position, tenant, event_id, stream_type, stream_id, action,
        reason, requested_by, requested_at, carried_out_at, result)
    values (1, 'default', gen_random_uuid(), 'task', gen_random_uuid(), 'skip', 'r', 'ops', now(),
        now(), 'skipped');
"""


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


@pytest.fixture(scope="module")
async def lived_in(
    database_server: DatabaseServer, database_template: str
) -> AsyncIterator[FreshDatabase]:
    """A database with a history of more than a year, published long ago."""
    async with database_server.fresh(template=database_template) as database:
        async with replica(database) as bench:
            await live(bench)
            await bench.pool.execute(
                "select tenure.set_pause('type', 'default', 'other', null, 'because', 'tests')"
            )
            await bench.owner.execute(OPERATORS_WORDS)
            await bench.owner.execute(FORGOTTEN)
            await publish(bench.owner)
        await age(database, "400 days")
        yield database


@pytest.fixture
async def copy(
    database_server: DatabaseServer, lived_in: FreshDatabase
) -> AsyncIterator[FreshDatabase]:
    async with database_server.fresh(template=lived_in.name) as database:
        yield database


async def publish(owner: asyncpg.Connection) -> None:
    """As if the relay had published everything."""
    await owner.execute(
        "update tenure.relay_shards set position = (select max(position) from tenure.log)"
    )


async def counts(owner: asyncpg.Connection, which: dict[str, str]) -> dict[str, int]:
    return {
        table: await owner.fetchval(f"select count(*) from tenure.{table} where {condition}")
        for table, condition in which.items()
    }


async def remove(owner: asyncpg.Connection, kind: str, limit: int = 500) -> int:
    rows: int = await owner.fetchval("select tenure.remove_old($1, $2)", kind, limit)
    return rows


async def remove_all(owner: asyncpg.Connection) -> None:
    for kind in IN_ORDER:
        while kind is not RetentionKind.LOG and await remove(owner, kind):
            pass


@pytest.mark.requirement("OPS-08")
async def test_what_has_ended_goes_and_what_goes_on_stays(copy: FreshDatabase) -> None:
    async with session(copy.owner_url) as owner:
        # Attempts of tasks that go on belong to these, however long ago they ended; so do starts of
        # nodes whose leases nobody has ended.
        kept = {
            "attempts": "ended_at is not null and task_id in (select task_id from tenure.tasks"
            " where ended_at is null)",
            "receipts": "task_id in (select task_id from tenure.tasks where ended_at is null)",
            "incarnations": "state = 'gone' and incarnation in (select incarnation"
            " from tenure.attempts where ended_at is null)",
        }
        before, staying = await counts(owner, GOES_ON), await counts(owner, kept)
        assert min((await counts(owner, ENDED)).values()) > 0
        for kind in IN_ORDER:
            if kind is not RetentionKind.LOG:
                while await remove(owner, kind, 3):
                    assert (await verify(copy.owner_url)).broken == {}, kind
        assert await counts(owner, GOES_ON) == before
        left = await counts(owner, ENDED)
        assert left == dict.fromkeys(ENDED, 0) | staying
        assert await owner.fetchval("select count(*) from tenure.task_inputs") == before["tasks"]
        assert (await verify(copy.owner_url)).broken == {}


@pytest.mark.requirement("OPS-08")
async def test_the_log_may_go_before_what_it_is_about(copy: FreshDatabase) -> None:
    async with session(copy.owner_url) as owner, replica(copy) as bench:
        await owner.execute("select setval('tenure.log_position', 9999999)")
        await bench.register("young", slots=99)
        held = await bench.running()
        await publish(owner)
        assert await owner.fetchval("select name from tenure.remove_old_log()") is None
        await owner.execute(  # it needed the rows
            "select tenure.change_replay(replay_id, 'cancelled', 'why', 'tests', false)"
            " from tenure.replays where state = 'running'"
        )
        assert await owner.fetchval("select name from tenure.remove_old_log()") == "log_p000001"
        assert await owner.fetchval("select min(position) from tenure.log") >= 10_000_000
        assert (await verify(copy.owner_url)).broken == {}
        await bench.deliver(held, 1)
        await remove_all(owner)
        assert (await verify(copy.owner_url)).broken == {}


@pytest.mark.requirement("OPS-08")
async def test_ended_records_go_by_the_policy_alone_whoever_asks(bench: Bench) -> None:
    await bench.register()
    held = await bench.running()
    await bench.deliver(held, 1)
    for table in ("tasks", "attempts", "receipts"):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await bench.owner.execute(f"delete from tenure.{table}")
        assert refused.value.sqlstate == "TN010"
    assert await remove(bench.owner, "tasks") == 0
    assert await bench.owner.fetchval("select count(*) from tenure.receipts") == 1


@pytest.mark.requirement("OPS-08")
@pytest.mark.parametrize("kind", [kind for kind in RetentionKind if kind is not RetentionKind.LOG])
async def test_what_is_younger_or_kept_for_ever_stays(copy: FreshDatabase, kind: str) -> None:
    async with session(copy.owner_url) as owner:
        await owner.execute(
            "select tenure.set_retention(1, jsonb_build_object($1::text, 401 * 86400), 't', 't')",
            kind,
        )
        assert await remove(owner, kind) == 0
        await owner.execute("select tenure.set_retention(2, '{}', 't', 't')")
        assert await remove(owner, kind) == 0
        await owner.execute(
            "select tenure.set_retention(3, jsonb_build_object($1::text, 399 * 86400), 't', 't')",
            kind,
        )
        assert await remove(owner, kind) > 0


async def test_a_database_that_is_no_authority_removes_nothing(copy: FreshDatabase) -> None:
    """It may be the only evidence of what was."""
    async with session(copy.owner_url) as owner:
        await owner.execute("update tenure.authority set lost_at = now(), lost_proof = '{}'")
        for kind in RetentionKind:
            if kind is not RetentionKind.LOG:
                assert await remove(owner, kind) == 0


@pytest.mark.requirement("OPS-08")
async def test_a_repeated_submission_gets_its_first_answer_for_as_long_as_outcomes_are_kept(
    database: FreshDatabase, bench: Bench
) -> None:
    await bench.register()
    command = bench.submission()
    await bench.authority.submit([command])
    await age(database, "29 days")
    await remove_all(bench.owner)
    (again,) = await bench.authority.submit([command])
    assert again.reply is not None
    assert again.replayed
    await age(database, "2 days")
    assert await remove(bench.owner, "commands") == 2  # and that of the node


@pytest.mark.requirement("OPS-08")
async def test_a_name_of_a_node_stays_while_somebody_has_said_something_about_it(
    database: FreshDatabase, bench: Bench
) -> None:
    for name in ("plain", "stated", "back"):
        await bench.register(name)
    await bench.owner.execute(
        "update tenure.incarnations set state = 'gone', ended_at = clock_timestamp();"
        "update tenure.nodes set incarnation = null;"
        "update tenure.nodes set stated_facts = '{\"pool\": \"a\"}' where node_id = 'stated'"
    )
    await publish(bench.owner)
    await age(database, "8 days")
    await bench.register("back")
    assert await remove(bench.owner, "nodes") == 3
    names = await bench.owner.fetch("select node_id from tenure.nodes order by node_id")
    assert [row["node_id"] for row in names] == ["back", "stated"]


async def test_a_node_that_registers_meanwhile_is_not_lost(
    database: FreshDatabase, bench: Bench
) -> None:
    """Its name is not removed under it: removal waits for registrations, and gives up soon."""
    await bench.register("node-1")
    await bench.owner.execute(
        "update tenure.incarnations set state = 'gone', ended_at = clock_timestamp();"
        "update tenure.nodes set incarnation = null"
    )
    await publish(bench.owner)
    await age(database, "8 days")
    async with session(database.owner_url) as registering:
        async with registering.transaction():
            # As the commit function does it.
            await registering.execute(
                "insert into tenure.nodes (tenant, node_id) values ('default', 'node-1')"
                " on conflict do nothing"
            )
            with pytest.raises(asyncpg.LockNotAvailableError):
                await remove(bench.owner, "nodes")
        assert await remove(bench.owner, "nodes") == 1


@pytest.mark.requirement("OPS-08")
async def test_three_replicas_that_remove_at_once_disturb_no_traffic(
    database: FreshDatabase, bench: Bench
) -> None:
    """No deadlock reaches a commit, nothing that is young goes, and removal ends."""
    await bench.register(slots=50)
    finished = [await bench.running() for _ in range(20)]
    for held in finished:
        await bench.deliver(held, 1)
    await bench.owner.execute(
        # Some thousands alike.
        """
        insert into tenure.tasks
        select (jsonb_populate_record(t, jsonb_build_object('task_id', gen_random_uuid(),
            'current_attempt_id', null, 'state', 'cancelled'))).*
        from tenure.tasks t, generate_series(1, 4000)
        where t.task_id = (select task_id from tenure.tasks where ended_at is not null limit 1)
        """
    )
    await publish(bench.owner)
    await age(database, "400 days")
    await bench.register("young", slots=99)
    removed: list[int] = []
    loops = [Retention(bench.pool, lambda _, rows: removed.append(rows)) for _ in range(3)]

    async def purge(loop: Retention) -> None:
        while (await loop.run_now(tuple(RetentionKind)))[1]:
            pass

    young = []
    purging = [asyncio.create_task(purge(loop)) for loop in loops]
    while not all(one.done() for one in purging):
        held = await bench.running()
        assert (await bench.deliver(held, str(uuid4()))).refused is None
        young.append(held.task_id)
    await asyncio.gather(*purging)
    assert bench.observer.errors == []
    assert len(removed) > 8
    left = await bench.owner.fetch("select task_id from tenure.tasks where ended_at is not null")
    assert {str(row["task_id"]) for row in left} == set(young)
    assert (await verify(database.owner_url)).broken == {}
