"""The client against a real coordinator over real servers."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from tenure.cli import main
from tenure.cli.local.ports import LOOPBACK, reserve_port
from tenure.client import (
    AsyncClient,
    BatchRefused,
    Refused,
    TaskCancelled,
    TaskFailed,
    TaskHeld,
    TaskType,
)
from tests.support.coordinator import TOKENS, Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase


class PathIn(BaseModel):
    path: str


class Digest(BaseModel):
    digest: str


Sha256 = TaskType("sha256", input=PathIn, output=Digest)
Unknown = TaskType("nobody-has-it", input=PathIn, output=Digest)
TOKEN = str(TOKENS[0]["token"])
FAR = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


@pytest.fixture
async def client(api: Fleet) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(api.coordinator.url, TOKEN) as client:
        yield client


async def test_a_result_arrives_as_the_declared_model(api: Fleet, client: AsyncClient) -> None:
    incarnation = await api.register()
    handle = await client.submit(Sha256, PathIn(path="a"))
    waiting = asyncio.create_task(handle.result(timeout=60))
    await api.deliver(incarnation, handle.task_id, output={"digest": "x"})
    assert await waiting == Digest(digest="x")
    view = await handle.view()
    assert view.input == {"path": "a"}
    assert [e.next_state for e in view.timeline if e.entity_type == "attempt"] == [
        "submitted",
        "accepted",
        "running",
        "delivered",
    ]
    assert [page.task_id for page in (await client.tasks(state="delivered")).tasks] == [
        handle.task_id
    ]


async def test_a_key_gives_the_same_task_from_any_client(api: Fleet, client: AsyncClient) -> None:
    await api.register()
    first = await client.submit(Sha256, PathIn(path="a"), idempotency_key="k")
    async with AsyncClient(api.coordinator.url, TOKEN) as other:
        again = await other.submit(Sha256, PathIn(path="a"), idempotency_key="k")
        (many,) = await other.submit_many(Sha256, [PathIn(path="a")], idempotency_keys=["k"])
        with pytest.raises(Refused) as caught:
            await other.submit(Sha256, PathIn(path="b"), idempotency_key="k")
    assert (first.replayed, again.replayed, many.replayed) == (False, True, True)
    assert first.task_id == again.task_id == many.task_id
    assert caught.value.code == "idempotency_conflict"


async def test_many_tasks_become_as_many_tasks_in_order(api: Fleet, client: AsyncClient) -> None:
    await api.register()
    inputs = [PathIn(path=str(number)) for number in range(1200)]
    handles = await client.submit_many(Sha256, inputs)
    assert len({handle.task_id for handle in handles}) == 1200
    for number in (0, 999, 1000, 1199):
        assert (await handles[number].view()).input == {"path": str(number)}


async def test_refusals_carry_the_servers_code(api: Fleet, client: AsyncClient) -> None:
    await api.register()
    with pytest.raises(Refused) as caught:
        await client.submit(Unknown, PathIn(path="a"))
    assert caught.value.code == "unknown_task_type"
    with pytest.raises(BatchRefused) as refused:
        await client.submit_many(Unknown, [PathIn(path="a")])
    assert refused.value.code == "unknown_task_type"
    with pytest.raises(Refused) as caught:
        await client.task("00000000-0000-4000-8000-000000000000").view()
    assert caught.value.code == "not_found"
    with pytest.raises(Refused) as caught:
        await client.submit(Sha256, PathIn(path="x" * 300_000))
    assert caught.value.code == "payload_too_large"
    with pytest.raises(Refused) as caught:
        await client.outbox()
    assert caught.value.code == "forbidden_role"
    async with AsyncClient(api.coordinator.url, "a-token-of-nobody") as stranger:
        with pytest.raises(Refused) as caught:
            await stranger.nodes()
    assert caught.value.code == "unauthenticated"


async def test_a_cancelled_task_raises_at_whoever_waits(api: Fleet, client: AsyncClient) -> None:
    await api.register()
    handle = await client.submit(Sha256, PathIn(path="a"), priority=-100)
    waiting = asyncio.create_task(handle.result(timeout=60))
    reply = await client.task(handle.task_id).cancel()
    assert reply.outcome in ("cancelled", "requested")
    with pytest.raises(TaskCancelled):
        await waiting
    assert (await handle.cancel()).outcome == "already_ended"


async def test_a_failure_raises_with_the_handlers_words(api: Fleet, client: AsyncClient) -> None:
    incarnation = await api.register()
    handle = await client.submit(Sha256, PathIn(path="a"))
    assignment = await api.assigned(incarnation, handle.task_id)
    await api.report(incarnation, assignment, "take")
    await api.report(
        incarnation,
        assignment,
        "fail",
        reason="handler_failed",
        message="the disk is full",
        retryable=False,
    )
    with pytest.raises(TaskFailed, match="the disk is full") as caught:
        await handle.result(timeout=60)
    assert caught.value.reason == "handler_failed"


async def test_waiting_outlives_a_restart_of_the_coordinator(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    port = reserve_port()
    try:
        listen = f"{LOOPBACK}:{port.port}"
        async with AsyncClient(f"http://{listen}", TOKEN, retry_seconds=60) as client:
            async with fleet(database, broker, listen=listen) as api:
                incarnation = await api.register()
                handle = await client.submit(Sha256, PathIn(path="a"))
                waiting = asyncio.create_task(handle.result())
            late = asyncio.create_task(client.submit(Sha256, PathIn(path="b")))
            async with fleet(database, broker, listen=listen) as api:
                await api.deliver(incarnation, handle.task_id, output={"digest": "y"})
                assert await waiting == Digest(digest="y")
                assert (await late).task_id != handle.task_id
    finally:
        port.release()


async def test_an_operator_holds_releases_and_retries_by_a_handle(
    api: Fleet, client: AsyncClient
) -> None:
    incarnation = await api.register()
    handle = await client.submit(Sha256, PathIn(path="a"), not_before=FAR)
    with pytest.raises(Refused) as caught:
        await handle.hold("no")
    assert caught.value.code == "forbidden_role"
    operator = next(str(entry["token"]) for entry in TOKENS if entry["name"] == "ops")
    async with AsyncClient(api.coordinator.url, operator) as ops:
        task = ops.task(handle.task_id)
        assert (await task.hold("wait for the audit")).state == "held"
        with pytest.raises(TaskHeld, match="wait for the audit") as held:
            await handle.result(timeout=60)
        assert held.value.reason == "operator_hold"
        assert (await task.release()).state == "open"
        await task.cancel()
        again = await task.retry()
        assert (again.outcome, again.state) == ("submitted_again", "cancelled")
        assert again.new_task_id is not None
        await api.deliver(incarnation, again.new_task_id, output={"digest": "z"})
        new = client.task(again.new_task_id, Sha256)
        assert await new.result(timeout=60) == Digest(digest="z")
        (receipt,) = (await new.receipts()).receipts
        assert (receipt.admitted, receipt.output) == (True, {"digest": "z"})


@pytest.mark.requirement("LATE-02")
async def test_the_command_holds_releases_retries_and_lists_receipts(
    api: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    await api.report(incarnation, assignment, "take")
    await api.report(incarnation, assignment, "fail", reason="no", retryable=False)
    late = await api.report(incarnation, assignment, "deliver", output={"late": True})
    assert late.outcome == "recorded"
    waiting = await api.submit(not_before=FAR.isoformat())
    operator = next(str(entry["token"]) for entry in TOKENS if entry["name"] == "ops")
    monkeypatch.setenv("TENURE_URL", api.coordinator.url)
    monkeypatch.setenv("TENURE_TOKEN", operator)

    async def said(*words: str) -> str:
        code = await asyncio.to_thread(main.run, ["task", *words])
        assert code == 0
        return capsys.readouterr().out

    assert "held" in await said("hold", waiting, "--reason", "audit")
    assert "audit" in await said("show", waiting)
    assert "waits" in await said("release", waiting)
    listed = await said("receipts", task_id)
    assert "not_current" in listed
    (receipt,) = json.loads(await said("receipts", task_id, "-o", "json"))["receipts"]
    assert (receipt["code"], receipt["output"]) == ("not_current", {"late": True})
    retried = json.loads(await said("retry", task_id, "-o", "json"))
    assert retried["outcome"] == "submitted_again"
    shown = await said("show", task_id)
    assert retried["new_task_id"] in shown
    assert "not_current" in shown
