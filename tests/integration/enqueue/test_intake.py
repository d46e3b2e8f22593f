"""What committed transactions asked for becomes tasks, each exactly one, whatever is killed."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from tenure.contract.ids import CommandId, TaskId
from tenure.contract.tasks import TaskSubmission
from tenure.coordinator.core.commands import Submit
from tenure.coordinator.identities import Identity, Role
from tenure.coordinator.intake import BATCH, Intake
from tenure.coordinator.submission import submission
from tests.support.authority import TENANT, replica
from tests.support.enqueueing import Shop, application, enqueue, loop, open_shop
from tests.support.isolation import FreshDatabase
from tests.support.sessions import session

WAITING = "select exists (select from tenure.intake where state = 'waiting')"
HTTP = Identity("shop", TENANT, Role.APPLICATION)


@pytest.fixture
async def shop(emptied_database: FreshDatabase) -> AsyncIterator[Shop]:
    async with open_shop(emptied_database) as shop:
        yield shop


def over_http(key: str, **values: object) -> Submit:
    """What the HTTP side makes of a submission."""
    return submission(
        TaskSubmission.model_validate({"type": "sha256", "input": 1} | values),
        task_id=TaskId("01900000-0000-7000-8000-000000000001"),
        fallback_id=CommandId(""),
        key=key,
        identity=HTTP,
        payload_limit_bytes=1000,
    )


@pytest.mark.requirement("OPS-01")
async def test_a_committed_row_becomes_the_task_that_it_asks_for(shop: Shop) -> None:
    deadline = await shop.bench.now() + timedelta(days=1)
    not_before = await shop.bench.now() + timedelta(hours=1)
    async with shop.connection.transaction():
        task_id = await enqueue(
            shop.connection,
            input='{"path": "ü"}',
            idempotency_key="k",
            priority=7,
            not_before=not_before,
            deadline=deadline,
            memory_bytes=1000,
            concurrency_key="acme",
        )
        assert await shop.intake.step() == 0
    assert await shop.intake.step() == 1
    task = await shop.bench.task(TaskId(task_id))
    assert (task["state"], task["priority"], task["cpu_millis"]) == ("open", 7, 0)
    assert (task["not_before"], task["deadline"]) == (not_before, deadline)
    assert task["memory_bytes"] == 1000
    assert task["concurrency_key"] == "acme"
    stored = await shop.bench.owner.fetchval("select input from tenure.task_inputs")
    assert json.loads(stored) == {"path": "ü"}
    (event,) = await shop.bench.events(TaskId(task_id))
    assert json.loads(event["body"])["actor"] == f"sql:{shop.login.role}"
    (row,) = await shop.rows()
    assert (row["state"], row["input"], row["decided_at"]) == ("taken", None, task["created_at"])
    assert await shop.intake.step() == 0


async def test_a_rolled_back_row_never_existed(shop: Shop) -> None:
    transaction = shop.connection.transaction()
    await transaction.start()
    await enqueue(shop.connection)
    await transaction.rollback()
    assert await shop.intake.step() == 0
    assert await shop.tasks() == []


async def test_an_open_transaction_holds_up_nobody_elses_task(shop: Shop) -> None:
    async with shop.connection.transaction():
        await enqueue(shop.connection, idempotency_key="slow")
        async with session(shop.login.url) as other:
            quick = await enqueue(other, idempotency_key="quick")
        await shop.take_in()
        await shop.bench.submit()
        assert quick in await shop.tasks()
        assert len(await shop.tasks()) == 2


# Refusals -----------------------------------------------------------------------------------------


async def test_a_refused_row_stays_visible_and_can_be_asked_for_again(shop: Shop) -> None:
    first = await enqueue(shop.connection, "later", idempotency_key="k")
    await shop.take_in()
    assert await shop.refused() == (
        "unknown_task_type",
        "no executor has ever registered the type 'later'",
    )
    await shop.bench.register("node-2", types=["later"])
    assert await enqueue(shop.connection, "later", "2", idempotency_key="k") == first
    await shop.take_in()
    assert [row["state"] for row in await shop.rows()] == ["refused", "taken"]
    assert await shop.tasks() == [first]
    assert await enqueue(shop.connection, "later", "2", idempotency_key="k") == first
    assert len(await shop.rows()) == 2


async def test_a_deadline_that_passed_before_the_row_was_taken_in_is_a_refusal(shop: Shop) -> None:
    await enqueue(shop.connection, deadline=await shop.bench.now() + timedelta(days=1))
    await shop.bench.owner.execute("update tenure.intake set deadline = clock_timestamp()")
    await shop.take_in()
    assert (await shop.refused())[0] == "deadline_in_the_past"


async def test_an_input_above_the_coordinators_own_limit_is_a_refusal(shop: Shop) -> None:
    await enqueue(shop.connection, input=json.dumps("x" * 1023))
    await loop(shop.bench, payload_limit_bytes=1024).step()
    assert (await shop.refused())[0] == "payload_too_large"
    assert (await shop.rows())[0]["input"] is not None


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ("'Upper', '1', 0", "invalid_field"),
        ("'sha256', '1', 1000", "invalid_field"),
        ("'sha256', '1e400', 0", "malformed_json"),
        ("'sha256', '\"\\u0000\"', 0", "invalid_character"),
    ],
)
async def test_what_came_past_the_function_is_refused_and_holds_up_nothing(
    shop: Shop, values: str, code: str
) -> None:
    await shop.bench.owner.execute(
        "insert into tenure.intake (tenant, command_id, task_id, fingerprint, enqueued_by, type,"
        " input, priority) values ('default', gen_random_uuid(), gen_random_uuid(), '', 'x',"
        f" {values})"
    )
    good = await enqueue(shop.connection)
    await shop.take_in()
    assert await shop.tasks() == [good]
    states = {row["code"]: row["state"] for row in await shop.rows()}
    assert states == {code: "refused", None: "taken"}


async def test_what_the_database_cannot_apply_is_refused_and_holds_up_nothing(shop: Shop) -> None:
    await shop.bench.owner.execute(
        """
        create function tenure.refuse_poison() returns trigger language plpgsql as $$
        begin
            if new.priority = 66 then raise exception 'poison'; end if;
            return new;
        end $$;
        create trigger poison before insert on tenure.tasks
            for each row execute function tenure.refuse_poison();
        """
    )
    try:
        good = [await enqueue(shop.connection)]
        await enqueue(shop.connection, priority=66)
        good.append(await enqueue(shop.connection))
        await shop.take_in()
    finally:
        await shop.bench.owner.execute("drop function tenure.refuse_poison cascade")
    assert await shop.tasks() == sorted(good)
    assert [row["code"] for row in await shop.rows()] == [None, "internal_refused", None]


async def test_rows_wait_while_the_authority_is_not_confirmed(shop: Shop) -> None:
    await enqueue(shop.connection)
    timeline = await shop.bench.owner.fetchval("select timeline from tenure.authority")
    await shop.bench.owner.execute("update tenure.authority set timeline = 'other'")
    try:
        assert await shop.intake.step() == 0
        assert [row["state"] for row in await shop.rows()] == ["waiting"]
    finally:
        await shop.bench.owner.execute("update tenure.authority set timeline = $1", timeline)
    await shop.take_in()
    assert len(await shop.tasks()) == 1


# One key over HTTP and in a transaction -----------------------------------------------------------


@pytest.mark.requirement("LATE-04")
async def test_a_key_used_over_http_first_stands_for_that_task(shop: Shop) -> None:
    (outcome,) = await shop.bench.authority.submit([over_http("k")])
    assert outcome.reply is not None
    task_id = await enqueue(shop.connection, idempotency_key="k")
    assert task_id == outcome.reply.task_id
    with pytest.raises(asyncpg.PostgresError) as caught:
        await enqueue(shop.connection, input="2", idempotency_key="k")
    assert caught.value.sqlstate == "TN023"
    await shop.take_in()
    assert [row["state"] for row in await shop.rows()] == ["taken"]
    assert await shop.tasks() == [task_id]


@pytest.mark.requirement("LATE-04")
async def test_a_key_enqueued_first_stands_for_that_task_over_http(shop: Shop) -> None:
    waiting = await enqueue(shop.connection, idempotency_key="waiting")
    (outcome,) = await shop.bench.authority.submit([over_http("waiting")])
    assert outcome.reply is not None
    assert outcome.reply.task_id == waiting
    await shop.take_in()
    assert [row["state"] for row in await shop.rows()] == ["taken"]
    taken = await enqueue(shop.connection, idempotency_key="taken")
    await shop.take_in()
    (outcome,) = await shop.bench.authority.submit([over_http("taken")])
    assert outcome.reply is not None
    assert (outcome.reply.task_id, outcome.replayed) == (taken, True)
    assert await shop.tasks() == sorted([waiting, taken])


async def test_another_content_over_http_first_is_found_out_when_the_row_is_taken_in(
    shop: Shop,
) -> None:
    waiting = await enqueue(shop.connection, idempotency_key="k")
    await shop.bench.authority.submit([over_http("k", priority=1)])
    await shop.take_in()
    code, message = await shop.refused()
    assert code == "idempotency_conflict"
    assert waiting in message
    assert await shop.tasks() == [waiting]


async def test_a_key_used_over_http_while_the_transaction_was_open_makes_one_task(
    shop: Shop,
) -> None:
    async with shop.connection.transaction():
        told = await enqueue(shop.connection, idempotency_key="k")
        (outcome,) = await shop.bench.authority.submit([over_http("k")])
    assert outcome.reply is not None
    await shop.take_in()
    code, message = await shop.refused()
    assert code == "idempotency_conflict"
    assert str(outcome.reply.task_id) in message
    assert await shop.tasks() == [outcome.reply.task_id] != [told]
    # Asked again, the key's task is known.
    assert await enqueue(shop.connection, idempotency_key="k") == outcome.reply.task_id


# Batches ------------------------------------------------------------------------------------------


@pytest.mark.requirement("SCHED-05")
async def test_a_tenant_with_many_rows_keeps_no_other_waiting(
    shop: Shop, emptied_database: FreshDatabase
) -> None:
    await shop.connection.execute(
        f"select tenure.enqueue('sha256', to_json(n)) from generate_series(1, {3 * BATCH}) n"
    )
    async with (
        application(emptied_database, ("other", "third")) as login,
        session(login.url) as connection,
    ):
        for tenant in ("other", "third"):
            await enqueue(connection, tenant=tenant)
    assert await shop.intake.step() == BATCH
    decided = [row for row in await shop.rows() if row["state"] != "waiting"]
    assert {row["tenant"] for row in decided} == {"default", "other", "third"}
    own = [row["intake_id"] for row in await shop.rows() if row["tenant"] == "default"]
    assert [row["intake_id"] for row in decided if row["tenant"] == "default"] == own[: BATCH - 2]


async def test_large_inputs_are_taken_in_in_bounded_batches(shop: Shop) -> None:
    await shop.connection.execute(
        "select tenure.enqueue('sha256', to_json(repeat('x', 260000))) from generate_series(1, 40)"
    )
    sizes = []
    while taken := await shop.intake.step():
        sizes.append(taken)
    assert sum(sizes) == 40
    assert max(sizes) * 260_000 <= 8 * 1024 * 1024
    assert len(await shop.tasks()) == 40


@pytest.mark.requirement("OPS-01")
async def test_many_replicas_make_one_task_of_each_row(
    shop: Shop, emptied_database: FreshDatabase
) -> None:
    async with replica(emptied_database) as second, replica(emptied_database) as third:
        loops = [shop.intake, loop(second), loop(third)]

        async def drain(one: Intake) -> int:
            total = 0
            while await shop.bench.pool.fetchval(WAITING):
                total += await one.step()
            return total

        await shop.connection.execute(
            "select tenure.enqueue('sha256', to_json(n)) from generate_series(1, 1000) n"
        )
        taken = await asyncio.gather(*(drain(one) for one in loops))
    assert sum(taken) == 1000
    assert await shop.tasks() == sorted(str(row["task_id"]) for row in await shop.rows())
    assert len(await shop.recorded()) == 1000
