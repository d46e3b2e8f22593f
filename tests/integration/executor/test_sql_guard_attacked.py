"""What a hostile or careless caller of the receiver's functions gets from them (LEASE-10)."""

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tenure.contract.ids import fencing_token
from tests.support.downstream import Downstream, downstream
from tests.support.isolation import DatabaseServer
from tests.support.sessions import session

FAR = datetime(2999, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
GUARD = "select tenure_guard($1, $2, 'row', $3, $4, $5, 60000)"
OLD, NEW = fencing_token(1, 1), fencing_token(1, 2)


@pytest.fixture(scope="module")
async def receiver(database_server: DatabaseServer) -> AsyncIterator[Downstream]:
    async with database_server.fresh() as database, downstream(database.admin_url) as made:
        yield made


@pytest.fixture
async def writer(receiver: Downstream) -> AsyncIterator[asyncpg.Connection]:
    async with session(receiver.writer_url) as connection:
        yield connection


async def raise_fence(connection: asyncpg.Connection, task: str, token: int) -> None:
    await connection.execute("select tenure_raise_fence($1, $2, $3, $4)", task, token, FAR, SECOND)


async def write(connection: asyncpg.Connection, task: str) -> None:
    await connection.execute("insert into effects (task_id, value) values ($1, 'late')", task)


@pytest.mark.requirement("LEASE-10")
@pytest.mark.parametrize(
    ("token", "expires_at", "tolerance"),
    [
        ("null", "now() + interval '1 minute'", "interval '1 second'"),
        ("-1", "now() + interval '1 minute'", "interval '1 second'"),
        ("9007199254740992", "now() + interval '1 minute'", "interval '1 second'"),
        ("9223372036854775808", "now() + interval '1 minute'", "interval '1 second'"),
        ("1", "null", "interval '1 second'"),
        ("1", "'infinity'", "interval '1 second'"),
        ("1", "now() - interval '1 hour'", "null"),
        ("1", "now() - interval '1 hour'", "interval '1 day'"),
        ("1", "now() + interval '1 minute'", "interval '-1 second'"),
    ],
)
async def test_what_says_nothing_clear_of_its_authority_is_refused_and_raises_no_fence(
    receiver: Downstream, writer: asyncpg.Connection, token: str, expires_at: str, tolerance: str
) -> None:
    task = str(uuid.uuid4())
    said = f"{token}, {expires_at}, {tolerance}"
    for call in (
        f"select tenure_raise_fence('{task}', {said})",
        f"select tenure_guard('{task}', '{uuid.uuid4()}', 'row', {said}, 60000)",
    ):
        with pytest.raises((asyncpg.InvalidParameterValueError, asyncpg.UndefinedFunctionError)):
            await writer.execute(call)
    assert await receiver.owner.fetch("select from tenure_fence where task_id = $1", task) == []
    assert await receiver.owner.fetch("select from tenure_inbox where task_id = $1", task) == []


@pytest.mark.requirement("LEASE-10")
@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
@pytest.mark.parametrize("touched", [True, False], ids=["fence there", "no fence yet"])
async def test_a_snapshot_from_before_its_successor_lets_no_old_attempt_write(
    receiver: Downstream, writer: asyncpg.Connection, isolation: Any, touched: bool
) -> None:
    """Whatever it sees, it is judged by what is there."""
    task = str(uuid.uuid4())
    if touched:
        await raise_fence(writer, task, OLD)

    async def late() -> None:
        async with writer.transaction(isolation=isolation):
            await writer.fetch("select from effects")  # takes its snapshot
            async with session(receiver.writer_url) as successor:
                await raise_fence(successor, task, NEW)
            await writer.execute(GUARD, task, str(uuid.uuid4()), OLD, FAR, SECOND)
            await write(writer, task)

    with pytest.raises(asyncpg.PostgresError) as refused:
        await late()
    expected = "TN001" if isolation == "read_committed" else "40001"
    assert refused.value.sqlstate == expected
    assert await receiver.effects(task) == []


@pytest.mark.requirement("LEASE-10")
async def test_a_statement_that_was_prepared_before_its_successor_is_judged_when_it_runs(
    receiver: Downstream, writer: asyncpg.Connection
) -> None:
    task = str(uuid.uuid4())
    prepared = await writer.prepare(GUARD)
    await prepared.fetch(task, str(uuid.uuid4()), OLD, FAR, SECOND)
    await raise_fence(writer, task, NEW)
    with pytest.raises(asyncpg.PostgresError, match="stale fencing token"):
        await prepared.fetch(task, str(uuid.uuid4()), OLD, FAR, SECOND)


@pytest.mark.requirement("LEASE-10")
async def test_a_refusal_that_is_caught_with_a_savepoint_leaves_nothing_of_the_effect_done(
    receiver: Downstream, writer: asyncpg.Connection
) -> None:
    """The caller goes on all the same. What it writes then is its own word, not the guard's: no
    row of the inbox vouches for it, and its successor does the work."""
    task = str(uuid.uuid4())
    await raise_fence(writer, task, NEW)
    async with writer.transaction():
        with pytest.raises(asyncpg.PostgresError, match="stale"):
            async with writer.transaction():
                await writer.execute(GUARD, task, str(uuid.uuid4()), OLD, FAR, SECOND)
    done = await writer.fetchval(
        "select already_done from tenure_guard($1, $2, 'row', $3, $4, $5, 60000)",
        task, str(uuid.uuid4()), NEW, FAR, SECOND,
    )  # fmt: skip
    assert done is False


@pytest.mark.requirement("LEASE-10")
async def test_nothing_of_the_caller_s_own_stands_in_for_the_guard_s_tables(
    receiver: Downstream, writer: asyncpg.Connection
) -> None:
    task = str(uuid.uuid4())
    await raise_fence(writer, task, NEW)
    await writer.execute("create temporary table tenure_fence (task_id uuid, fencing_token bigint)")
    await writer.execute("set search_path = pg_temp, public")
    with pytest.raises(asyncpg.PostgresError, match="stale"):
        await writer.execute(GUARD, task, str(uuid.uuid4()), OLD, FAR, SECOND)
