"""Connections cut around the commit of every kind of command: repeated, and done once.

The lane sees a lost connection and does not know whether its call was committed. It repeats the
same commands; what was committed then answers for itself.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import asyncpg
import pytest

from tenure.contract import topology
from tenure.contract.codes import Reason
from tenure.coordinator.core.commands import Deliver, Reject
from tenure.coordinator.core.decisions import Outcome
from tests.support import steps
from tests.support.authority import Bench, replica
from tests.support.books import faults, read_log
from tests.support.every_command import (
    BY_GUARDS_ALONE,
    OF_ROWS,
    STORED,
    Prepare,
    Send,
    a_confirmed_cancellation,
    a_delivery,
    a_failure,
    a_rejection,
    a_renewal,
    a_submission,
    a_take,
    an_allocation,
    first,
)
from tests.support.isolation import FreshDatabase
from tests.support.postgres_filters import Cut, Cuts, readable
from tests.support.waiting import eventually

COMMIT = "commit_batch"
APPEND_LOCK_HELD = """
    select exists (select from pg_locks l join pg_database d on d.oid = l.database
    where d.datname = current_database() and l.relation = 'tenure.append_lock'::regclass
        and l.granted)
"""


@dataclass(frozen=True)
class Site:
    """A replica whose connections all go through a proxy with these cuts."""

    bench: Bench
    cuts: Cuts
    database: FreshDatabase


@pytest.fixture
async def site(emptied_database: FreshDatabase) -> AsyncIterator[Site]:
    cuts = Cuts()
    async with readable(emptied_database.coordinator_url, cuts) as proxy:
        behind = replace(emptied_database, coordinator_url=proxy.url)
        async with replica(behind) as bench:
            yield Site(bench, cuts, emptied_database)


CUTS = [Cut.BEFORE_COMMIT, Cut.REPLY_LOST, Cut.REPLY_TORN]
WITH_CUTS = pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name.lower())


async def rows(owner: asyncpg.Connection) -> Counter[str]:
    """How many rows there are in each table, and what the counters say."""
    found: Counter[str] = Counter()
    for table in ("commands", "tasks", "attempts", "reservations", "incarnations", "receipts",
                  "renewals", "log"):  # fmt: skip
        found[table] = await owner.fetchval(f"select count(*) from tenure.{table}")
    for what in ("version", "sequence"):
        for table in ("tasks", "attempts", "incarnations"):
            found[f"{table} {what}"] = await owner.fetchval(
                f"select coalesce(sum({what}), 0)::int from tenure.{table}"
            )
    found["intake decided"] = await owner.fetchval(
        "select count(*) from tenure.intake where state <> 'waiting'"
    )
    found["slots"] = await owner.fetchval(
        "select coalesce(sum(slots_used), 0)::int from tenure.incarnations"
    )
    return found


async def difference(bench: Bench, send: Send) -> tuple[Outcome, dict[str, int]]:
    """The outcome, and what there is more and less afterwards."""
    before = await rows(bench.owner)
    outcome = await send()
    after = await rows(bench.owner)
    return outcome, {what: after[what] - before[what] for what in after}


@pytest.mark.requirement("STATE-01")
@pytest.mark.requirement("OPS-01")
@WITH_CUTS
@pytest.mark.parametrize("prepare", STORED, ids=lambda prepare: prepare.__name__)
async def test_a_command_whose_commit_is_unknown_is_done_once(
    site: Site, prepare: Prepare, cut: Cut
) -> None:
    bench = site.bench
    await bench.register(slots=8)
    _, as_usual = await difference(bench, await prepare(bench))
    send = await prepare(bench)
    plan = site.cuts.next(COMMIT, cut)
    outcome, changed = await difference(bench, send)
    assert plan.reached.is_set()
    assert changed == as_usual
    assert outcome.reply is not None
    assert outcome.replayed is (cut is not Cut.BEFORE_COMMIT)
    assert bench.observer.errors != []  # the lane saw the loss and repeated the same command
    again = await send()
    assert (again.reply, again.at, again.replayed) == (outcome.reply, outcome.at, True)
    log = await read_log(bench.owner, topology.events_exchange())
    assert faults(committed=log) == []


@WITH_CUTS
@pytest.mark.parametrize("prepare", BY_GUARDS_ALONE, ids=lambda prepare: prepare.__name__)
async def test_an_allocation_or_expiry_whose_commit_is_unknown_is_done_once(
    site: Site, prepare: Prepare, cut: Cut
) -> None:
    bench = site.bench
    await bench.register(slots=8)
    _, as_usual = await difference(bench, await prepare(bench))
    send = await prepare(bench)
    plan = site.cuts.next(COMMIT, cut)
    outcome, changed = await difference(bench, send)
    assert plan.reached.is_set()
    assert changed == as_usual
    repeated = cut is not Cut.BEFORE_COMMIT
    if prepare is an_allocation:
        assert (outcome.refused, outcome.replayed) == (None, repeated)
    else:
        assert (outcome.refused is not None) is repeated


@pytest.mark.requirement("LEASE-04")
@pytest.mark.parametrize("seen", [True, False], ids=["loaded anew", "known to the commit alone"])
async def test_an_allocation_that_comes_again_after_its_attempt_has_ended_makes_no_other(
    site: Site, seen: bool
) -> None:
    """Its outcome was not known, and meanwhile the task waits once more."""
    bench = site.bench
    incarnation = await bench.register()
    task_id = await bench.submit()
    command = steps.allocation(task_id, incarnation)
    (made,) = await bench.authority.allocate([command], [await steps.load(bench.owner, command)])
    held = await bench.holder(task_id)
    assert held is not None
    await bench.report(Reject, held, reason=Reason.NODE_DRAINING.value, message="")
    snapshot, now = await steps.load(bench.owner, command)
    assert snapshot.attempt is not None
    before = await bench.everything()
    given = snapshot if seen else replace(snapshot, attempt=None)
    (again,) = await bench.authority.allocate([command], [(given, now)])
    assert (again.refused, again.replayed, again.reply) == (None, True, made.reply)
    assert await bench.everything() == before


@WITH_CUTS
@pytest.mark.parametrize("prepare", OF_ROWS, ids=lambda prepare: prepare.__name__)
async def test_an_enqueued_row_whose_commit_is_unknown_is_decided_once(
    site: Site, prepare: Prepare, cut: Cut
) -> None:
    bench = site.bench
    await bench.register(slots=8)
    _, as_usual = await difference(bench, await prepare(bench))
    send = await prepare(bench)
    plan = site.cuts.next(COMMIT, cut)
    outcome, changed = await difference(bench, send)
    assert plan.reached.is_set()
    assert changed == as_usual
    assert changed["intake decided"] == 1
    assert outcome.reply is not None
    assert (outcome.reply.outcome == "ended") is (cut is not Cut.BEFORE_COMMIT)


@WITH_CUTS
async def test_a_renewal_whose_commit_is_unknown_renews_again(site: Site, cut: Cut) -> None:
    bench = site.bench
    await bench.register()
    send = await a_renewal(bench)
    site.cuts.next(COMMIT, cut)
    outcome, changed = await difference(bench, send)
    assert outcome.reply is not None
    times = 1 if cut is Cut.BEFORE_COMMIT else 2
    assert {what: by for what, by in changed.items() if by} == {"renewals": times}


async def test_a_repeated_command_whose_lease_is_gone_returns_the_first_outcome(
    site: Site,
) -> None:
    bench = site.bench
    await bench.register(slots=8)
    for prepare in (a_take, a_delivery, a_failure, a_rejection, a_confirmed_cancellation):
        send = await prepare(bench)
        outcome = await send()
        assert outcome.reply is not None
        await bench.superuser(
            "update tenure.attempts set expires_at = '2026-01-01';"
            "update tenure.tasks set version = version + 1"
        )
        if prepare is a_take:  # and the task has another holder by now
            task_id = await bench.owner.fetchval(
                "select task_id::text from tenure.attempts where state = 'running'"
            )
            await bench.expire(task_id)
            await bench.assigned(task_id)
        before = await bench.everything()
        again = await send()
        assert (again.reply, again.at) == (outcome.reply, outcome.at)
        assert await bench.everything() == before


async def test_a_coordinator_stopped_within_its_call_blocks_others_only_until_its_limit(
    site: Site,
) -> None:
    """Bind and Execute arrived, the Sync does not: the row locks are held. The server ends that
    transaction by the limit on the role, and both commands are done after that."""
    bench = site.bench
    await bench.register()
    async with replica(site.database) as other:
        await other.submit()  # its connections are warm
        # On a busy machine it may come to ask only when the limit is over.
        while "LockNotAvailableError" not in other.observer.errors:
            held = await bench.running()
            delivery = bench.command(Deliver, held, output_text="1", content_digest=b"1")
            plan = site.cuts.next(COMMIT, Cut.SYNC_HELD)
            stuck = asyncio.create_task(first(bench.authority.report([delivery])))
            await plan.reached.wait()
            cancelled = await other.cancel(held.task_id)
            delivered = await stuck
            assert plan.sqlstate == "25P04"  # transaction_timeout
            assert cancelled.reply is not None
            assert delivered.reply is not None
            states = [row["next_state"] for row in await bench.events(held.task_id)]
            assert states.count("delivered") == 2  # of the attempt and of the task
            assert (await bench.task(held.task_id))["state"] == "delivered"


@pytest.mark.requirement("OPS-01")
async def test_a_call_whose_end_is_withheld_blocks_others_no_longer_than_the_transaction_timeout(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    """As above, of a call that touches nobody's rows: the append lock alone is in the way."""
    bench = site.bench
    await bench.register()
    limit, lock = [
        await bench.pool.fetchval("select current_setting($1)::interval", name)
        for name in ("transaction_timeout", "lock_timeout")
    ]
    assert 0 < limit.total_seconds() <= 2.0
    async with replica(site.database) as other:
        send = await a_submission(bench)
        plan = site.cuts.next(COMMIT, Cut.SYNC_HELD)
        withheld = asyncio.ensure_future(send())

        async def held() -> bool:
            return bool(await other.owner.fetchval(APPEND_LOCK_HELD))

        await eventually(held)
        began = await other.now()
        task_id = await other.submit()
        stall = await other.now() - began
        record_property("longest_stall_seconds", stall.total_seconds())
        # What ended it was the server's limit on that session. Each wait for the lock that was
        # given up meanwhile took a lock_timeout: no more than fit, and one at each end.
        assert other.observer.errors.count("LockNotAvailableError") <= limit / lock + 2
        assert (await other.task(task_id))["state"] == "open"
        outcome = await withheld
        assert outcome.refused is None
        assert plan.sqlstate == "25P04"
        assert await other.owner.fetchval("select count(*) from tenure.tasks") == 2
