"""States and events over a real database: compared, committed together, ended for good."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tenure.contract.codec import decode_event
from tenure.contract.ids import TaskId
from tenure.contract.states import (
    ATTEMPT_MOVES,
    TERMINAL_ATTEMPT_STATES,
    TERMINAL_TASK_STATES,
    AttemptState,
    TaskState,
)
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
from tests.support import steps
from tests.support.authority import Bench, Held, replica
from tests.support.isolation import FreshDatabase

FAILURE: dict[str, Any] = {"reason": "handler_failed", "message": "", "retryable": True}
REFUSAL: dict[str, Any] = {"reason": "node_draining", "message": ""}
OUTPUT: dict[str, Any] = {"output_text": "1", "content_digest": b"1"}


@pytest.fixture
async def bench(emptied_database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(emptied_database) as bench:
        yield bench


async def ended(bench: Bench, state: AttemptState) -> Held:
    """An attempt that has ended in ``state``."""
    match state:
        case AttemptState.DELIVERED:
            held = await bench.running()
            await bench.deliver(held, 1)
        case AttemptState.FAILED:
            held = await bench.running()
            await bench.fail(held)
        case AttemptState.CANCELLED:
            held = await bench.running()
            await bench.cancel(held.task_id)
            await bench.confirm_cancel(held)
        case AttemptState.EXPIRED:
            held = await bench.running()
            await bench.end_lease(held)
            await bench.expire(held.task_id)
        case AttemptState.REJECTED:
            held = await bench.assigned(await bench.submit())
            await bench.report(Reject, held, **REFUSAL)
        case _:
            raise ValueError(state)
    assert (await bench.attempt(held))["state"] == state
    return held


async def ended_task(bench: Bench, state: TaskState) -> TaskId:
    """A task that has ended in ``state``."""
    match state:
        case TaskState.DELIVERED:
            held = await bench.running()
            await bench.deliver(held, 1)
        case TaskState.FAILED:
            held = await bench.running()
            await bench.fail(held, retryable=False)
        case TaskState.CANCELLED:
            held = await bench.running()
            await bench.cancel(held.task_id)
            await bench.confirm_cancel(held)
        case TaskState.EXPIRED:
            held = await bench.running()
            await bench.owner.execute(
                "update tenure.tasks set deadline = clock_timestamp() where task_id = $1",
                held.task_id,
            )
            await bench.end_lease(held)
            await bench.expire(held.task_id)
        case _:
            raise ValueError(state)
    assert (await bench.task(held.task_id))["state"] == state
    return held.task_id


@pytest.mark.requirement("STATE-01")
@pytest.mark.parametrize(
    ("kind", "content"),
    [(Start, {}), (Take, {}), (Deliver, OUTPUT), (Fail, FAILURE), (ConfirmCancel, {}), (Renew, {})],
    ids=["start", "take", "deliver", "fail", "cancelled", "renew"],
)
async def test_a_report_decided_on_an_older_version_is_not_applied(
    bench: Bench, kind: type[AttemptCommand], content: dict[str, Any]
) -> None:
    await bench.register()
    held = await bench.assigned(await bench.submit())
    await bench.report(Accept if kind in (Start, Take) else Take, held)
    if kind is ConfirmCancel:
        await bench.cancel(held.task_id)
    item = await steps.accept(bench.pool, bench.command(kind, held, **content))
    if kind is ConfirmCancel:
        await bench.owner.execute("update tenure.tasks set version = version + 1")
    else:
        await bench.cancel(held.task_id)
    before = await bench.everything()
    assert await steps.commit(bench.pool, item) == [ItemOutcome.STALE]
    assert await bench.everything() == before


@pytest.mark.requirement("STATE-01")
async def test_an_allocation_or_cancellation_decided_on_an_older_version_is_not_applied(
    bench: Bench,
) -> None:
    incarnation = await bench.register()
    task_id = await bench.submit()
    cancel = await steps.accept(bench.pool, steps.cancellation(task_id))
    allocate = await steps.accept(bench.pool, steps.allocation(task_id, incarnation))
    held = await bench.assigned(task_id)
    await bench.report(Take, held)
    before = await bench.everything()
    assert await steps.commit(bench.pool, cancel) == [ItemOutcome.STALE]
    assert await steps.commit(bench.pool, allocate) == [ItemOutcome.STALE]
    assert await bench.everything() == before


@pytest.mark.requirement("STATE-01")
@pytest.mark.requirement("OPS-01")
async def test_every_change_and_its_event_are_of_one_transaction(bench: Bench) -> None:
    async def newest() -> tuple[set[str], set[str]]:
        rows = await bench.owner.fetch(
            "select xmin::text from tenure.tasks union select xmin::text from tenure.attempts"
            " union select xmin::text from tenure.incarnations"
        )
        events = await bench.owner.fetch("select distinct xmin::text from tenure.log")
        return {row["xmin"] for row in rows}, {row["xmin"] for row in events}

    await bench.register()
    task_id = await bench.submit()
    held = await bench.assigned(task_id)
    await bench.report(Take, held)
    await bench.cancel(task_id)
    await bench.deliver(held, 1)
    for end in sorted(TERMINAL_ATTEMPT_STATES):
        await ended(bench, end)
        rows, events = await newest()
        assert rows <= events  # whoever changed a row last has appended an event


@pytest.mark.requirement("STATE-02")
@pytest.mark.parametrize("state", sorted(TERMINAL_ATTEMPT_STATES))
async def test_an_ended_attempt_is_refused_to_its_owner_too(
    bench: Bench, state: AttemptState
) -> None:
    await bench.register()
    held = await ended(bench, state)
    before = await bench.attempt(held)
    for statement in (
        "update tenure.attempts set state = 'running', ended_at = null where attempt_id = $1",
        "update tenure.attempts set message = 'better' where attempt_id = $1",
        "update tenure.attempts set expires_at = 'infinity' where attempt_id = $1",
        "delete from tenure.attempts where attempt_id = $1",
    ):
        with pytest.raises(asyncpg.PostgresError, match="of an ended record in attempts") as error:
            await bench.owner.execute(statement, held.attempt_id)
        assert error.value.sqlstate == "TN010"
    assert await bench.attempt(held) == before


@pytest.mark.requirement("STATE-02")
@pytest.mark.parametrize("state", sorted(TERMINAL_TASK_STATES))
async def test_an_ended_task_is_refused_to_its_owner_too(bench: Bench, state: TaskState) -> None:
    await bench.register()
    task_id = await ended_task(bench, state)
    before = await bench.task(task_id)
    for statement in (
        "update tenure.tasks set state = 'open', ended_at = null where task_id = $1",
        "update tenure.tasks set generation = 0 where task_id = $1",
        "delete from tenure.tasks where task_id = $1",
    ):
        with pytest.raises(asyncpg.PostgresError, match="of an ended record in tasks"):
            await bench.owner.execute(statement, task_id)
    assert await bench.task(task_id) == before


@pytest.mark.requirement("STATE-02")
async def test_receipts_change_for_nobody_and_no_record_is_emptied_away(bench: Bench) -> None:
    await bench.register()
    await ended(bench, AttemptState.DELIVERED)
    before = await bench.everything()
    for statement in (
        "update tenure.receipts set admitted = false, code = 'lease_expired'",
        "delete from tenure.receipts",
        "truncate tenure.receipts",
        "truncate tenure.attempts",
        "truncate tenure.tasks",
    ):
        with pytest.raises(asyncpg.PostgresError, match="of an ended record"):
            await bench.owner.execute(statement)
    assert await bench.everything() == before


@pytest.mark.requirement("STATE-02")
async def test_a_commit_that_would_change_an_ended_attempt_fails_whole(bench: Bench) -> None:
    await bench.register()
    held = await bench.running()
    item = await steps.accept(bench.pool, bench.command(Deliver, held, **OUTPUT))
    await bench.fail(held, retryable=False)
    # As if the versions had not been compared.
    task, attempt = await bench.task(held.task_id), await bench.attempt(held)
    forged = steps.with_reads(
        item, task_version=task["version"], attempt_version=attempt["version"]
    )
    before = await bench.everything()
    with pytest.raises(asyncpg.PostgresError, match="of an ended record"):
        await steps.commit(bench.pool, forged)
    assert await bench.everything() == before


@pytest.mark.requirement("STATE-04")
async def test_the_database_permits_every_move_of_the_table_and_no_other(bench: Bench) -> None:
    await bench.register()
    held = await bench.assigned(await bench.submit())
    columns = {
        "ended_at": "case when $2 in ('delivered', 'rejected', 'failed', 'cancelled', 'expired')"
        " then clock_timestamp() end",
        "reason": "'any'",
        "accepted_at": "clock_timestamp()",
        "started_at": "clock_timestamp()",
    }
    assignments = ", ".join(f"{name} = {value}" for name, value in columns.items())

    async def permits(before: AttemptState, after: AttemptState, events: int) -> bool:
        transaction = bench.owner.transaction()
        await transaction.start()
        try:
            await bench.owner.execute("delete from tenure.attempts")
            await insert_attempt(bench.owner, held, before)
            await bench.owner.execute(
                f"update tenure.attempts set state = $2, {assignments}, sequence = sequence + $3"
                " where attempt_id = $1",
                held.attempt_id,
                after.value,
                events,
            )
        except asyncpg.PostgresError as error:
            if error.sqlstate not in ("TN010", "TN011"):
                raise
            return False
        finally:
            await transaction.rollback()
        return True

    permitted = {
        (before.value, after.value, events)
        for before in AttemptState
        for after in AttemptState
        for events in (0, 1, 2, 3)
        if before is not after and await permits(before, after, events)
    }
    expected = {
        (before.value, after.value, 1)
        for before, following in ATTEMPT_MOVES.items()
        for after in following
    }
    # Accepted and started in one commit: both moves, and an event for each.
    assert permitted == expected | {("submitted", "running", 2)}


async def insert_attempt(owner: asyncpg.Connection, held: Held, state: AttemptState) -> None:
    await owner.execute(
        """
        insert into tenure.attempts (attempt_id, task_id, tenant, ordinal, state, reason, version,
            sequence, node_id, incarnation, lease_id, fencing_token, policy_version,
            lease_microseconds, expires_at, scope, dispatch_event_id, dispatched_at, submitted_at,
            accepted_at, started_at, ended_at, decided_at)
        select $1, $2, 'default', 1, $3, 'any', 1, 1, 'node-1', $4, $1, 1, 1, 1, n, '{}', $1, n, n,
            n, n, case when $5 then n end, n
        from clock_timestamp() n
        """,
        held.attempt_id,
        held.task_id,
        state.value,
        held.incarnation,
        state in TERMINAL_ATTEMPT_STATES,
    )


@pytest.mark.requirement("STATE-04")
async def test_a_submitted_attempt_whose_lease_runs_out_is_cancelled_for_that_reason(
    bench: Bench,
) -> None:
    await bench.register()
    held = await bench.assigned(await bench.submit())
    await bench.end_lease(held)
    await bench.expire(held.task_id)
    row = await bench.attempt(held)
    assert (row["state"], row["reason"]) == ("cancelled", "acceptance_timeout")
    assert (await bench.task(held.task_id))["state"] == "open"


@pytest.mark.requirement("STATE-04")
async def test_a_running_attempt_that_vanished_after_a_cancellation_ends_expired_for_good(
    bench: Bench,
) -> None:
    await bench.register()
    held = await bench.running()
    await bench.cancel(held.task_id)
    await bench.end_lease(held)
    await bench.expire(held.task_id)
    attempt, task = await bench.attempt(held), await bench.task(held.task_id)
    assert (attempt["state"], attempt["reason"]) == ("expired", "lease_expired")
    assert (task["state"], task["reason"]) == ("cancelled", "cancel_requested")
    assert task["cancel_requested_at"] is not None
    assert await bench.scheduler.step() == 0


@pytest.mark.requirement("STATE-03")
async def test_delivered_says_nothing_of_acceptance_or_payment(bench: Bench) -> None:
    await bench.register()
    held = await ended(bench, AttemptState.DELIVERED)
    axes = {row["entity_type"] for row in await bench.events(held.task_id)}
    assert axes == {"task", "attempt"}
    bodies = [bytes(row["body"]).decode() for row in await bench.events(held.task_id)]
    assert not any(word in body for body in bodies for word in ("succe", "paid", "approved"))


@pytest.mark.requirement("EVENT-01")
async def test_every_event_says_what_changed_where_when_and_by_whom(bench: Bench) -> None:
    await bench.register()
    held = await bench.running()
    await bench.cancel(held.task_id)
    await bench.deliver(held, 1)
    for end in sorted(TERMINAL_ATTEMPT_STATES):
        await ended(bench, end)
    rows = await bench.owner.fetch("select * from tenure.log order by position")
    actors = set()
    for row in rows:
        event = decode_event(row["body"])
        assert event.event_id == str(row["event_id"])
        assert event.entity_type == row["entity_type"]
        assert event.entity_id == str(row["entity_id"])
        assert (event.epoch, event.sequence) == (row["epoch"], row["sequence"])
        assert event.next_state == row["next_state"]
        assert event.recorded_at == row["recorded_at"]
        assert event.tenant == row["tenant"] == "default"
        assert event.schemaversion == 1
        assert (event.previous_state is None) == (event.sequence == 1)
        if event.entity_type == "node":
            assert event.task_id is None
        else:
            assert event.task_id == str(row["order_key"])
        if event.entity_type == "attempt":
            assert event.attempt_id == event.entity_id == str(row["attempt_id"])
            assert event.data.fencing_token is not None
        actors.add(event.actor)
    assert actors == {"application", "executor", "scheduler", "sweeper"}
    ids = [row["event_id"] for row in rows if not row["copy"]]
    assert len(ids) == len(set(ids))


@pytest.mark.requirement("EVENT-02")
async def test_sequences_have_no_holes_however_many_replicas_write_at_once(
    bench: Bench, emptied_database: FreshDatabase
) -> None:
    draw = random.Random(1)

    async def live(one: Bench) -> None:
        """A task's life with everything that can happen to it, several times at once."""
        task_id = await one.submit()
        for _ in range(4):
            await one.scheduler.step()
            held = await one.holder(task_id)
            if held is None:
                continue
            calls = [
                one.report(Take, held),
                one.report(Accept, held),
                one.renew(held),
                one.deliver(held, 1, str(uuid4())) if draw.random() < 0.4 else one.fail(held),
                one.expire(task_id),
            ]
            if draw.random() < 0.3:
                calls.append(one.cancel(task_id))
            draw.shuffle(calls)
            await asyncio.gather(*calls)

    async with replica(emptied_database) as other:
        for index in range(3):
            await bench.register(f"node-{index}", slots=8)
        await asyncio.gather(*(live(one) for one in (bench, other) * 12))
    await assert_streams_are_whole(bench)


async def assert_streams_are_whole(bench: Bench) -> None:
    """Each stream counts 1, 2, 3 … in the order of the log, each event goes on from the state that
    the one before it led to, and the entity's row agrees with the last."""
    streams = defaultdict(list)
    for row in await bench.owner.fetch("select * from tenure.log where not copy order by position"):
        streams[row["entity_type"], str(row["entity_id"])].append(decode_event(row["body"]))
    for events in streams.values():
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        states = [event.previous_state for event in events]
        assert states == [None, *(event.next_state for event in events[:-1])]
    entities = await bench.owner.fetch(
        """
        select 'task' as type, task_id::text as id, sequence, state from tenure.tasks
        union all select 'attempt', attempt_id::text, sequence, state from tenure.attempts
        union all select 'node', incarnation::text, sequence, state from tenure.incarnations
        """
    )
    assert {(row["type"], row["id"]) for row in entities} == set(streams)
    for row in entities:
        last = streams[row["type"], row["id"]][-1]
        assert (last.sequence, last.next_state) == (row["sequence"], row["state"])
