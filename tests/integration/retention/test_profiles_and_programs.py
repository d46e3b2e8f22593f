"""Profiles and programs go once nothing has named them for as long as they are kept (OPS-08)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import CommandId
from tenure.coordinator.core.commands import Executable, MoveProfile
from tenure.coordinator.store.verify import verify
from tests.support.ageing import age
from tests.support.authority import TENANT, Bench, replica
from tests.support.isolation import FreshDatabase
from tests.support.rows import declared
from tests.support.sessions import session

OLD, NEW = declared("sha256", max_attempts=2), declared("sha256")
PROGRAM = Executable("counter", "1", "ab" * 32, None)


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


async def remove(owner: asyncpg.Connection, kind: str) -> int:
    rows: int = await owner.fetchval("select tenure.remove_old($1, 100)", kind)
    return rows


async def noticed(owner: asyncpg.Connection, kind: str) -> set[str]:
    """What removal has found that nothing names."""
    await remove(owner, kind)
    rows = await owner.fetch(
        "select encode(digest, 'hex') as digest from tenure.unreferenced where kind = $1", kind
    )
    return {row["digest"] for row in rows}


async def forget_nodes(bench: Bench) -> None:
    """As retention does in time."""
    await bench.superuser("delete from tenure.incarnations; delete from tenure.nodes")


async def superseded(bench: Bench) -> None:
    """The type has another profile, and no node is left that knows the old one."""
    await bench.register("newer")
    await forget_nodes(bench)


async def waiting(bench: Bench) -> None:
    await bench.submit()


async def waiting_for_its_time(bench: Bench) -> None:
    far = datetime.now(UTC) + timedelta(days=9)
    await bench.submit(not_before=int(far.timestamp() * 1_000_000))


async def held(bench: Bench) -> None:
    await bench.hold(await bench.submit())


async def running(bench: Bench) -> None:
    await bench.running()


async def ended(bench: Bench) -> None:
    await bench.cancel(await bench.submit())


@pytest.mark.requirement("OPS-08")
@pytest.mark.parametrize(
    "stage", [waiting, waiting_for_its_time, held, running, ended], ids=lambda stage: stage.__name__
)
async def test_a_profile_stays_for_as_long_as_a_task_has_it(
    bench: Bench, stage: Callable[[Bench], Awaitable[None]]
) -> None:
    await bench.register("older", max_attempts=2)
    await stage(bench)
    await superseded(bench)
    assert await noticed(bench.owner, "profiles") == set()
    await bench.superuser("delete from tenure.attempts; delete from tenure.tasks")
    assert await noticed(bench.owner, "profiles") == {OLD.profile.digest}


@pytest.mark.requirement("OPS-08")
async def test_a_profile_goes_once_nothing_has_named_it_for_long_enough(
    database: FreshDatabase, bench: Bench
) -> None:
    await bench.register("older", max_attempts=2)
    assert await noticed(bench.owner, "profiles") == set()  # a type and a node have it
    await bench.register("newer")
    assert await noticed(bench.owner, "profiles") == set()  # the node still does
    await forget_nodes(bench)
    assert await noticed(bench.owner, "profiles") == {OLD.profile.digest}
    await age(database, "89 days", "unreferenced")
    assert await remove(bench.owner, "profiles") == 0
    with pytest.raises(asyncpg.PostgresError) as refused:  # and whoever asks
        await bench.owner.execute("delete from tenure.profiles")
    assert refused.value.sqlstate == "TN010"
    await bench.register("older", max_attempts=2)  # named again
    assert await noticed(bench.owner, "profiles") == {NEW.profile.digest}
    await superseded(bench)
    assert await noticed(bench.owner, "profiles") == {OLD.profile.digest}
    await age(database, "91 days", "unreferenced")
    assert await remove(bench.owner, "profiles") == 1
    left = await bench.owner.fetch("select encode(digest, 'hex') as digest from tenure.profiles")
    assert {row["digest"] for row in left} == {NEW.profile.digest}
    assert await noticed(bench.owner, "profiles") == set()
    await bench.register("older", max_attempts=2)  # as if it had never been there
    assert await bench.owner.fetchval("select count(*) from tenure.profiles") == 2


@pytest.mark.requirement("OPS-08")
async def test_a_profile_that_is_registered_meanwhile_is_not_lost(
    database: FreshDatabase, bench: Bench
) -> None:
    await bench.register("older", max_attempts=2)
    await superseded(bench)
    await noticed(bench.owner, "profiles")
    await age(database, "91 days", "unreferenced")
    async with session(database.owner_url) as registering:
        async with registering.transaction():
            # As the commit function does it: nothing is inserted, and a type names it again.
            await registering.execute(
                "insert into tenure.profiles select * from tenure.profiles on conflict do nothing;"
                "update tenure.task_types set profile_digest = decode($1, 'hex')".replace(
                    "$1", f"'{OLD.profile.digest}'"
                )
            )
            with pytest.raises(asyncpg.LockNotAvailableError):
                await remove(bench.owner, "profiles")
        assert await remove(bench.owner, "profiles") == 0
    assert await noticed(bench.owner, "profiles") == {NEW.profile.digest}


@pytest.mark.requirement("OPS-08")
async def test_a_task_is_not_moved_to_a_profile_that_goes_meanwhile(
    database: FreshDatabase, bench: Bench
) -> None:
    await bench.register("older", max_attempts=2)
    await superseded(bench)
    task_id = await bench.submit()
    await noticed(bench.owner, "profiles")
    await age(database, "91 days", "unreferenced")
    identity = str(uuid4())
    command = MoveProfile(
        command_id=CommandId(identity), fingerprint=b"", tenant=TENANT, actor="operator",
        task_id=task_id, profile=OLD.profile,
    )  # fmt: skip
    async with session(database.owner_url) as removing:
        async with removing.transaction():
            assert await remove(removing, "profiles") == 1
            moving = asyncio.create_task(bench.authority.intervene([command]))
            while not await removing.fetchval(  # noqa: ASYNC110 - another session's state
                "select count(*) from pg_locks where not granted and transactionid is not null"
            ):
                await asyncio.sleep(0.01)
        (outcome,) = await moving
    assert outcome.refused is not None
    assert outcome.refused.code is Code.INTERNAL_REFUSED
    broken = (await verify(database.owner_url)).broken
    assert "tasks-have-their-profile" not in broken


@pytest.mark.requirement("OPS-08")
async def test_a_program_goes_once_no_start_has_run_it_for_long_enough_unless_it_is_withdrawn(
    database: FreshDatabase, bench: Bench
) -> None:
    withdrawn = replace(PROGRAM, digest="cd" * 32)
    await bench.register("one", executable=PROGRAM)
    await bench.register("other", executable=withdrawn)
    await bench.owner.execute(
        "select tenure.set_executable('default', decode($1, 'hex'), 'withdrawn', 'ops')".replace(
            "$1", f"'{withdrawn.digest}'"
        )
    )
    assert await noticed(bench.owner, "executables") == set()
    await forget_nodes(bench)
    assert await noticed(bench.owner, "executables") == {PROGRAM.digest}
    await bench.register("one", executable=PROGRAM)  # it is run again
    assert await noticed(bench.owner, "executables") == set()
    await forget_nodes(bench)
    assert await noticed(bench.owner, "executables") == {PROGRAM.digest}
    await age(database, "91 days", "unreferenced", "executables")
    async with session(database.owner_url) as registering, registering.transaction():
        await registering.execute(  # as the commit function does it
            "update tenure.executables set seen_at = clock_timestamp() where name = 'counter'"
        )
        assert await remove(bench.owner, "executables") == 0
    assert await noticed(bench.owner, "executables") == {PROGRAM.digest}  # seen a moment ago
    await age(database, "91 days", "unreferenced", "executables")
    assert await remove(bench.owner, "executables") == 1
    left = await bench.owner.fetch("select encode(digest, 'hex') as digest from tenure.executables")
    assert [row["digest"] for row in left] == [withdrawn.digest]
