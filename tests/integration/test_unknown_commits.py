"""Connections cut around the commit of every kind of command: repeated, and done once.

The lane sees a lost connection and does not know whether its call was committed. It repeats the
same commands; what was committed then answers for itself.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from uuid import uuid4

import asyncpg
import pytest

from tenure.contract.ids import CommandId, NodeId
from tenure.contract.states import NodeState
from tenure.coordinator.core.commands import (
    Accept,
    ChangeNode,
    ConfirmCancel,
    Deliver,
    Fail,
    Reject,
    Renew,
    Start,
    Take,
)
from tenure.coordinator.core.decisions import Outcome
from tests.support import steps
from tests.support.authority import TENANT, Bench, replica
from tests.support.isolation import FreshDatabase
from tests.support.statement_proxy import Cut, StatementProxy, statement_proxy

Send = Callable[[], Awaitable[Outcome]]
COMMIT = "commit_batch"


@dataclass(frozen=True)
class Site:
    """A replica whose connections all go through the proxy."""

    bench: Bench
    proxy: StatementProxy
    database: FreshDatabase


@pytest.fixture
async def site(emptied_database: FreshDatabase) -> AsyncIterator[Site]:
    async with statement_proxy(emptied_database.coordinator_url) as (proxy, url):
        behind = replace(emptied_database, coordinator_url=url)
        async with replica(behind) as bench:
            yield Site(bench, proxy, emptied_database)


# Each prepares a situation and gives the command to send into it, as often as one likes.


async def a_submission(bench: Bench) -> Send:
    command = bench.submission()
    return lambda: first(bench.authority.submit([command]))


async def a_cancellation(bench: Bench) -> Send:
    command = steps.cancellation(await bench.submit())
    return lambda: bench.authority.cancel(command)


async def a_requested_cancellation(bench: Bench) -> Send:
    held = await bench.running()
    command = steps.cancellation(held.task_id)
    return lambda: bench.authority.cancel(command)


async def an_acceptance(bench: Bench) -> Send:
    held = await bench.assigned(await bench.submit())
    command = bench.command(Accept, held)
    return lambda: first(bench.authority.report([command]))


async def a_start(bench: Bench) -> Send:
    held = await bench.assigned(await bench.submit())
    await bench.report(Accept, held)
    command = bench.command(Start, held)
    return lambda: first(bench.authority.report([command]))


async def a_take(bench: Bench) -> Send:
    held = await bench.assigned(await bench.submit())
    command = bench.command(Take, held)
    return lambda: first(bench.authority.report([command]))


async def a_delivery(bench: Bench) -> Send:
    held = await bench.running()
    command = bench.command(Deliver, held, output_text="1", content_digest=b"1")
    return lambda: first(bench.authority.report([command]))


async def a_late_delivery(bench: Bench) -> Send:
    held = await bench.running()
    await bench.end_lease(held)
    command = bench.command(Deliver, held, output_text="1", content_digest=b"1")
    return lambda: first(bench.authority.report([command]))


async def a_failure(bench: Bench) -> Send:
    held = await bench.running()
    command = bench.command(Fail, held, reason="r", message="m", retryable=False)
    return lambda: first(bench.authority.report([command]))


async def a_rejection(bench: Bench) -> Send:
    held = await bench.assigned(await bench.submit())
    command = bench.command(Reject, held, reason="r", message="m")
    return lambda: first(bench.authority.report([command]))


async def a_confirmed_cancellation(bench: Bench) -> Send:
    held = await bench.running()
    await bench.cancel(held.task_id)
    command = bench.command(ConfirmCancel, held)
    return lambda: first(bench.authority.report([command]))


async def a_registration(bench: Bench) -> Send:
    command = bench.registration(f"node-{uuid4()}")
    return lambda: bench.authority.register(command)


async def a_drain(bench: Bench) -> Send:
    incarnation = await bench.register("another")
    command = ChangeNode(
        CommandId(str(uuid4())), b"", TENANT, "operator", NodeId("another"), incarnation,
        NodeState.DRAINING,
    )  # fmt: skip
    return lambda: bench.authority.change_node(command)


async def an_allocation(bench: Bench) -> Send:
    incarnation = await bench.register("another")
    command = steps.allocation(await bench.submit(), incarnation)

    async def send() -> Outcome:
        snapshot = await steps.load(bench.owner, command)
        return (await bench.authority.allocate([command], [snapshot]))[0]

    return send


async def an_expiry(bench: Bench) -> Send:
    held = await bench.running()
    await bench.end_lease(held)
    command = steps.expiry(held.task_id)
    return lambda: first(bench.authority.expire([command]))


async def a_renewal(bench: Bench) -> Send:
    held = await bench.running()
    command = bench.command(Renew, held)
    return lambda: first(bench.authority.renew([command], held.incarnation))


async def first(outcomes: Awaitable[list[Outcome]]) -> Outcome:
    return (await outcomes)[0]


STORED = [
    a_submission, a_cancellation, a_requested_cancellation, an_acceptance, a_start, a_take,
    a_delivery, a_late_delivery, a_failure, a_rejection, a_confirmed_cancellation, a_registration,
    a_drain,
]  # fmt: skip
BY_GUARDS_ALONE = [an_allocation, an_expiry]
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


@WITH_CUTS
@pytest.mark.parametrize("prepare", STORED, ids=lambda prepare: prepare.__name__)
async def test_a_command_whose_commit_is_unknown_is_done_once(
    site: Site, prepare: Callable[[Bench], Awaitable[Send]], cut: Cut
) -> None:
    bench = site.bench
    await bench.register(slots=8)
    _, as_usual = await difference(bench, await prepare(bench))
    send = await prepare(bench)
    plan = site.proxy.next(COMMIT, cut)
    outcome, changed = await difference(bench, send)
    assert plan.reached.is_set()
    assert changed == as_usual
    assert outcome.reply is not None
    assert outcome.replayed is (cut is not Cut.BEFORE_COMMIT)
    again = await send()
    assert (again.reply, again.at, again.replayed) == (outcome.reply, outcome.at, True)


@WITH_CUTS
@pytest.mark.parametrize("prepare", BY_GUARDS_ALONE, ids=lambda prepare: prepare.__name__)
async def test_an_allocation_or_expiry_whose_commit_is_unknown_is_done_once(
    site: Site, prepare: Callable[[Bench], Awaitable[Send]], cut: Cut
) -> None:
    bench = site.bench
    await bench.register(slots=8)
    _, as_usual = await difference(bench, await prepare(bench))
    send = await prepare(bench)
    plan = site.proxy.next(COMMIT, cut)
    outcome, changed = await difference(bench, send)
    assert plan.reached.is_set()
    assert changed == as_usual
    assert (outcome.refused is not None) is (cut is not Cut.BEFORE_COMMIT)


@WITH_CUTS
async def test_a_renewal_whose_commit_is_unknown_renews_again(site: Site, cut: Cut) -> None:
    bench = site.bench
    await bench.register()
    send = await a_renewal(bench)
    site.proxy.next(COMMIT, cut)
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
    held = await bench.running()
    delivery = bench.command(Deliver, held, output_text="1", content_digest=b"1")
    plan = site.proxy.next(COMMIT, Cut.SYNC_HELD)
    stuck = asyncio.create_task(first(bench.authority.report([delivery])))
    await plan.reached.wait()
    async with replica(site.database) as other:
        cancelled = await other.cancel(held.task_id)
        assert "LockNotAvailableError" in other.observer.errors
    delivered = await stuck
    assert plan.sqlstate == "25P04"  # transaction_timeout
    assert cancelled.reply is not None
    assert delivered.reply is not None
    states = [row["next_state"] for row in await bench.events(held.task_id)]
    assert states.count("delivered") == 2  # of the attempt and of the task
    assert (await bench.task(held.task_id))["state"] == "delivered"
