"""A downstream PostgreSQL refuses stale attempts by itself (LEASE-10), whatever they believe."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tenure.cli.chaos.toxic import toxic
from tenure.executor.context import Context
from tenure.executor.errors import (
    AuthorityOver,
    GuardNotInstalled,
    GuardUnavailable,
    StaleToken,
)
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.guards.sql_install import install_statements
from tests.support.downstream import (
    Connection,
    Downstream,
    attempt,
    downstream,
    gone,
    server_says,
    write,
)
from tests.support.isolation import FreshDatabase


@pytest.fixture
async def receiver(empty_database: FreshDatabase) -> AsyncIterator[Downstream]:
    async with downstream(empty_database.admin_url) as made:
        yield made


@pytest.fixture
async def guard(receiver: Downstream) -> AsyncIterator[SqlGuard]:
    async with SqlGuard(receiver.writer_url) as opened:
        yield opened


async def successor_of(observer: Connection, context: Context[None]) -> Context[None]:
    """The next attempt of the same task."""
    return await attempt(observer, task=context.task_id, generation=2)


async def test_an_effect_is_written_once_however_often_it_is_repeated(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner)
    assert await write(guard, context, "first")
    assert not await write(guard, context, "again")
    assert await write(guard, context, "other", operation="another row")
    assert await receiver.effects(context.task_id) == ["first", "other"]


async def test_an_effect_of_an_earlier_attempt_is_known_to_its_successor(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner)
    await write(guard, context, "first")
    assert not await write(guard, await successor_of(receiver.owner, context), "again")
    assert await receiver.effects(context.task_id) == ["first"]


@pytest.mark.requirement("LEASE-10")
async def test_an_older_token_is_refused_and_changes_nothing(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner)
    assert await write(guard, await successor_of(receiver.owner, context), "new")
    with pytest.raises(StaleToken):
        await write(guard, context, "old", operation="another row")
    with pytest.raises(StaleToken):
        await guard.raise_fence(context)
    assert await receiver.effects(context.task_id) == ["new"]


@pytest.mark.requirement("LEASE-10")
async def test_an_old_holder_is_refused_although_its_successor_touched_nothing_yet(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner)
    await guard.raise_fence(context)
    await guard.raise_fence(await successor_of(receiver.owner, context))
    with pytest.raises(StaleToken):
        await write(guard, context, "old")
    assert await receiver.effects(context.task_id) == []


@pytest.mark.requirement("LEASE-10")
async def test_an_equal_token_is_refused_after_the_end_of_authority(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner, expires_in_seconds=-1.0)
    assert context.remaining_authority_seconds() > 0, "the holder believes that it may act"
    with pytest.raises(AuthorityOver):
        await guard.raise_fence(context)
    with pytest.raises(AuthorityOver):
        await write(guard, context, "late")
    assert await receiver.effects(context.task_id) == []


async def test_within_the_tolerance_between_clocks_an_equal_token_is_allowed(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner, expires_in_seconds=-1.0, tolerance_seconds=600.0)
    await guard.raise_fence(context)
    assert await write(guard, context, "in time")


@pytest.mark.requirement("LEASE-09")
async def test_an_attempt_whose_time_is_up_by_its_own_clock_asks_nobody(
    receiver: Downstream,
) -> None:
    context = await attempt(receiver.owner, remaining_seconds=0.0)
    not_even_open = SqlGuard(receiver.writer_url)
    with pytest.raises(AuthorityOver):
        await not_even_open.raise_fence(context)
    with pytest.raises(AuthorityOver):
        await write(not_even_open, context, "late")


@pytest.mark.requirement("LEASE-10")
async def test_a_transaction_paused_between_check_and_commit_is_ended_by_the_server(
    receiver: Downstream, guard: SqlGuard
) -> None:
    """The holder does nothing at all after its check; its successor need not wait for it."""
    context = await attempt(receiver.owner, expires_in_seconds=0.5)

    async def holder() -> None:
        async with guard.transaction(context, operation="row") as effect:
            await effect.connection.execute(
                "insert into effects (task_id, value) values ($1, 'late')", context.task_id
            )
            await guard.raise_fence(await successor_of(receiver.owner, context))

    with pytest.raises(AuthorityOver):
        await holder()
    assert await receiver.effects(context.task_id) == []
    assert await receiver.owner.fetchval("select count(*) from tenure_inbox") == 0


@pytest.mark.requirement("LEASE-10")
async def test_who_waited_for_the_fence_is_judged_at_the_end_of_the_wait(
    receiver: Downstream, guard: SqlGuard
) -> None:
    """The row is locked, unchanged, until after the lease's end (the statement began before it)."""
    blocker = await asyncpg.connect(receiver.writer_url)
    await receiver.owner.execute(f"grant select, update on tenure_fence to {receiver.role}")
    await guard.raise_fence(await attempt(receiver.owner))  # it has its connection
    try:
        context = await attempt(receiver.owner, expires_in_seconds=3.0, tolerance_seconds=0.0)
        await guard.raise_fence(context)
        async with blocker.transaction():
            await blocker.execute("select from tenure_fence for update")
            waiting = asyncio.create_task(guard.raise_fence(context))
            await server_says(
                receiver.owner, "select exists (select from pg_locks where not granted)"
            )
            assert not await receiver.owner.fetchval(
                "select clock_timestamp() > $1", context.expires_at
            )
            await server_says(receiver.owner, "select clock_timestamp() > $1", context.expires_at)
        with pytest.raises(AuthorityOver):
            await waiting
    finally:
        await blocker.close()


async def test_a_shorter_limit_of_the_session_stays_and_a_longer_one_is_lowered(
    receiver: Downstream,
) -> None:
    limits = {"600s": "60s", "20s": "20s"}
    for configured, expected in limits.items():
        async with asyncpg.create_pool(
            receiver.writer_url, min_size=0, server_settings={"transaction_timeout": configured}
        ) as pool:
            context = await attempt(receiver.owner, tolerance_seconds=0.0)
            async with SqlGuard(pool).transaction(context, operation="row") as effect:
                in_force = await effect.connection.fetchval(
                    "select current_setting('transaction_timeout')::interval <= $1::text::interval"
                    " and current_setting('transaction_timeout')::interval > interval '1s'",
                    expected,
                )
                assert in_force
            async with pool.acquire() as connection:
                after = await connection.fetchval(
                    "select current_setting('transaction_timeout')::interval = $1::text::interval",
                    configured,
                )
                assert after, "the limit was this transaction's alone"


@pytest.mark.requirement("LEASE-10")
async def test_a_longer_limit_that_already_runs_is_set_anew(receiver: Downstream) -> None:
    """A timer that runs is left alone by the server when only its length changes."""
    async with asyncpg.create_pool(
        receiver.writer_url, min_size=0, server_settings={"transaction_timeout": "600s"}
    ) as pool:
        context = await attempt(receiver.owner, expires_in_seconds=0.3)

        async def holder() -> None:
            async with SqlGuard(pool).transaction(context, operation="row") as effect:
                await gone(receiver.owner, effect.connection.get_server_pid())

        with pytest.raises(AuthorityOver):
            await holder()


async def test_an_error_that_the_body_swallowed_does_not_pass_for_a_commit(
    receiver: Downstream, guard: SqlGuard
) -> None:
    """The server would answer the COMMIT of an aborted transaction with a silent rollback."""
    context = await attempt(receiver.owner)

    async def handler() -> None:
        async with guard.transaction(context, operation="row") as effect:
            with pytest.raises(asyncpg.UndefinedTableError):
                await effect.connection.execute("insert into missing values (1)")

    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await handler()
    assert await write(guard, context, "afterwards")


async def test_an_error_of_the_body_rolls_back_and_passes_through(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner)

    async def handler() -> None:
        async with guard.transaction(context, operation="row") as effect:
            await effect.connection.execute(
                "insert into effects (task_id, value) values ($1, 'undone')", context.task_id
            )
            raise LookupError

    with pytest.raises(LookupError):
        await handler()
    assert await receiver.effects(context.task_id) == []
    assert await write(guard, context, "afterwards")


async def test_a_cancelled_handler_rolls_back_and_its_connection_is_free_again(
    receiver: Downstream,
) -> None:
    async with SqlGuard(receiver.writer_url, pool_size=1) as guard:
        context = await attempt(receiver.owner)
        inside = asyncio.Event()

        async def handler() -> None:
            async with guard.transaction(context, operation="row") as effect:
                await effect.connection.execute(
                    "insert into effects (task_id, value) values ($1, 'undone')", context.task_id
                )
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(handler())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await write(guard, context, "afterwards")
    assert await receiver.effects(context.task_id) == ["afterwards"]


async def test_savepoints_and_cursors_work_within_an_effect(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner)
    async with guard.transaction(context, operation="row") as effect:
        async with effect.connection.transaction():
            await effect.connection.execute(
                "insert into effects (task_id, value) values ($1, 'inner')", context.task_id
            )
        rows = [row["value"] async for row in effect.connection.cursor("select value from effects")]
        assert rows == ["inner"]
    assert await receiver.effects(context.task_id) == ["inner"]


async def test_two_attempts_at_once_are_judged_one_after_the_other(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner)
    attempts = [context, await successor_of(receiver.owner, context)]
    results = await asyncio.gather(
        *(write(guard, each, each.attempt_id) for each in attempts), return_exceptions=True
    )
    assert len(await receiver.effects(context.task_id)) == 1
    assert all(result in (True, False) or isinstance(result, StaleToken) for result in results)


async def test_the_executors_account_cannot_touch_fences_or_the_inbox(
    receiver: Downstream,
) -> None:
    writer = await asyncpg.connect(receiver.writer_url)
    try:
        for statement in (
            "select * from tenure_fence",
            "update tenure_fence set fencing_token = 0",
            "delete from tenure_inbox",
            "insert into tenure_inbox select * from tenure_inbox",
            "truncate tenure_fence",
            "alter table tenure_inbox disable trigger all",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await writer.execute(statement)
    finally:
        await writer.close()


async def test_installing_again_and_at_once_changes_nothing(
    receiver: Downstream, guard: SqlGuard, empty_database: FreshDatabase
) -> None:
    context = await attempt(receiver.owner)
    await write(guard, context, "before")
    async with asyncpg.create_pool(empty_database.admin_url, min_size=4, max_size=4) as owners:

        async def install() -> None:
            async with owners.acquire() as connection:
                await SqlGuard.install(connection, roles=[receiver.role])

        await asyncio.gather(*(install() for _ in range(4)))
    assert not await write(guard, context, "after")


async def test_the_guard_lives_in_a_schema_of_any_name(empty_database: FreshDatabase) -> None:
    schema = """Bob's "guard" """
    async with asyncpg.create_pool(empty_database.owner_url, min_size=1) as pool:
        owner = await asyncpg.connect(empty_database.owner_url)
        try:
            await owner.execute("""create schema "Bob's ""guard"" " """)
            await owner.execute("create table effects (task_id uuid, value text)")
            await SqlGuard.install(owner, schema=schema)
            context = await attempt(owner)
        finally:
            await owner.close()
        guard = SqlGuard(pool, schema=schema)
        await guard.raise_fence(context)
        assert await write(guard, context, "row")
        assert not await write(guard, context, "row")


def test_a_schema_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no name"):
        install_statements(schema="")


async def test_a_receiver_without_the_guard_says_how_to_install_it(
    empty_database: FreshDatabase,
) -> None:
    async with SqlGuard(empty_database.owner_url) as guard:
        observer = await asyncpg.connect(empty_database.owner_url)
        try:
            context = await attempt(observer)
        finally:
            await observer.close()
        with pytest.raises(GuardNotInstalled, match="tenure guard sql --print"):
            await guard.raise_fence(context)
        with pytest.raises(GuardNotInstalled):
            await write(guard, context, "row")


async def test_a_receiver_that_cannot_be_reached_may_be_tried_again(receiver: Downstream) -> None:
    context = await attempt(receiver.owner)
    async with (
        toxic(receiver.writer_url) as proxy,
        SqlGuard(proxy.url) as guard,
    ):
        proxy.refuse_connections = True
        with pytest.raises(GuardUnavailable):
            await guard.raise_fence(context)
        proxy.refuse_connections = False
        await guard.raise_fence(context)
    with pytest.raises(GuardUnavailable, match="async with"):
        await guard.raise_fence(context)
