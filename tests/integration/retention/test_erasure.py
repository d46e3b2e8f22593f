"""What an ended task was about can be erased while its record stays (OPS-08)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tenure.cli.exits import Exit
from tenure.client import AsyncClient
from tenure.client.errors import TaskErased
from tenure.coordinator.core.commands import Fail
from tenure.coordinator.store.verify import verify
from tests.support.ageing import age
from tests.support.authority import Bench, Held, replica
from tests.support.commands import tenure, tenure_process
from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.sessions import session

SECRET = "only-for-your-eyes"
ERASE = "select outcome, erased_by from tenure.erase_task('default', $1, $2, 'because')"


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        await bench.register(slots=20)
        yield bench


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker, node_silence_seconds=3600, lease_seconds=3600) as found:
        yield found


async def tables_with(owner: asyncpg.Connection, text: str) -> set[str]:
    """Every table of the schema in which some row has ``text`` somewhere, bytes included."""
    tables = await owner.fetch(
        "select relname from pg_class where relnamespace = 'tenure'::regnamespace"
        " and relkind in ('r', 'p') and not relispartition"
    )
    return {
        row["relname"]
        for row in tables
        if await owner.fetchval(
            f"select exists (select from tenure.{row['relname']} t"
            " where t::text like '%' || $1 || '%'"
            " or t::text like '%' || encode(convert_to($1, 'UTF8'), 'hex') || '%')",
            text,
        )
    }


async def fail(bench: Bench, held: Held) -> None:
    """For good, with words about it."""
    outcome = await bench.report(
        Fail, held, reason="handler_failed", message=SECRET, retryable=False
    )
    assert outcome.reply is not None


async def test_only_what_an_erasure_takes_holds_content(bench: Bench) -> None:
    """No event, and no stored outcome."""
    await fail(bench, await bench.running(input_text=json.dumps(SECRET)))
    await bench.deliver(await bench.running(), SECRET)
    assert await tables_with(bench.owner, SECRET) <= {
        "task_inputs", "tasks", "attempts", "receipts",
    }  # fmt: skip


@pytest.mark.requirement("OPS-08")
async def test_an_erased_task_leaves_nothing_of_what_it_was_about_but_its_record(
    bench: Bench, database: FreshDatabase
) -> None:
    held = await bench.running(input_text=json.dumps(SECRET))
    await bench.deliver(held, SECRET)
    await bench.deliver(held, SECRET + "again")  # late: evidence
    failed = await bench.running(input_text=json.dumps(SECRET))
    await fail(bench, failed)
    before = await bench.owner.fetch("select * from tenure.log order by position")
    for task_id, by in ((held.task_id, "ops"), (held.task_id, "other"), (failed.task_id, "ops")):
        done = await bench.pool.fetchrow(ERASE, task_id, by)
        assert done is not None
        assert tuple(done) == ("erased", "ops")  # the first one's word
    assert await tables_with(bench.owner, SECRET) == set()
    assert await bench.owner.fetch("select * from tenure.log order by position") == before
    task = await bench.task(held.task_id)
    assert (task["state"], task["ended_at"] is not None) == ("delivered", True)
    receipts = await bench.owner.fetch("select * from tenure.receipts")
    assert {row["output"] for row in receipts} == {None}
    assert len({row["content_digest"] for row in receipts}) == 2
    assert (await verify(database.owner_url)).broken == {}


@pytest.mark.requirement("OPS-08")
async def test_what_goes_on_is_not_erased(bench: Bench) -> None:
    held = await bench.running(input_text=json.dumps(SECRET))
    waiting = await bench.submit()
    before = await bench.everything()
    for task_id in (held.task_id, waiting):
        assert await bench.pool.fetchval(ERASE, task_id, "ops") == "goes_on"
    other = "select outcome from tenure.erase_task('other', $1, 'ops', 'because')"
    assert await bench.pool.fetchval(other, held.task_id) == "absent"
    assert await bench.everything() == before


@pytest.mark.requirement("OPS-08")
async def test_a_delivery_that_comes_after_the_erasure_leaves_its_output_out(
    bench: Bench, database: FreshDatabase
) -> None:
    held = await bench.running()
    await bench.deliver(held, 1)
    await bench.pool.fetchrow(ERASE, held.task_id, "ops")
    late = await bench.deliver(held, SECRET)
    assert late.reply is not None
    assert late.reply.outcome == "recorded"
    assert await tables_with(bench.owner, SECRET) == set()
    assert (await verify(database.owner_url)).broken == {}


async def test_an_erasure_waits_for_a_delivery_that_is_being_recorded(
    bench: Bench, database: FreshDatabase
) -> None:
    """Whichever comes first, nothing of it is left."""
    held = await bench.running()
    await bench.deliver(held, 1)
    async with session(database.coordinator_url) as eraser:
        delivering = [
            asyncio.create_task(bench.deliver(held, f"{SECRET}{number}")) for number in range(40)
        ]
        await asyncio.wait(delivering[:3])
        assert await eraser.fetchval(ERASE, held.task_id, "ops") == "erased"
        await asyncio.gather(*delivering)
    assert await tables_with(bench.owner, SECRET) == set()


@pytest.mark.requirement("OPS-08")
async def test_nothing_but_an_erasure_is_taken_out_of_ended_records(bench: Bench) -> None:
    held = await bench.running()
    await bench.deliver(held, 1)
    for statement in (
        "update tenure.receipts set output = null",
        "update tenure.tasks set message = null",
    ):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await bench.owner.execute(statement)
        assert refused.value.sqlstate == "TN010"
    await bench.pool.fetchrow(ERASE, held.task_id, "ops")
    for statement in (
        "update tenure.receipts set output = '2'",
        "update tenure.receipts set output = null, fencing_token = 1",
        "update tenure.tasks set message = 'x'",
        "update tenure.tasks set state = 'failed', message = null",
        "update tenure.erasures set reason = 'x'",
        "delete from tenure.erasures",
    ):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await bench.owner.execute(statement)
        assert refused.value.sqlstate == "TN010", statement


async def test_an_erasure_goes_with_its_task(bench: Bench, database: FreshDatabase) -> None:
    held = await bench.running()
    await bench.deliver(held, 1)
    await bench.pool.fetchrow(ERASE, held.task_id, "ops")
    await bench.owner.execute("update tenure.relay_shards set position = 1000")
    await age(database, "91 days")
    assert await bench.owner.fetchval("select tenure.remove_old('tasks', 10)") == 1
    assert await bench.owner.fetchval("select count(*) from tenure.erasures") == 0


@pytest.mark.requirement("OPS-08")
async def test_operators_erase_over_http_and_everybody_sees_who_did(api: Fleet) -> None:
    incarnation = await api.register()
    task_id, going_on = await api.submit(input=SECRET), await api.submit()
    await api.deliver(incarnation, task_id, output=SECRET)
    path, body = f"/v1/tasks/{task_id}/erase", {"reason": "asked for"}
    for caller in (api.application, api.executor, api.reader):
        assert (await caller.post(path, body)).status_code == 403
    for wrong in ({}, {"reason": ""}, {"reason": "x", "more": 1}):
        assert (await api.operator.post(path, wrong)).status_code == 422
    refused = await api.operator.post(f"/v1/tasks/{going_on}/erase", body)
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    assert (await api.operator.post(f"/v1/tasks/{'0' * 32}/erase", body)).status_code == 404
    erased = await api.operator.post(path, body)
    assert (erased.status_code, erased.json()["erased_by"]) == (200, "ops")
    assert (await api.operator.post(path, {"reason": "again"})).json() == erased.json()
    for read in ("", "/result", "/receipts", "/why"):
        reply = await api.application.get(f"/v1/tasks/{task_id}{read}")
        assert (reply.status_code, SECRET in reply.text) == (200, False)
    view: dict[str, Any] = (await api.reader.get(f"/v1/tasks/{task_id}")).json()
    assert (view["erasure"], view["input"]) == (erased.json(), None)
    async with AsyncClient(api.coordinator.url, "application-token-1") as client:
        with pytest.raises(TaskErased):
            await client.task(task_id).result()


@pytest.mark.requirement("OPS-08")
async def test_the_command_erases_one_or_many_and_what_was_erased_is_not_done_again(
    api: Fleet,
) -> None:
    await api.register()
    ended = [await api.submit(not_before="2999-01-01T00:00:00Z") for _ in range(3)]
    for task_id in ended:
        await api.application.post(f"/v1/tasks/{task_id}/cancel")
    code, output, err = await tenure(api, "task", "erase", ended[0], "--reason", "asked for")
    assert (code, "erased by ops: asked for" in output) == (Exit.DONE, True), err
    many = ("--filter", "state=cancelled", "--yes", "--reason", "r", "-o", "json")
    code, output, err = await tenure_process(api, "task", "erase", *many)
    assert (code, json.loads(output)["done"]) == (Exit.DONE, 3), err
    refused = await api.operator.post(f"/v1/tasks/{ended[0]}/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
