"""The SQL guard refuses the same and repairs the same whichever driver carries it (LEASE-10)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg_pool
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tenure.cli.chaos.toxic import toxic
from tenure.cli.local.errors import LocalServerMissingError
from tenure.executor.context import Context
from tenure.executor.errors import (
    AuthorityOver,
    EffectNotWritten,
    GuardNotInstalled,
    GuardUnavailable,
    StaleToken,
    TransactionEnded,
    TransactionNested,
)
from tenure.executor.guards.psycopg import AsyncPsycopgGuard, PsycopgGuard
from tenure.executor.guards.sqlalchemy import SqlAlchemyGuard
from tests.support.downstream import Downstream, attempt, downstream
from tests.support.isolation import DatabaseServer, FreshDatabase
from tests.support.postgres_filters import Cut, Cuts, readable
from tests.support.services import local_postgres
from tests.support.sql_drivers import DRIVERS, Driver
from tests.support.waiting import eventually

OLDER_MAJOR = 15
EVERY_DRIVER = pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)


@pytest.fixture(scope="module")
async def receiver(database_server: DatabaseServer) -> AsyncIterator[Downstream]:
    async with database_server.fresh() as database, downstream(database.admin_url) as made:
        yield made


@pytest.fixture(scope="module")
async def older_receiver(server_directory: Path) -> AsyncIterator[Downstream]:
    """On a server without transaction_timeout."""
    try:
        async with local_postgres(server_directory, major=OLDER_MAJOR) as server:
            databases = DatabaseServer(server.url())
            await databases.prepare()
            async with databases.fresh() as database, downstream(database.admin_url) as made:
                yield made
    except LocalServerMissingError:
        pytest.skip(f"no PostgreSQL {OLDER_MAJOR} is installed here")


async def successor_of(receiver: Downstream, context: Context[None]) -> Context[None]:
    """The next attempt of the same task."""
    return await attempt(receiver.owner, task=context.task_id, generation=2)


@EVERY_DRIVER
async def test_an_effect_is_written_once_by_whichever_attempt(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner)
    async with driver.open(receiver.writer_url) as guard:
        await guard.raise_fence(context)
        assert await driver.write(guard, context, "first")
        assert not await driver.write(guard, context, "again")
        assert await driver.write(guard, context, "other", "another row")
        successor = await successor_of(receiver, context)
        await guard.raise_fence(successor)
        assert not await driver.write(guard, successor, "again")
    assert await receiver.effects(context.task_id) == ["first", "other"]


@EVERY_DRIVER
async def test_a_transaction_within_another_is_told_so_instead_of_waiting_for_it(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner)
    async with driver.open(receiver.writer_url) as guard:

        async def write_another() -> None:
            await driver.write(guard, context, "inner", "another row")

        with pytest.raises(TransactionNested):
            await driver.write(guard, context, "outer", within=write_another)
        assert await driver.write(guard, context, "outer")
        await write_another()
    assert await receiver.effects(context.task_id) == ["outer", "inner"]


@pytest.mark.requirement("LEASE-10")
@EVERY_DRIVER
async def test_an_older_token_is_refused_before_its_successor_has_written(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner)
    successor = await successor_of(receiver, context)
    async with driver.open(receiver.writer_url) as guard:
        await guard.raise_fence(context)
        await guard.raise_fence(successor)
        with pytest.raises(StaleToken) as refused:
            await driver.write(guard, context, "old")
        assert refused.value.seen_token == successor.fencing_token
        with pytest.raises(StaleToken):
            await guard.raise_fence(context)
        assert await driver.write(guard, successor, "new")
    assert await receiver.effects(context.task_id) == ["new"]


@pytest.mark.requirement("LEASE-10")
@EVERY_DRIVER
async def test_an_equal_token_is_refused_after_the_end_of_authority(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner, expires_in_seconds=-1.0)
    async with driver.open(receiver.writer_url) as guard:
        with pytest.raises(AuthorityOver):
            await guard.raise_fence(context)
        with pytest.raises(AuthorityOver):
            await driver.write(guard, context, "late")
    assert await receiver.effects(context.task_id) == []


async def paused_holder_is_ended(receiver: Downstream, driver: Driver) -> None:
    """A holder does nothing at all between its check and its commit; its successor gets on."""
    context = await attempt(receiver.owner, expires_in_seconds=0.5)
    successor = await successor_of(receiver, context)

    async def let_the_successor_on() -> None:
        async with driver.open(receiver.writer_url) as other:
            await other.raise_fence(successor)

    async with driver.open(receiver.writer_url) as guard:
        with pytest.raises(AuthorityOver):
            await driver.write(guard, context, "late", within=let_the_successor_on)
        assert await driver.write(guard, successor, "new")
    assert await receiver.effects(context.task_id) == ["new"]


@pytest.mark.requirement("LEASE-10")
@EVERY_DRIVER
async def test_a_holder_paused_between_check_and_commit_is_ended_by_the_server(
    receiver: Downstream, driver: Driver
) -> None:
    await paused_holder_is_ended(receiver, driver)


@pytest.mark.requirement("LEASE-10")
@EVERY_DRIVER
async def test_a_paused_holder_is_ended_by_an_older_server_too(
    older_receiver: Downstream, driver: Driver
) -> None:
    await paused_holder_is_ended(older_receiver, driver)


@pytest.mark.requirement("LEASE-10")
@EVERY_DRIVER
async def test_on_an_older_server_a_busy_holder_is_refused_at_its_commit(
    older_receiver: Downstream, driver: Driver
) -> None:
    """No statement and no pause is long, the transaction as a whole is."""
    context = await attempt(older_receiver.owner, expires_in_seconds=0.5, tolerance_seconds=0.0)
    nap = "select pg_sleep(0.03), {}, {}"
    async with driver.open(older_receiver.writer_url) as guard:
        with pytest.raises(AuthorityOver):
            await driver.write(guard, context, "late", statement=nap, times=25)
    assert await older_receiver.owner.fetchval(
        "select not exists (select from tenure_inbox where task_id = $1)", context.task_id
    )


@EVERY_DRIVER
async def test_an_error_of_the_body_rolls_back_and_its_connection_is_free_again(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner)

    async def raises() -> None:
        raise LookupError

    async with driver.open(receiver.writer_url) as guard:
        with pytest.raises(LookupError):
            await driver.write(guard, context, "undone", within=raises)
        assert await driver.write(guard, context, "afterwards")
    assert await receiver.effects(context.task_id) == ["afterwards"]


@EVERY_DRIVER
async def test_an_error_that_the_body_swallowed_does_not_pass_for_a_commit(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner)
    async with driver.open(receiver.writer_url) as guard:
        with pytest.raises(Exception, match="current transaction is aborted"):
            await driver.write(
                guard, context, "x", statement="insert into missing values ({}, {})", swallow=True
            )
        assert await driver.write(guard, context, "afterwards")


@EVERY_DRIVER
async def test_a_body_that_commits_by_itself_is_told_so(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner)
    async with driver.open(receiver.writer_url) as guard:
        with pytest.raises(TransactionEnded):
            await driver.write(guard, context, "row", commit=True)
        assert not await driver.write(guard, context, "again")


@EVERY_DRIVER
@pytest.mark.parametrize("cut", [Cut.REPLY_LOST, Cut.BEFORE_COMMIT], ids=lambda cut: cut.name)
async def test_the_outcome_of_a_commit_that_was_not_answered_is_found_out(
    receiver: Downstream, driver: Driver, cut: Cut
) -> None:
    cuts = Cuts()
    context = await attempt(receiver.owner)

    async def plan() -> None:
        plans.append(cuts.next("COMMIT", cut))

    plans: list[Any] = []
    async with readable(receiver.writer_url, cuts) as proxy, driver.open(proxy.url) as guard:
        await guard.raise_fence(context)
        if cut is Cut.REPLY_LOST:
            assert await driver.write(guard, context, "once", within=plan)
        else:
            with pytest.raises(EffectNotWritten):
                await driver.write(guard, context, "once", within=plan)
        assert [each.cuts for each in plans] == [1]
        assert await driver.write(guard, context, "twice") is (cut is Cut.BEFORE_COMMIT)
    assert len(await receiver.effects(context.task_id)) == 1


@EVERY_DRIVER
async def test_a_connection_lost_in_the_body_wrote_nothing(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner)

    async def end_it() -> None:
        await receiver.owner.fetch(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = $1",
            receiver.role,
        )

    async with driver.open(receiver.writer_url) as guard:
        with pytest.raises(EffectNotWritten):
            await driver.write(guard, context, "lost", within=end_it)
        assert await driver.write(guard, context, "afterwards")


@EVERY_DRIVER
async def test_a_receiver_that_cannot_be_reached_may_be_tried_again(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner)
    async with (
        toxic(receiver.writer_url) as proxy,
        driver.open(proxy.url, wait_seconds=1.0) as guard,
    ):
        proxy.refuse_connections = True
        with pytest.raises(GuardUnavailable):
            await guard.raise_fence(context)
        proxy.refuse_connections = False

        async def raised() -> bool:
            try:
                await guard.raise_fence(context)
            except GuardUnavailable:
                return False  # a pool takes its time between two tries
            return True

        await eventually(raised)


@EVERY_DRIVER
async def test_a_receiver_without_the_guard_says_how_to_install_it(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner)
    async with driver.open(receiver.writer_url, schema="elsewhere") as guard:
        with pytest.raises(GuardNotInstalled, match="tenure guard sql --print"):
            await guard.raise_fence(context)
        with pytest.raises(GuardNotInstalled):
            await driver.write(guard, context, "row")


@EVERY_DRIVER
async def test_the_guard_lives_in_a_schema_of_any_name(
    empty_database: FreshDatabase, driver: Driver
) -> None:
    schema = """Bob's "guard" 100% :name """
    quoted = '"' + schema.replace('"', '""') + '"'
    async with downstream(empty_database.admin_url, schema=schema) as receiver:
        context = await attempt(receiver.owner)
        async with driver.open(receiver.writer_url, schema=schema) as guard:
            await guard.raise_fence(context)
            assert await driver.write(guard, context, "row")
        assert await receiver.owner.fetchval(f"select count(*) from {quoted}.tenure_inbox") == 1


class Base(DeclarativeBase):
    """Of the application's tables."""


class EffectRow(Base):
    """As an application maps it."""

    __tablename__ = "effects"
    position: Mapped[int] = mapped_column(primary_key=True)
    task_id: Mapped[UUID]
    value: Mapped[str]


async def test_a_session_of_sqlalchemy_takes_part_and_cannot_commit_by_itself(
    receiver: Downstream,
) -> None:
    context = await attempt(receiver.owner, expires_in_seconds=50.0)
    engine = create_engine(receiver.writer_url.replace("postgresql://", "postgresql+psycopg://"))

    def handler(fails: bool) -> None:
        with SqlAlchemyGuard(engine).transaction(context, operation="row") as effect:
            with Session(effect.connection) as session:
                session.add(EffectRow(task_id=UUID(context.task_id), value="row"))
                session.commit()
            if fails:
                raise LookupError

    try:
        with pytest.raises(LookupError):
            await asyncio.to_thread(handler, True)
        assert await receiver.effects(context.task_id) == []
        await asyncio.to_thread(handler, False)
        assert await receiver.effects(context.task_id) == ["row"]
    finally:
        engine.dispose()


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_pool_of_the_applications_is_used_and_left_open(
    receiver: Downstream, autocommit: bool
) -> None:
    driver = next(each for each in DRIVERS if each.name == "psycopg")
    context = await attempt(receiver.owner)
    async with psycopg_pool.AsyncConnectionPool(
        receiver.writer_url, kwargs={"autocommit": autocommit}, min_size=0, max_size=1, open=False
    ) as pool:
        guard = AsyncPsycopgGuard(pool)
        await guard.raise_fence(context)
        assert await driver.write(guard, context, "row")
        async with pool.connection() as connection:
            assert connection.autocommit is autocommit


async def test_a_guard_that_is_not_open_says_how_to_open_it(receiver: Downstream) -> None:
    context = await attempt(receiver.owner)
    for guard in (PsycopgGuard(receiver.writer_url), AsyncPsycopgGuard(receiver.writer_url)):
        with pytest.raises(GuardUnavailable, match=r"with (Async)?PsycopgGuard"):
            await guard.raise_fence(context)
