"""A commit of a guarded effect whose outcome is not known is found out, or settled by another."""

import asyncio
import gc
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tenure.contract.ids import AttemptId
from tenure.executor.errors import (
    CommitUnknown,
    EffectNotWritten,
)
from tenure.executor.guards.sql import SqlGuard
from tests.support.downstream import (
    Downstream,
    attempt,
    downstream,
    server_says,
    write,
)
from tests.support.isolation import FreshDatabase
from tests.support.postgres_filters import Cut, Cuts, readable


@pytest.fixture
async def receiver(empty_database: FreshDatabase) -> AsyncIterator[Downstream]:
    async with downstream(empty_database.admin_url) as made:
        yield made


@pytest.fixture
async def guard(receiver: Downstream) -> AsyncIterator[SqlGuard]:
    async with SqlGuard(receiver.writer_url) as opened:
        yield opened


async def test_a_commit_that_was_not_answered_and_happened_is_found_out(
    receiver: Downstream,
) -> None:
    cuts = Cuts()
    async with (
        readable(receiver.writer_url, cuts) as proxy,
        SqlGuard(proxy.url, pool_size=1) as guard,
    ):
        context = await attempt(receiver.owner)
        plan = cuts.next("COMMIT;", Cut.REPLY_LOST)
        assert await write(guard, context, "once")
        assert plan.cuts == 1
        assert not await write(guard, context, "twice")
    assert await receiver.effects(context.task_id) == ["once"]


async def test_a_commit_that_was_not_answered_and_did_not_happen_is_found_out(
    receiver: Downstream,
) -> None:
    cuts = Cuts()
    async with (
        readable(receiver.writer_url, cuts) as proxy,
        SqlGuard(proxy.url, pool_size=1) as guard,
    ):
        context = await attempt(receiver.owner)
        plan = cuts.next("COMMIT;", Cut.BEFORE_COMMIT)
        with pytest.raises(EffectNotWritten):
            await write(guard, context, "lost")
        assert plan.cuts == 1
        assert await write(guard, context, "repeated")
    assert await receiver.effects(context.task_id) == ["repeated"]


async def test_a_handler_cancelled_at_a_commit_that_fails_leaves_no_error_that_nobody_heard(
    receiver: Downstream,
) -> None:
    """Its outcome is nobody's any more; asyncio would log it as an error that was lost."""
    unheard: list[str] = []
    loop = asyncio.get_running_loop()
    gc.collect()  # what earlier tests have left is not this one's
    loop.set_exception_handler(lambda _, told: unheard.append(str(told)))
    try:
        await cancelled_at_its_commit(receiver)
        gc.collect()
    finally:
        loop.set_exception_handler(None)
    assert unheard == []


async def cancelled_at_its_commit(receiver: Downstream) -> None:
    cuts = Cuts()
    async with (
        readable(receiver.writer_url, cuts) as proxy,
        SqlGuard(proxy.url, pool_size=1) as guard,
    ):
        writing = asyncio.create_task(write(guard, await attempt(receiver.owner), "once"))

        def give_up() -> None:
            writing.cancel()

        cuts.next("COMMIT;", Cut.REPLY_LOST, give_up)
        await asyncio.wait({writing})
        assert writing.cancelled()


async def test_a_commit_whose_outcome_cannot_be_learned_says_so_and_may_be_repeated(
    receiver: Downstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.executor.guards.sql_async.SETTLE_SECONDS", 0.3)
    cuts = Cuts()
    async with (
        readable(receiver.writer_url, cuts) as proxy,
        SqlGuard(proxy.url, pool_size=1) as guard,
    ):
        await guard.raise_fence(await attempt(receiver.owner))  # it has its connection
        context = await attempt(receiver.owner, remaining_seconds=2.0)
        cuts.next("COMMIT;", Cut.REPLY_LOST, lambda: setattr(proxy, "refuse_connections", True))
        with pytest.raises(CommitUnknown):
            await write(guard, context, "once")
        proxy.refuse_connections = False
        successor = await attempt(receiver.owner, task=context.task_id, generation=2)
        assert not await write(guard, successor, "twice")
    assert await receiver.effects(context.task_id) == ["once"]


async def test_a_connection_lost_in_the_body_wrote_nothing(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner)
    with pytest.raises(EffectNotWritten):
        async with guard.transaction(context, operation="row") as effect:
            await receiver.owner.execute(
                "select pg_terminate_backend($1, 10000)", effect.connection.get_server_pid()
            )
    assert await write(guard, context, "afterwards")


SETTLE = "select tenure_settle($1, $2, 'row', $3)"


async def test_settling_tells_this_attempts_effect_from_another_ones(
    receiver: Downstream, guard: SqlGuard
) -> None:
    context = await attempt(receiver.owner)
    await write(guard, context, "row")
    token = context.fencing_token
    assert await receiver.owner.fetchval(SETTLE, context.task_id, context.attempt_id, token)
    other = AttemptId(str(uuid.uuid4()))
    assert not await receiver.owner.fetchval(SETTLE, context.task_id, other, token)


@pytest.mark.parametrize("fence_raised_before", [True, False])
async def test_settling_waits_for_a_transaction_whose_end_is_not_known(
    receiver: Downstream, guard: SqlGuard, fence_raised_before: bool
) -> None:
    """Its holder is lost, and its session still has the COMMIT before it. Where no fence had been
    raised, the row that it locks is one that only it can see."""
    context = await attempt(receiver.owner)
    if fence_raised_before:
        await guard.raise_fence(context)
    async with guard.transaction(context, operation="row"):
        settling = asyncio.create_task(
            receiver.owner.fetchval(
                SETTLE, context.task_id, context.attempt_id, context.fencing_token
            )
        )
        observer = await asyncpg.connect(receiver.writer_url)
        try:
            await server_says(observer, "select exists (select from pg_locks where not granted)")
        finally:
            await observer.close()
    assert await settling is True
