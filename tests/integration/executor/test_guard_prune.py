"""What guards leave in a downstream database is removed once it is old, and nothing else."""

import contextlib
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from tenure.executor.context import Context
from tenure.executor.core.paying import Known
from tenure.executor.core.receiving import Presented
from tenure.executor.errors import GuardNotInstalled, GuardUnavailable, StaleToken
from tenure.executor.guards import sql_prune, sql_unsettled
from tenure.executor.guards.http_store import SqliteRequests
from tenure.executor.guards.http_tables import tables
from tenure.executor.guards.payment import Entry, SqlitePayments
from tenure.executor.guards.payment_table import table
from tenure.executor.guards.sql import SqlGuard
from tests.support import leases
from tests.support.bare_command import bare
from tests.support.downstream import attempt, downstream, write
from tests.support.isolation import FreshDatabase

DAY = timedelta(days=1)


async def test_old_rows_go_and_young_and_unsettled_ones_stay(
    empty_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_prune, "_CHUNK", 3)  # several transactions
    async with (
        downstream(empty_database.admin_url) as receiver,
        SqlGuard(receiver.writer_url) as guard,
    ):
        owner = receiver.owner
        await owner.execute(tables() + table())
        contexts = [await attempt(owner) for _ in range(10)]
        for context in contexts:
            await write(guard, context, "row")
            await write(guard, context, "another", operation="another row")
        old = [context.task_id for context in contexts[:7]]
        aged = "clock_timestamp() - interval '2 days'"
        await owner.execute(
            f"update tenure_inbox set done_at = {aged} where task_id = any($1)", old
        )
        await owner.execute(f"update tenure_fence set raised_at = {aged}")
        await owner.execute(
            f"""
            insert into tenure_payment (payment_id, task_id, operation, digest, known, content,
                fencing_token, intended_at, settled_at)
            select gen_random_uuid(), gen_random_uuid(), 'charge', '', known, '', 1, {aged},
                case known when 'paid' then {aged} end
            from unnest(array['intended', 'paid', 'paid']) known;
            insert into tenure_http_fence values ('gone', 1, 0), ('kept', 1, 0);
            insert into tenure_http_request (scope, key, resource, fingerprint, state, claim,
                claimed_until, touched_at)
            values ('', 'a', 'gone', '', 'done', 'a', 0, 0), ('', 'b', 'kept', '', 'running', 'b',
                0, 0)
            """
        )
        removed = await sql_prune.prune(empty_database.admin_url, older_than=DAY)
        assert removed == {
            "tenure_inbox": 14,
            "tenure_fence": 7,  # those of the others still have rows
            "tenure_http_request": 1,
            "tenure_http_fence": 1,
            "tenure_payment": 2,
        }
        assert await owner.fetchval("select count(*) from tenure_inbox") == 6
        assert await owner.fetchval("select count(*) from tenure_fence") == 3
        again = await sql_prune.prune(empty_database.admin_url, older_than=DAY)
        assert set(again.values()) == {0}
        young = contexts[-1]
        assert not await write(guard, young, "again")


async def test_rows_that_a_handler_has_locked_are_left_alone(
    empty_database: FreshDatabase,
) -> None:
    async with (
        downstream(empty_database.admin_url) as receiver,
        SqlGuard(receiver.writer_url) as guard,
    ):
        context = await attempt(receiver.owner)
        await guard.raise_fence(context)
        await receiver.owner.execute("update tenure_fence set raised_at = '2020-01-01'")
        async with guard.transaction(context, operation="row"):
            removed = await sql_prune.prune(empty_database.admin_url, older_than=DAY)
            assert removed == {"tenure_inbox": 0, "tenure_fence": 0}


async def test_the_command_says_what_it_removed(
    empty_database: FreshDatabase, tmp_path: Path
) -> None:
    secret = tmp_path / "url"
    secret.write_text(empty_database.admin_url)
    words = ("guard", "prune", "--older-than", "30d", "-o", "json")
    async with downstream(empty_database.admin_url):
        code, output = await bare(*words, f"@{secret}")
    assert (code, json.loads(output)) == (0, {"tenure_inbox": 0, "tenure_fence": 0})
    file = tmp_path / "requests.db"
    with contextlib.closing(SqliteRequests(file)):
        code, output = await bare(*words, "--sqlite", str(file))
    assert (code, json.loads(output)) == (0, {"requests and fences": 0})
    with contextlib.closing(SqlitePayments(file)):  # beside them
        code, output = await bare(*words, "--sqlite", str(file))
    assert (code, json.loads(output)) == (0, {"requests and fences": 0, "payments and fences": 0})


async def test_a_database_without_guards_or_rights_says_so(empty_database: FreshDatabase) -> None:
    with pytest.raises(GuardNotInstalled, match="--schema"):
        await sql_prune.prune(empty_database.admin_url, older_than=DAY, schema="elsewhere")
    async with downstream(empty_database.admin_url) as receiver:
        with pytest.raises(GuardUnavailable, match="owns the guard's tables"):
            await sql_prune.prune(receiver.writer_url, older_than=DAY)
        assert isinstance(receiver.owner, asyncpg.Connection)


@pytest.fixture
async def owner_url(empty_database: FreshDatabase) -> AsyncIterator[str]:
    """A database with a request that was interrupted, one that runs, and two intended payments, of
    which one may be under way."""
    owner = await asyncpg.connect(empty_database.admin_url)
    try:
        await owner.execute(tables() + table())
        await owner.execute(
            """
            insert into tenure_http_request (scope, key, resource, fingerprint, state, claim,
                claimed_until, touched_at)
            values ('', 'lost', 'task', '', 'running', 'a', 0, 1000000),
                ('other', 'lost', 'task', '', 'running', 'c', 0, 2000000),
                ('', 'runs', 'task', '', 'running', 'b', 9007199254740991, 0);
            insert into tenure_payment (payment_id, task_id, operation, digest, known, content,
                fencing_token, intended_at)
            values ('00000000-0000-0000-0000-000000000001', gen_random_uuid(), 'charge', '',
                    'intended', '', 1, now() - interval '1 hour'),
                ('00000000-0000-0000-0000-000000000002', gen_random_uuid(), 'charge', '',
                    'intended', '', 1, now())
            """
        )
        yield empty_database.admin_url
    finally:
        await owner.close()


async def test_what_nobody_knows_is_listed_and_forgotten_by_key(owner_url: str) -> None:
    payment = "00000000-0000-0000-0000-000000000001"
    code, output = await bare("guard", "unsettled", owner_url, "-o", "json")
    listed = [(one["kind"], one["key"], one["scope"]) for one in json.loads(output)]
    assert (code, listed) == (
        0,
        [("request", "lost", ""), ("request", "lost", "other"), ("payment", payment, "")],
    )
    for key, scope, gone in (
        ("lost", "other", 1),
        ("lost", None, 1),
        ("runs", None, 0),
        (payment, None, 1),
        (payment.replace("1", "2"), None, 0),
    ):
        assert await sql_unsettled.forget(owner_url, key, scope=scope) == gone
    assert await sql_unsettled.unsettled(owner_url) == []
    code, output = await bare("guard", "forget", "lost", owner_url)
    assert (code, "not_found" in output) == (1, True)
    with pytest.raises(GuardUnavailable):
        await sql_unsettled.unsettled("postgresql://nobody@127.0.0.1:1/nowhere")


async def test_an_interrupted_request_in_a_file_is_listed_and_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "requests.db"
    asked = Presented("task", token=1, until=2**53, key="lost", fingerprint="f")
    with contextlib.closing(SqliteRequests(file)) as store:
        await store.begin(asked, claim="a", claim_seconds=0.0, repeat_abandoned=False)
        (found,) = await store.interrupted()
        assert (found.kind, found.key, found.task) == ("request", "lost", "task")
    code, output = await bare("guard", "unsettled", "--sqlite", str(file))
    assert (code, "lost" in output) == (0, True)
    assert await bare("guard", "forget", "lost", "--sqlite", str(file)) == (0, "forgotten: lost\n")
    code, _ = await bare("guard", "forget", "lost", "--sqlite", str(file))
    assert code == 1


class PaymentFile:
    """A record of payments in a file, on a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.now = time.time()
        self.record = SqlitePayments(path, clock=lambda: self.now)

    async def intend(self, context: Context[None]) -> str:
        """What was known before, which is then intended."""
        return (await self.record.intend(context, context.side_effect("charge"), "digest")).known

    async def pay(self, context: Context[None]) -> None:
        await self.intend(context)
        paid = Entry(Known.PAID, "digest", "{}")
        await self.record.settle(context, context.side_effect("charge"), paid)


async def test_old_payments_in_a_file_go_and_young_and_unsettled_ones_stay(tmp_path: Path) -> None:
    payments = PaymentFile(tmp_path / "payments.db")
    old, unsettled, young = (leases.attempt(None, 2, expires_in_seconds=10**6) for _ in range(3))
    with contextlib.closing(payments.record):
        await payments.pay(old)
        await payments.intend(unsettled)
        payments.now += 2 * DAY.total_seconds()
        await payments.pay(young)
        assert await payments.record.prune(DAY.total_seconds()) == 2, "a payment and its fence"
        assert await payments.record.prune(DAY.total_seconds()) == 0
        again = [await payments.intend(each) for each in (old, unsettled, young)]
        assert again == ["new", "intended", "paid"]
        stale = leases.attempt(young.task_id, 1, expires_in_seconds=10**6)
        with pytest.raises(StaleToken):
            await payments.intend(stale)


async def test_an_unsettled_payment_in_a_file_is_listed_and_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "payments.db"
    payments = PaymentFile(file)
    payments.now -= DAY.total_seconds()
    lost, under_way = leases.attempt(), leases.attempt()
    with contextlib.closing(payments.record):
        await payments.intend(lost)
        payments.now = time.time()
        await payments.intend(under_way)
        (found,) = await payments.record.unsettled()
        assert (found.kind, found.key) == ("payment", lost.side_effect("charge").id)
        assert found.task == lost.task_id
        assert not await payments.record.forget(under_way.side_effect("charge").id)
    code, output = await bare("guard", "unsettled", "--sqlite", str(file), "-o", "json")
    assert (code, [one["key"] for one in json.loads(output)]) == (0, [found.key])
    words = ("guard", "forget", found.key, "--sqlite", str(file))
    assert [(await bare(*words))[0], (await bare(*words))[0]] == [0, 1]


async def test_what_a_file_of_an_earlier_version_holds_counts_as_touched_when_it_is_opened(
    tmp_path: Path,
) -> None:
    file = tmp_path / "payments.db"
    with contextlib.closing(sqlite3.connect(file)) as earlier:
        earlier.executescript(
            """
            create table tenure_payment (
                payment_id text primary key, task_id text not null, operation text not null,
                digest text not null, known text not null, content text not null,
                fencing_token integer not null
            ) without rowid;
            create table tenure_payment_fence (
                task_id text primary key, fencing_token integer not null
            ) without rowid;
            insert into tenure_payment values ('p', 't', 'charge', 'd', 'paid', '{}', 1);
            insert into tenure_payment_fence values ('t', 1);
            """
        )
    payments = PaymentFile(file)
    with contextlib.closing(payments.record):
        assert await payments.record.prune(DAY.total_seconds()) == 0
        payments.now += 2 * DAY.total_seconds()
        assert await payments.record.prune(DAY.total_seconds()) == 2


async def test_a_file_without_anything_of_a_guard_s_is_told_and_left_as_it_is(
    tmp_path: Path,
) -> None:
    file = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(file)) as other:
        other.execute("create table mine (a)")
    before = file.read_bytes()
    for words in (("unsettled",), ("forget", "key"), ("prune", "--older-than", "30d")):
        code, output = await bare("guard", *words, "--sqlite", str(file))
        assert (code, "holds nothing of a guard's" in output) == (1, True)
    assert file.read_bytes() == before
    file.write_text("no database at all, " * 20)
    code, output = await bare("guard", "unsettled", "--sqlite", str(file))
    assert (code, "cannot be used" in output) == (1, True)
