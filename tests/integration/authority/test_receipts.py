"""Deliveries over a real database: the active one, the late ones, and the same one again."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from tenure.cli.local.postgres import PrivatePostgres
from tenure.contract.codes import Code
from tenure.coordinator.core.commands import Take
from tenure.coordinator.core.decisions import Outcome
from tests.support.authority import Bench, Held, replica
from tests.support.isolation import DatabaseServer, FreshDatabase


@pytest.fixture
async def bench(emptied_database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(emptied_database) as bench:
        yield bench


def record(outcome: Outcome) -> tuple[Any, ...]:
    """What identifies the record that an answer speaks of."""
    assert outcome.reply is not None, outcome
    reply = outcome.reply
    return (
        reply.outcome, reply.code, reply.receipt_id, outcome.at, reply.state_version,
        reply.generation,
    )  # fmt: skip


async def receipts(bench: Bench, held: Held) -> list[Any]:
    return await bench.owner.fetch(
        "select * from tenure.receipts where task_id = $1 order by admitted_at", held.task_id
    )


@pytest.mark.requirement("LATE-01")
@pytest.mark.parametrize("swept", [False, True], ids=["before any sweep", "after the sweep"])
async def test_a_delivery_after_expiry_never_becomes_active(bench: Bench, swept: bool) -> None:
    await bench.register()
    held = await bench.running()
    await bench.end_lease(held)
    if swept:
        await bench.expire(held.task_id)
    task_before, events_before = await bench.task(held.task_id), await bench.events(held.task_id)
    late = await bench.deliver(held, {"digest": "x"})
    assert late.reply is not None
    assert (late.reply.outcome, late.reply.code) == ("recorded", Code.LEASE_EXPIRED)
    assert await bench.task(held.task_id) == task_before
    assert await bench.events(held.task_id) == events_before
    assert not any(row["admitted"] for row in await receipts(bench, held))
    # And the task goes on: its next attempt delivers.
    await bench.expire(held.task_id)
    successor = await bench.assigned(held.task_id)
    await bench.report(Take, successor)
    delivered = await bench.deliver(successor, {"digest": "x"})
    assert delivered.reply is not None
    assert delivered.reply.outcome == "applied"


@pytest.mark.requirement("LATE-02")
@pytest.mark.parametrize("end", ["expired", "swept", "superseded", "cancelled", "failed"])
async def test_a_late_delivery_is_recorded_with_when_state_generation_and_why(
    bench: Bench, end: str
) -> None:
    await bench.register()
    held = await bench.running()
    code = Code.LEASE_EXPIRED
    match end:
        case "expired":
            await bench.end_lease(held)
        case "swept" | "superseded":
            await bench.end_lease(held)
            await bench.expire(held.task_id)
            if end == "superseded":
                await bench.assigned(held.task_id)
        case "cancelled":
            code = Code.NOT_CURRENT
            await bench.cancel(held.task_id)
            await bench.confirm_cancel(held)
        case "failed":
            code = Code.NOT_CURRENT
            await bench.fail(held)
    task = await bench.task(held.task_id)
    before = await bench.now()
    late = await bench.deliver(held, {"digest": "x"})
    assert late.reply is not None
    (row,) = await receipts(bench, held)
    assert not row["admitted"]
    assert row["code"] == late.reply.code == code
    assert before <= row["admitted_at"] <= await bench.now()
    assert row["state_version"] == late.reply.state_version == task["version"]
    assert row["generation"] == late.reply.generation == task["generation"]
    assert row["fencing_token"] == held.fencing_token
    assert str(row["receipt_id"]) == late.reply.receipt_id
    assert row["output"] == '{"digest": "x"}'
    assert bench.observer.evidence == [code]
    assert await bench.task(held.task_id) == task


@pytest.mark.requirement("LATE-03")
async def test_a_delivery_admitted_in_time_stays_when_the_lease_would_have_run_out(
    bench: Bench,
) -> None:
    await bench.register()
    held = await bench.running()
    first = await bench.deliver(held, "in time")
    before = await bench.everything()
    await bench.superuser(
        "update tenure.attempts set expires_at = clock_timestamp() - interval '1 hour'"
    )
    refused = await bench.expire(held.task_id)
    assert refused.refused is not None
    again = await bench.deliver(held, "in time")
    assert record(again) == record(first)
    after = await bench.everything()
    assert {k: v for k, v in after.items() if k != "attempts"} == {
        k: v for k, v in before.items() if k != "attempts"
    }


@pytest.mark.requirement("LATE-04")
@pytest.mark.parametrize("late", [False, True], ids=["admitted", "evidence"])
async def test_delivering_again_returns_the_original_record(
    bench: Bench, emptied_database: FreshDatabase, late: bool
) -> None:
    await bench.register()
    held = await bench.running()
    if late:
        await bench.end_lease(held)
    report_id = str(uuid4())
    first = record(await bench.deliver(held, "output", report_id))
    async with replica(emptied_database) as other:
        answers = [
            await bench.deliver(held, "output", report_id),
            await other.deliver(held, "output", report_id),
            await other.deliver(held, "output", str(uuid4())),  # same content, another id
            await bench.deliver(held, "output", str(uuid4())),
        ]
    assert [record(answer) for answer in answers] == [first] * 4
    assert len(await receipts(bench, held)) == 1


@pytest.mark.requirement("LATE-04")
async def test_deliveries_of_one_content_at_once_leave_one_record(
    bench: Bench, emptied_database: FreshDatabase
) -> None:
    await bench.register()
    held = await bench.running()
    same_id = str(uuid4())
    async with replica(emptied_database) as other:
        answers = await asyncio.gather(
            *(one.deliver(held, "output", same_id) for one in (bench, other) * 4),
            *(one.deliver(held, "output", str(uuid4())) for one in (bench, other) * 4),
        )
    assert len({record(answer) for answer in answers}) == 1
    assert len(await receipts(bench, held)) == 1
    assert [row["next_state"] for row in await bench.events(held.task_id)].count("delivered") == 2


@pytest.mark.requirement("LATE-04")
async def test_the_same_report_id_with_other_content_is_refused_and_changes_nothing(
    bench: Bench,
) -> None:
    await bench.register()
    held = await bench.running()
    report_id = str(uuid4())
    await bench.deliver(held, "output", report_id)
    before = await bench.everything()
    for outcome in (
        await bench.deliver(held, "other output", report_id),
        await bench.fail(held, report_id),
        await bench.report(Take, held, report_id),
    ):
        assert outcome.refused is not None
        assert outcome.refused.code == Code.IDEMPOTENCY_CONFLICT
    assert await bench.everything() == before


@pytest.mark.requirement("LATE-04")
async def test_other_content_for_a_delivered_attempt_is_kept_as_evidence_and_not_active(
    bench: Bench,
) -> None:
    await bench.register()
    held = await bench.running()
    first = record(await bench.deliver(held, "output"))
    task = await bench.task(held.task_id)
    other = await bench.deliver(held, "other output")
    assert other.reply is not None
    assert (other.reply.outcome, other.reply.code) == ("recorded", Code.ALREADY_DELIVERED)
    assert await bench.task(held.task_id) == task
    active, evidence = await receipts(bench, held)
    assert (active["admitted"], active["output"]) == (True, '"output"')
    assert (evidence["admitted"], evidence["output"]) == (False, '"other output"')
    assert record(await bench.deliver(held, "output")) == first
    assert record(await bench.deliver(held, "other output")) == record(other)


@pytest.mark.requirement("LATE-04")
async def test_the_original_record_is_returned_after_servers_and_replicas_restarted(
    private_postgres: PrivatePostgres,
) -> None:
    server = DatabaseServer(private_postgres.url())
    await server.prepare()
    database = await server.create_migrated(f"restarted_{secrets.token_hex(4)}")
    report_id = str(uuid4())
    async with replica(database) as bench:
        await bench.register()
        held = await bench.running()
        first = record(await bench.deliver(held, "output", report_id))
        private_postgres.kill()
        await private_postgres.start()
        # The same replica, whose connections are gone, and then a new one.
        assert record(await bench.deliver(held, "output", report_id)) == first
    async with after_restart(private_postgres, database) as bench:
        assert record(await bench.deliver(held, "output", report_id)) == first
        assert record(await bench.deliver(held, "output", str(uuid4()))) == first
        assert len(await receipts(bench, held)) == 1


@asynccontextmanager
async def after_restart(server: PrivatePostgres, database: FreshDatabase) -> AsyncIterator[Bench]:
    await server.restart()
    async with replica(database) as bench:
        yield bench
