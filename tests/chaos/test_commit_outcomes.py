"""Connections that are lost around a commit: unknown → repeated → the same ids, nothing twice.

And a transaction whose holder vanished with the end withheld: it blocks nobody for long.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tenure.contract import topology
from tenure.contract.codes import Code
from tenure.coordinator.core.commands import Reject, Take
from tenure.coordinator.core.decisions import Outcome
from tests.support.authority import Bench, Held, replica
from tests.support.books import faults, read_log
from tests.support.isolation import FreshDatabase
from tests.support.toxic import toxic
from tests.support.toxic_filters import Commits, Plan, When
from tests.support.waiting import eventually

Issue = Callable[[], Coroutine[Any, Any, Outcome]]
Command = Callable[[Bench], Awaitable[Issue]]
"""Prepares what a command needs, and gives back how to issue it: the same one at each call."""


@dataclasses.dataclass
class Struck:
    """A replica behind a proxy that strikes at commits as planned."""

    bench: Bench
    plan: Plan


@pytest.fixture
async def struck(emptied_database: FreshDatabase) -> AsyncIterator[Struck]:
    plan = Plan()
    async with toxic(emptied_database.coordinator_url, lambda: Commits(plan)) as proxy:
        behind = dataclasses.replace(
            emptied_database, coordinator_url=f"{proxy.url}?sslmode=disable"
        )
        async with replica(behind) as bench:
            yield Struck(bench, plan)


async def submit(bench: Bench) -> Issue:
    await bench.register()
    command = bench.submission()
    return lambda: first(bench.authority.submit([command]))


async def register(bench: Bench) -> Issue:
    command = bench.registration()
    return lambda: bench.authority.register(command)


async def take(bench: Bench) -> Issue:
    await bench.register()
    held = await bench.assigned(await bench.submit())
    return lambda: bench.report(Take, held, REPORT)


async def reject(bench: Bench) -> Issue:
    await bench.register()
    held = await bench.assigned(await bench.submit())
    return lambda: bench.report(Reject, held, REPORT, reason="node_draining", message="")


async def running(bench: Bench) -> Held:
    await bench.register()
    return await bench.running()


async def deliver(bench: Bench) -> Issue:
    held = await running(bench)
    return lambda: bench.deliver(held, {"a": 1}, REPORT)


async def fail(bench: Bench) -> Issue:
    held = await running(bench)
    return lambda: bench.fail(held, REPORT)


async def cancel(bench: Bench) -> Issue:
    held = await running(bench)
    return lambda: bench.cancel(held.task_id)


async def confirm_cancel(bench: Bench) -> Issue:
    held = await running(bench)
    await bench.cancel(held.task_id)
    return lambda: bench.confirm_cancel(held)


async def renew(bench: Bench) -> Issue:
    held = await running(bench)
    return lambda: bench.renew(held)


async def expire(bench: Bench) -> Issue:
    held = await running(bench)
    await bench.end_lease(held)
    return lambda: bench.expire(held.task_id)


APPEND_LOCK_HELD = """
    select exists (select from pg_locks l join pg_database d on d.oid = l.database
    where d.datname = current_database() and l.relation = 'tenure.append_lock'::regclass
        and l.granted)
"""
REPORT = "01a00000-0000-7000-8000-000000000001"
COMMANDS: list[Command] = [
    submit, register, take, reject, deliver, fail, cancel, confirm_cancel, renew, expire,
]  # fmt: skip
REPEATABLE: list[Command] = [submit, register, take, reject, deliver, fail]
"""Those whose caller chooses the id, so that the caller may repeat them too."""


async def first(answer: Awaitable[list[Outcome]]) -> Outcome:
    (outcome,) = await answer
    return outcome


async def shape(bench: Bench) -> dict[str, object]:
    """How much there is of everything, and what happened in which order."""
    state = await bench.everything()
    log = await read_log(bench.owner, topology.events_exchange())
    assert faults(committed=log) == []
    return {
        **{table: len(rows) for table, rows in state.items()},
        "states": sorted(row["state"] for row in (*state["tasks"], *state["attempts"])),
    }


@pytest.mark.requirement("STATE-01")
@pytest.mark.requirement("OPS-01")
@pytest.mark.parametrize("when", [When.CUT_BEFORE, When.CUT_AFTER])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: str(each.__name__))
async def test_a_command_whose_connection_is_cut_around_its_commit_happens_once(
    struck: Struck, emptied_database: FreshDatabase, command: Command, when: When
) -> None:
    bench = struck.bench
    issue = await command(bench)
    before = await shape(bench)
    struck.plan.next = when
    outcome = await issue()
    assert struck.plan.struck == 1
    if command is expire and when is When.CUT_AFTER:
        # No outcome of it is kept: its repetition finds nothing left to end.
        assert outcome.refused is not None
        assert outcome.refused.code == Code.WRONG_STATE
    else:
        assert outcome.refused is None, outcome
    assert bench.observer.errors != []  # the lane saw the loss and repeated the same command
    happened = await shape(bench)
    assert happened != before
    if command in REPEATABLE:
        again = await issue()
        assert (again.refused, again.reply) == (None, outcome.reply)
        assert await shape(bench) == happened


@pytest.mark.requirement("OPS-01")
async def test_a_call_whose_end_is_withheld_blocks_others_no_longer_than_the_transaction_timeout(
    struck: Struck, emptied_database: FreshDatabase, record_property: Callable[[str, object], None]
) -> None:
    """Bind and Execute are forwarded, Sync is not: the implicit transaction holds the append lock
    and its rows. The server ends it; nobody else does."""
    bench = struck.bench
    limit = await bench.pool.fetchval("select current_setting('transaction_timeout')::interval")
    assert 0 < limit.total_seconds() <= 2.0
    async with replica(emptied_database) as other:
        issue = await submit(bench)
        struck.plan.next = When.WITHHOLD_SYNC
        withheld = asyncio.create_task(issue())

        async def held() -> bool:
            return bool(await other.owner.fetchval(APPEND_LOCK_HELD))

        await eventually(held)
        began = await other.now()
        task_id = await other.submit()
        stall = await other.now() - began
        record_property("longest_stall_seconds", stall.total_seconds())
        # What ended it was the server's limit on that session, so the stall is no longer than that
        # and what a repetition after 55P03 adds: one lock_timeout.
        lock = await bench.pool.fetchval("select current_setting('lock_timeout')::interval")
        assert stall <= limit + 2 * lock
        assert (await other.task(task_id))["state"] == "open"
        outcome = await withheld
        assert outcome.refused is None
        assert struck.plan.struck == 1
        assert await other.owner.fetchval("select count(*) from tenure.tasks") == 2
