"""What holds for every writer, whatever its path: triggers and constraints, each with the write
that it refuses and that succeeds without it. And the guards of sending an assignment again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from tenure.coordinator.core.commands import Take
from tests.support import steps
from tests.support.authority import Bench, Held, replica
from tests.support.isolation import FreshDatabase
from tests.support.sessions import blocked, session

TERMINAL = "('delivered', 'rejected', 'failed', 'cancelled', 'expired')"


@pytest.fixture
async def bench(emptied_database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(emptied_database) as bench:
        yield bench


@dataclass(frozen=True)
class Net:
    """A trigger or a constraint of a table, and what it refuses to the owner."""

    table: str
    name: str
    refused: str
    sqlstate: str

    @property
    def drop(self) -> str:
        if self.sqlstate.startswith("TN"):
            return f"drop trigger {self.name} on tenure.{self.table}"
        return f"alter table tenure.{self.table} drop constraint {self.name}"


ATTEMPTS, TASKS, RECEIPTS, NODES = "attempts", "tasks", "receipts", "incarnations"
NETS = [
    Net(ATTEMPTS, "attempts_are_immutable_once_ended",
        f"update tenure.attempts set message = 'x' where state in {TERMINAL}", "TN010"),
    Net(ATTEMPTS, "attempts_are_not_emptied", "truncate tenure.attempts", "TN010"),
    Net(ATTEMPTS, "attempts_move_as_permitted",
        "update tenure.attempts set state = 'delivered', ended_at = now(), sequence = sequence + 1"
        " where state = 'submitted'", "TN011"),
    Net(TASKS, "tasks_are_immutable_once_ended",
        "update tenure.tasks set state = 'open', ended_at = null where state = 'delivered'",
        "TN010"),
    Net(TASKS, "tasks_are_not_emptied", "truncate tenure.tasks", "TN010"),
    Net(RECEIPTS, "receipts_are_immutable", "update tenure.receipts set output = '2'", "TN010"),
    Net(RECEIPTS, "receipts_are_not_emptied", "truncate tenure.receipts", "TN010"),
    Net(ATTEMPTS, "ended_attempts_are_kept",
        f"delete from tenure.attempts where state in {TERMINAL}", "TN010"),
    Net(TASKS, "ended_tasks_are_kept", "delete from tenure.tasks where state = 'delivered'",
        "TN010"),
    Net(RECEIPTS, "receipts_are_kept", "delete from tenure.receipts", "TN010"),
    Net(ATTEMPTS, "ended_attempts_have_an_end",
        "update tenure.attempts set ended_at = now() where state = 'submitted'", "23514"),
    Net(ATTEMPTS, "failed_attempts_have_a_reason",
        "update tenure.attempts set state = 'failed', ended_at = now(), sequence = sequence + 1"
        " where state = 'running'", "23514"),
    Net(ATTEMPTS, "running_attempts_were_accepted",
        "update tenure.attempts set state = 'running', sequence = sequence + 2"
        " where state = 'submitted'", "23514"),
    Net(ATTEMPTS, "attempts_task_id_ordinal_key",
        "insert into tenure.attempts select (jsonb_populate_record(a, jsonb_build_object("
        "'attempt_id', gen_random_uuid()))).* from tenure.attempts a", "23505"),
    Net(TASKS, "ended_tasks_have_an_end",
        "update tenure.tasks set ended_at = now(), current_attempt_id = null where state = 'open'",
        "23514"),
    Net(TASKS, "ended_tasks_run_no_attempt",
        "update tenure.tasks set state = 'failed', ended_at = now() where state = 'open'", "23514"),
    Net(TASKS, "held_tasks_have_a_reason",
        "update tenure.tasks set state = 'held' where state = 'open'", "23514"),
    Net(NODES, "slots_are_not_oversold", "update tenure.incarnations set slots_used = -1", "23514"),
    Net(NODES, "cpu_is_not_oversold",
        "update tenure.incarnations set cpu_used = cpu_millis + 1", "23514"),
    Net(NODES, "memory_is_not_oversold",
        "update tenure.incarnations set memory_used = memory_bytes + 1", "23514"),
    Net(RECEIPTS, "refusals_have_a_code",
        "insert into tenure.receipts select (jsonb_populate_record(r, jsonb_build_object("
        "'receipt_id', gen_random_uuid(), 'content_digest', '\\\\x00', 'admitted', false))).*"
        " from tenure.receipts r", "23514"),
]  # fmt: skip


@pytest.mark.requirement("STATE-02")
@pytest.mark.parametrize("net", NETS, ids=lambda net: net.name)
async def test_a_net_refuses_its_owner_what_succeeds_without_it(bench: Bench, net: Net) -> None:
    await bench.register(cpu_millis=1000, memory_bytes=1000)
    delivered = await bench.running()
    await bench.deliver(delivered, 1)
    await bench.running()
    await bench.assigned(await bench.submit())
    before = await bench.everything()
    with pytest.raises(asyncpg.PostgresError) as refused:
        await bench.owner.execute(net.refused)
    assert refused.value.sqlstate == net.sqlstate
    assert await bench.everything() == before
    transaction = bench.owner.transaction()
    await transaction.start()
    try:
        await bench.owner.execute(net.drop)
        status = await bench.owner.execute(net.refused)
        assert not status.endswith(" 0")
    finally:
        await transaction.rollback()


async def test_every_trigger_and_named_constraint_of_the_state_has_a_case_here(
    bench: Bench,
) -> None:
    names = await bench.owner.fetch(
        """
        select tgname as name from pg_trigger t join pg_class c on c.oid = t.tgrelid
        where not tgisinternal and c.relname = any($1)
        union all
        select conname from pg_constraint k join pg_class c on c.oid = k.conrelid
        where c.relname = any($1) and contype = 'c' and conname not like c.relname || '\\_%'
        """,
        [ATTEMPTS, TASKS, RECEIPTS, NODES],
    )
    refuses_nothing = {"erased_stays_erased"}  # tests/integration/retention/test_erasure.py
    assert {row["name"] for row in names} <= {net.name for net in NETS} | refuses_nothing


# Sending an assignment again ------------------------------------------------------------------

RESENDING = {
    "unconfirmed": "if confirmed_epoch() is null then",
    "accepted": "a.state = 'submitted'",
    "expired": "a.expires_at > v_now",
    "just sent": "a.dispatched_at < v_now - p_not_within",
}


async def send_again(asked: Any, held: Held, not_within: float = 3600) -> int:
    sent: int = await asked.fetchval(
        "select tenure.redispatch($1, $2)", [held.attempt_id], timedelta(seconds=not_within)
    )
    return sent


async def assignments(bench: Bench) -> list[asyncpg.Record]:
    return await bench.owner.fetch(
        "select event_id, sequence, routing_key, body, required from tenure.log"
        " where copy order by position"
    )


@pytest.mark.requirement("OPS-01")
async def test_an_assignment_that_nobody_accepted_is_sent_again_with_the_same_bytes(
    bench: Bench,
) -> None:
    await bench.register()
    held = await bench.assigned(await bench.submit())
    assert await send_again(bench.pool, held, 0) == 1
    first, second = await assignments(bench)
    assert first == second
    assert await send_again(bench.pool, held) == 0  # within the period
    assert await bench.owner.fetchval("select version from tenure.attempts") == 1


@pytest.mark.parametrize("guard", RESENDING)
async def test_an_assignment_is_sent_again_only_while_it_waits(bench: Bench, guard: str) -> None:
    await bench.register()
    held = await bench.assigned(await bench.submit())
    not_within = 0
    match guard:
        case "accepted":
            await bench.report(Take, held)
        case "expired":
            await bench.end_lease(held)
        case "just sent":
            not_within = 3600
    source = await bench.owner.fetchval("select pg_get_functiondef('tenure.redispatch'::regproc)")
    text = RESENDING[guard]
    assert source.count(text) == 1
    weakened = source.replace(text, "if false then" if guard == "unconfirmed" else "true")
    try:
        if guard == "unconfirmed":
            await bench.owner.execute("update tenure.authority set epoch = 1, timeline = 'other'")
        assert await send_again(bench.pool, held, not_within) == 0
        assert len(await assignments(bench)) == 1
        await bench.owner.execute(weakened)
        assert await send_again(bench.pool, held, not_within) == 1
    finally:
        await bench.owner.execute(source)
        await bench.owner.execute(
            "update tenure.authority set timeline ="
            " substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)"
        )


async def test_an_assignment_being_taken_is_not_sent_again(
    bench: Bench, emptied_database: FreshDatabase
) -> None:
    await bench.register()
    held = await bench.assigned(await bench.submit())
    take = await steps.accept(bench.pool, bench.command(Take, held))
    async with (
        session(emptied_database.owner_url) as appender,
        steps.patient(emptied_database.coordinator_url) as taker,
        steps.patient(emptied_database.coordinator_url) as reconciler,
    ):
        async with appender.transaction():
            await appender.execute("lock table tenure.append_lock in share row exclusive mode")
            taking = asyncio.create_task(steps.commit(taker, take))
            await blocked(bench.owner, taker)
            sending = asyncio.create_task(send_again(reconciler, held, 0))
            await blocked(bench.owner, reconciler)
        await taking
        assert await sending == 0
    assert len(await assignments(bench)) == 1
