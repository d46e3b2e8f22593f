"""Leases over a real database: granted whole or not at all, judged by one clock, and fenced."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tenure.cli.local.postgres import PrivatePostgres
from tenure.contract.codes import Code
from tenure.contract.ids import FencingToken, IncarnationId, NodeId, TenantId, generation_of
from tenure.coordinator.core.commands import (
    Accept,
    AttemptCommand,
    ConfirmCancel,
    Deliver,
    Fail,
    Reject,
    Renew,
    Start,
    Take,
)
from tenure.coordinator.core.decisions import ItemOutcome
from tenure.coordinator.core.snapshot import LeasePolicy
from tests.support import steps
from tests.support.authority import Bench, Held, replica
from tests.support.isolation import DatabaseServer, FreshDatabase, empty_state
from tests.support.sessions import blocked, session, until

REPORTS: list[tuple[type[AttemptCommand], dict[str, Any]]] = [
    (Accept, {}),
    (Start, {}),
    (Take, {}),
    (Deliver, {"output_text": "1", "content_digest": b"1"}),
    (Fail, {"reason": "handler_failed", "message": "", "retryable": True}),
    (Reject, {"reason": "node_draining", "message": ""}),
    (ConfirmCancel, {}),
    (Renew, {}),
]
EVERY_REPORT = pytest.mark.parametrize(
    ("kind", "content"), REPORTS, ids=[kind.__name__.lower() for kind, _ in REPORTS]
)


@pytest.fixture
async def bench(emptied_database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(emptied_database) as bench:
        yield bench


async def granted(owner: asyncpg.Connection) -> dict[str, int]:
    """How much of an allocation there is, counted in every place that it writes to."""
    row = await owner.fetchrow(
        """
        select
            (select count(*) from tenure.attempts) as attempts,
            (select count(*) from tenure.reservations) as reservations,
            (select count(*) from tenure.log where entity_type = 'attempt') as messages,
            (select count(*) from tenure.tasks where current_attempt_id is not null) as tasks,
            (select coalesce(sum(generation), 0)::int from tenure.tasks) as generations,
            (select coalesce(sum(slots_used), 0)::int from tenure.incarnations) as slots
        """
    )
    assert row is not None
    return dict(row)


NOTHING = dict.fromkeys(
    ("attempts", "reservations", "messages", "tasks", "generations", "slots"), 0
)
ALL = dict.fromkeys(NOTHING, 1) | {"messages": 2}  # the event, and its copy to the node's queue


async def state(bench: Bench) -> dict[str, Any]:
    """Everything but when nodes were heard of."""
    everything = await bench.everything()
    everything["incarnations"] = [
        {name: value for name, value in row.items() if name != "last_seen_at"}
        for row in everything["incarnations"]
    ]
    return everything


async def superseded(bench: Bench) -> tuple[Held, Held]:
    """A holder whose lease ran out, and its successor, both having started."""
    first = await bench.running()
    await bench.end_lease(first)
    await bench.expire(first.task_id)
    second = await bench.assigned(first.task_id)
    await bench.report(Take, second)
    return first, second


@pytest.mark.requirement("LEASE-01")
async def test_one_transaction_makes_reservation_attempt_lease_and_outbox_row(bench: Bench) -> None:
    await bench.register()
    held = await bench.assigned(await bench.submit())
    writers = await bench.owner.fetch(
        """
        select xmin::text from tenure.attempts where attempt_id = $1
        union select xmin::text from tenure.reservations where attempt_id = $1
        union select xmin::text from tenure.log where attempt_id = $1
        union select xmin::text from tenure.tasks where current_attempt_id = $1
        union select xmin::text from tenure.incarnations where incarnation = $2
        """,
        held.attempt_id,
        held.incarnation,
    )
    assert len(writers) == 1
    assert await granted(bench.owner) == ALL


@pytest.mark.requirement("LEASE-01")
async def test_an_allocation_ended_before_its_last_row_leaves_nothing(
    bench: Bench, emptied_database: FreshDatabase
) -> None:
    incarnation = await bench.register()
    task_id = await bench.submit()
    item = await steps.accept(bench.pool, steps.allocation(task_id, incarnation))
    async with (
        session(emptied_database.admin_url) as admin,
        session(emptied_database.owner_url) as appender,
        steps.patient(emptied_database.coordinator_url) as doomed,
    ):
        async with appender.transaction():
            await appender.execute("lock table tenure.append_lock in share row exclusive mode")
            call = asyncio.create_task(steps.commit(doomed, item))
            await blocked(admin, doomed)  # all its rows are written but the last
            await admin.execute("select pg_terminate_backend($1)", doomed.get_server_pid())
            with pytest.raises(asyncpg.PostgresConnectionError):
                await call
            assert await granted(bench.owner) == NOTHING
        assert await granted(bench.owner) == NOTHING
    assert await steps.commit(bench.pool, item) == [ItemOutcome.APPLIED]
    assert await granted(bench.owner) == ALL
    assert await steps.commit(bench.pool, item) == [ItemOutcome.STALE]
    assert await granted(bench.owner) == ALL


@pytest.mark.requirement("LEASE-01")
async def test_a_server_killed_in_an_allocation_leaves_all_or_nothing(
    private_postgres: PrivatePostgres,
) -> None:
    server = DatabaseServer(private_postgres.url())
    await server.prepare()
    database = await server.create_migrated(f"killed_{secrets.token_hex(4)}")
    async with replica(database) as bench:
        incarnation = await bench.register()
        item = await steps.accept(bench.pool, steps.allocation(await bench.submit(), incarnation))
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(session(database.admin_url))
        appender = await stack.enter_async_context(session(database.owner_url))
        doomed = await stack.enter_async_context(steps.patient(database.coordinator_url))
        await appender.execute("begin; lock table tenure.append_lock in share row exclusive mode")
        call = asyncio.create_task(steps.commit(doomed, item))
        await blocked(admin, doomed)
        private_postgres.kill()
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
            await call
    await private_postgres.start()
    async with session(database.owner_url) as owner:
        assert await granted(owner) == NOTHING
        async with steps.patient(database.coordinator_url) as service:
            assert await steps.commit(service, item) == [ItemOutcome.APPLIED]
            private_postgres.kill()  # at once after the answer
    await private_postgres.start()
    async with session(database.owner_url) as owner:
        assert await granted(owner) == ALL


@pytest.mark.requirement("LEASE-02")
@EVERY_REPORT
async def test_another_token_than_the_granted_one_changes_nothing(
    bench: Bench, kind: type[AttemptCommand], content: dict[str, Any]
) -> None:
    await bench.register()
    held = await bench.running()
    await bench.cancel(held.task_id)
    before = await state(bench)
    for token in (held.fencing_token - 1, 2**32):  # none above: see test_history.py
        command = bench.command(kind, held, fencing_token=FencingToken(token), **content)
        (outcome,) = await bench.authority.report([command])
        assert outcome.refused is not None
        assert outcome.refused.code == Code.STALE_TOKEN
    assert await state(bench) == before


@pytest.mark.requirement("LEASE-02")
@EVERY_REPORT
async def test_a_superseded_holder_changes_nothing_with_the_token_it_was_granted(
    bench: Bench, kind: type[AttemptCommand], content: dict[str, Any]
) -> None:
    await bench.register()
    first, second = await superseded(bench)
    assert generation_of(first.fencing_token) < generation_of(second.fencing_token)
    before = await state(bench)
    (outcome,) = await bench.authority.report([bench.command(kind, first, **content)])
    after = await state(bench)
    if kind is Deliver:  # kept as evidence, and nothing else
        assert outcome.reply is not None
        assert outcome.reply.outcome == "recorded"
        for table in ("receipts", "commands"):
            assert len(after.pop(table)) == len(before.pop(table)) + 1
    else:
        assert outcome.refused is not None
        assert outcome.refused.code == Code.NOT_CURRENT
    assert after == before


@pytest.mark.requirement("LEASE-02")
async def test_a_superseded_holder_replaces_no_delivery(bench: Bench) -> None:
    await bench.register()
    first, second = await superseded(bench)
    await bench.deliver(second, "of the successor")
    before = await bench.task(first.task_id)
    late = await bench.deliver(first, "of the old holder")
    assert late.reply is not None
    assert (late.reply.outcome, late.reply.code) == ("recorded", Code.LEASE_EXPIRED)
    assert await bench.task(first.task_id) == before
    active = await bench.owner.fetch(
        "select attempt_id::text, output from tenure.receipts where task_id = $1 and admitted",
        first.task_id,
    )
    assert [tuple(row) for row in active] == [(second.attempt_id, '"of the successor"')]


@pytest.mark.requirement("LEASE-02")
@EVERY_REPORT
async def test_a_lease_is_of_no_use_to_another_node_incarnation_or_tenant(
    bench: Bench, kind: type[AttemptCommand], content: dict[str, Any]
) -> None:
    await bench.register()
    held = await bench.running()
    before = await state(bench)
    thefts = {
        "node": (Held(held.task_id, held.attempt_id, NodeId("other"), held.incarnation,
                      held.fencing_token), {}, Code.WRONG_NODE),
        "incarnation": (Held(held.task_id, held.attempt_id, held.node_id,
                             IncarnationId(held.task_id), held.fencing_token),
                        {}, Code.WRONG_NODE),
        "tenant": (held, {"tenant": TenantId("other")}, Code.UNKNOWN_ATTEMPT),
    }  # fmt: skip
    for presented, more, code in thefts.values():
        command = bench.command(kind, presented, **content, **more)
        (outcome,) = await bench.authority.report([command])
        assert outcome.refused is not None
        assert outcome.refused.code == code
    assert await state(bench) == before


@pytest.mark.requirement("LEASE-03")
async def test_a_lease_says_who_may_do_what_with_which_token_until_when(bench: Bench) -> None:
    policy = bench.authority.policy
    await bench.register()
    task_id = await bench.submit()
    held = await bench.assigned(task_id)
    row = await bench.attempt(held)
    assert str(row["task_id"]) == task_id
    assert row["node_id"] == "node-1"
    assert str(row["incarnation"]) == held.incarnation
    assert row["lease_id"] not in (None, row["attempt_id"])
    assert row["fencing_token"] == 2**32 + 1
    assert row["policy_version"] == policy.version
    granted_for = row["expires_at"] - row["submitted_at"]
    assert granted_for.total_seconds() * 1e6 == policy.lease_microseconds
    assert json.loads(row["scope"]) == {
        "objects": ["*"],
        "operations": ["*"],
        "reservation": {"slots": 1, "cpu_millis": 0, "memory_bytes": 0},
    }


@pytest.mark.requirement("LEASE-05")
async def test_a_lease_that_runs_out_while_a_call_waits_for_its_row_is_over(
    emptied_database: FreshDatabase,
) -> None:
    """The decisions were made, and the statements sent, while the lease was live. On a busy machine
    it has to be longer for that."""
    seconds = 1
    while not await ran_out_while_calls_waited(emptied_database, seconds):
        seconds *= 2
        await empty_state(emptied_database)


async def ran_out_while_calls_waited(emptied_database: FreshDatabase, seconds: int) -> bool:
    """Whether the lease was live when the calls waited; if it was, they have come to nothing."""
    async with (
        replica(emptied_database, LeasePolicy(lease_microseconds=seconds * 1_000_000)) as bench,
        session(emptied_database.owner_url) as other,
        steps.patient(emptied_database.coordinator_url) as renewer,
        steps.patient(emptied_database.coordinator_url) as deliverer,
    ):
        await bench.register()
        task_id = await bench.submit()
        await bench.scheduler.step()
        held = await bench.holder(task_id)
        if held is None or (await bench.take(held)).reply is None:
            return False
        renewal = bench.command(Renew, held)
        delivery = bench.command(Deliver, held, output_text="1", content_digest=b"1")
        decided = [
            await steps.decision(asked, command)
            for asked, command in ((renewer, renewal), (deliverer, delivery))
        ]
        if await over(bench, held):
            return False
        async with other.transaction():
            # The row is only locked and not changed, so waiters see it as they first read it.
            await other.execute(
                "select from tenure.tasks where task_id = $1 for update", held.task_id
            )
            renewing, delivering = [
                asyncio.create_task(steps.commit(waiting, steps.accepted(command, decision)))
                for waiting, command, decision in zip(
                    (renewer, deliverer), (renewal, delivery), decided, strict=True
                )
            ]
            await blocked(bench.owner, renewer)
            await blocked(bench.owner, deliverer)
            live = not await over(bench, held)
            await until(lambda: over(bench, held))
        assert await renewing == await delivering == [ItemOutcome.STALE]
        assert await bench.owner.fetchval("select count(*) from tenure.renewals") == 0
        assert (await bench.attempt(held))["state"] == "running"
        # What the lanes then do: load and decide again.
        refused = await bench.renew(held)
        assert refused.refused is not None
        assert refused.refused.code == Code.LEASE_EXPIRED
        (late,) = await bench.authority.report([delivery])
        assert late.reply is not None
        assert (late.reply.outcome, late.reply.code) == ("recorded", Code.LEASE_EXPIRED)
        return live


async def over(bench: Bench, held: Held) -> bool:
    return bool(
        await bench.owner.fetchval(
            "select expires_at <= clock_timestamp() from tenure.attempts where attempt_id = $1",
            held.attempt_id,
        )
    )


@pytest.mark.requirement("LEASE-05")
@EVERY_REPORT
async def test_nothing_is_done_with_a_lease_that_ran_out_although_nobody_swept(
    bench: Bench, kind: type[AttemptCommand], content: dict[str, Any]
) -> None:
    await bench.register()
    starts_from_submitted = kind in (Accept, Take, Reject)
    if starts_from_submitted:
        held = await bench.assigned(await bench.submit())
    else:
        held = await bench.running()
        await bench.cancel(held.task_id)
    if kind is Start:
        held = await bench.assigned(await bench.submit())
        await bench.report(Accept, held)
    await bench.end_lease(held)
    before = await state(bench)
    (outcome,) = await bench.authority.report([bench.command(kind, held, **content)])
    after = await state(bench)
    if kind is Deliver:
        assert outcome.reply is not None
        assert outcome.reply.code == Code.LEASE_EXPIRED
        for table in ("receipts", "commands"):
            after.pop(table)
            before.pop(table)
    else:
        assert outcome.refused is not None
        assert outcome.refused.code == Code.LEASE_EXPIRED
    assert after == before


@pytest.mark.requirement("LEASE-05")
async def test_a_clock_set_back_gives_no_lease_more_than_it_was_granted(bench: Bench) -> None:
    """The rows say that they were decided an hour from now: the clock stands still for them."""
    await bench.register()
    held = await bench.running()
    await bench.owner.execute(
        "update tenure.attempts set decided_at = decided_at + interval '1 hour',"
        " expires_at = expires_at + interval '1 hour' where attempt_id = $1",
        held.attempt_id,
    )
    outcome = await bench.renew(held)
    assert outcome.reply is not None
    assert outcome.reply.expires_at is not None
    remaining = outcome.reply.expires_at - outcome.now
    assert 0 < remaining <= bench.authority.policy.lease_microseconds
    row = await bench.attempt(held)
    assert row["expires_at"] - row["decided_at"] <= (await renewed_for(bench))


async def renewed_for(bench: Bench) -> Any:
    return await bench.owner.fetchval(
        "select lease_microseconds * interval '1 microsecond' from tenure.attempts limit 1"
    )


@pytest.mark.requirement("LEASE-05")
async def test_a_lease_that_ran_out_before_the_clock_was_set_back_is_still_over(
    bench: Bench,
) -> None:
    await bench.register()
    held = await bench.running()
    await bench.owner.execute(
        "update tenure.attempts set decided_at = clock_timestamp() + interval '1 hour',"
        " expires_at = clock_timestamp() + interval '59 minutes' where attempt_id = $1",
        held.attempt_id,
    )
    outcome = await bench.renew(held)
    assert outcome.refused is not None
    assert outcome.refused.code == Code.LEASE_EXPIRED
    ended = await bench.expire(held.task_id)
    assert ended.reply is not None
    row = await bench.attempt(held)
    assert row["state"] == "expired"
    assert row["ended_at"] >= row["expires_at"]


@pytest.mark.requirement("LEASE-06")
async def test_a_renewal_records_prior_and_new_expiry_and_who_renewed(bench: Bench) -> None:
    await bench.register()
    held = await bench.running()
    granted_until = (await bench.attempt(held))["expires_at"]
    outcome = await bench.renew(held)
    assert outcome.reply is not None
    row = await bench.attempt(held)
    (record,) = await bench.owner.fetch("select * from tenure.renewals")
    assert record["lease_id"] == row["lease_id"]
    assert str(record["attempt_id"]) == held.attempt_id
    assert record["prior_expires_at"] == granted_until
    assert record["new_expires_at"] == row["expires_at"] > granted_until
    assert record["renewed_by"] == "executor"
    assert record["at"] == row["decided_at"]
    assert row["version"] == 2  # taken; a renewal is no change of state
    # The holder never believes in more than was recorded.
    assert outcome.reply.expires_at is not None
    assert outcome.reply.expires_at <= row["expires_at"].timestamp() * 1e6 + 1


@pytest.mark.requirement("LEASE-06")
async def test_only_a_current_live_accepted_lease_is_renewed(bench: Bench) -> None:
    await bench.register(slots=8)
    first, second = await superseded(bench)
    submitted = await bench.assigned(await bench.submit())
    expired = await bench.running()
    await bench.end_lease(expired)
    delivered = await bench.running()
    await bench.deliver(delivered, 1)
    expected = [
        (first, Code.NOT_CURRENT),
        (submitted, Code.WRONG_STATE),
        (expired, Code.LEASE_EXPIRED),
        (delivered, Code.WRONG_STATE),
        (second, None),
    ]
    before = {held.attempt_id: (await bench.attempt(held))["expires_at"] for held, _ in expected}
    outcomes = await bench.authority.renew(
        [bench.command(Renew, held) for held, _ in expected], first.incarnation
    )
    codes = [None if outcome.refused is None else outcome.refused.code for outcome in outcomes]
    assert codes == [code for _, code in expected]
    for held, code in expected:
        unchanged = (await bench.attempt(held))["expires_at"] == before[held.attempt_id]
        assert unchanged is (code is not None)
    records = await bench.owner.fetch("select attempt_id::text from tenure.renewals")
    assert [row["attempt_id"] for row in records] == [second.attempt_id]


async def test_authority_never_reaches_beyond_the_deadline(bench: Bench) -> None:
    await bench.register()
    deadline = await bench.owner.fetchval(
        "select (extract(epoch from clock_timestamp() + interval '20 seconds') * 1e6)::bigint"
    )
    held = await bench.running(deadline=deadline)
    row = await bench.attempt(held)
    assert row["expires_at"] == (await bench.task(held.task_id))["deadline"]
    outcome = await bench.renew(held)
    assert outcome.reply is not None
    assert outcome.reply.expires_at == deadline
    assert (await bench.attempt(held))["expires_at"] == row["expires_at"]


@pytest.mark.requirement("LEASE-10")
async def test_the_authority_refuses_an_old_holder_before_its_successor_does_anything(
    bench: Bench,
) -> None:
    await bench.register()
    first = await bench.running()
    await bench.end_lease(first)
    await bench.expire(first.task_id)
    second = await bench.assigned(first.task_id)
    for outcome in (
        await bench.renew(first),
        await bench.report(Fail, first, reason="handler_failed", message="", retryable=False),
    ):
        assert outcome.refused is not None
        assert outcome.refused.code == Code.NOT_CURRENT
    assert (await bench.attempt(second))["state"] == "submitted"
