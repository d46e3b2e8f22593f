"""Clients wait for results: woken by every replica's commits, at the cost of one query a tick."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import httpx2
import pytest

from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually

RESULT = "a.state as attempt_state,%) as head"
TAIL = "ended.task_ids"
"""What tells the two queries from all others."""
CLIENTS = 1000


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


def waiting(api: Fleet, task_id: str, wait: float = 30) -> "asyncio.Task[httpx2.Response]":
    return asyncio.create_task(api.application.get(f"/v1/tasks/{task_id}/result", wait=wait))


async def metric(api: Fleet, name: str) -> float:
    text = (await api.nobody.get("/metrics")).text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def waits(api: Fleet, number: int) -> None:
    """Return when so many requests wait."""

    async def look() -> bool:
        return await metric(api, "tenure_waiters ") == number

    await eventually(look)


async def test_a_result_that_is_there_is_given_at_once(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    await api.deliver(incarnation, task_id, output=[1])
    reply = await waiting(api, task_id)
    assert reply.json()["output"] == [1]
    assert await metric(api, "tenure_tail_ticks_total ") == 0


async def test_a_waiting_client_is_woken_by_the_delivery(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    client = waiting(api, task_id)
    await waits(api, 1)
    await api.deliver(incarnation, task_id, output={"a": None})
    result = (await client).json()
    assert (result["state"], result["output"]) == ("delivered", {"a": None})


async def test_a_waiting_client_is_woken_by_the_commit_of_another_replica(
    api: Fleet, database: FreshDatabase, broker: BrokerSpace
) -> None:
    await api.register()
    task_id = await api.submit()
    async with fleet(database, broker) as second:
        client = waiting(api, task_id)
        await waits(api, 1)
        await second.application.post(f"/v1/tasks/{task_id}/cancel")
        assert (await client).json()["state"] == "cancelled"


async def test_a_thousand_waiting_clients_cost_one_query_a_tick(
    api: Fleet, database: FreshDatabase
) -> None:
    admin = await asyncpg.connect(database.admin_url)
    await admin.execute("create extension if not exists pg_stat_statements")

    async def calls(fragment: str) -> int:
        return int(
            await admin.fetchval(
                "select coalesce(sum(calls), 0) from pg_stat_statements"
                " where query like '%' || $1 || '%' and query not like '%pg_stat%'"
                " and dbid = (select oid from pg_database where datname = current_database())",
                fragment,
            )
        )

    await api.register(slots=1)
    each = {"tasks": [{"type": "sha256", "idempotency_key": str(n)} for n in range(CLIENTS)]}
    made = (await api.application.post("/v1/tasks/batch", each)).json()["results"]
    callers = httpx2.AsyncClient(
        base_url=api.coordinator.url,
        headers=api.application.http.headers,
        limits=httpx2.Limits(max_connections=CLIENTS),
        timeout=90,
    )
    answers = 0

    async def wait_on(task_id: str) -> None:
        nonlocal answers
        while True:
            await callers.get(f"/v1/tasks/{task_id}/result?wait=30")
            answers += 1

    clients = [asyncio.create_task(wait_on(entry["submitted"]["task_id"])) for entry in made]

    async def looks_within_five_ticks() -> tuple[int, int]:
        """Of those who wait, and of everybody, while all of them wait."""
        await waits(api, CLIENTS)
        answered, results, everything = answers, await calls(RESULT), await calls("")
        ticks = await metric(api, "tenure_tail_ticks_total ")

        async def ticked() -> bool:
            return await metric(api, "tenure_tail_ticks_total ") >= ticks + 5

        await eventually(ticked)
        found = await calls(RESULT) - results, await calls("") - everything
        await waits(api, CLIENTS)
        # On a slow machine a wait may have been over in the meantime: then these are not the looks.
        return found if answered == answers else await looks_within_five_ticks()

    results, everything = await looks_within_five_ticks()
    assert results == 0
    assert everything < CLIENTS  # nothing else looks for each of them either
    looks = await calls(TAIL)
    assert 0 < looks <= await metric(api, "tenure_tail_ticks_total ")  # a tick is counted first
    for client in clients:
        client.cancel()
    await callers.aclose()
    await waits(api, 0)
    idle = await metric(api, "tenure_tail_ticks_total ")
    for _ in range(20):
        await api.reader.get("/v1/tasks")
    assert await metric(api, "tenure_tail_ticks_total ") == idle
    await admin.close()


async def test_a_wait_that_is_over_gives_the_state_as_it_is(api: Fleet) -> None:
    await api.register()
    task_id = await api.submit()
    reply = await waiting(api, task_id, wait=0.05)
    assert (reply.status_code, reply.json()["state"]) == (200, "open")


async def test_a_client_that_hangs_up_is_not_waited_for(api: Fleet) -> None:
    await api.register()
    client = waiting(api, await api.submit())
    await waits(api, 1)
    client.cancel()
    await waits(api, 0)


async def test_a_stopping_coordinator_answers_those_who_wait(api: Fleet) -> None:
    await api.register()
    client = waiting(api, await api.submit())
    await waits(api, 1)
    await api.coordinator.stop()
    reply = await client
    assert (reply.status_code, reply.json()["state"]) == (200, "open")


async def test_a_held_task_wakes_its_client(api: Fleet, database: FreshDatabase) -> None:
    incarnation = await api.register(
        task_types=[{"name": "sha256", "effects": "unguarded", "max_attempts": 1}]
    )
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    await api.report(incarnation, assignment, "take")
    client = waiting(api, task_id)
    await waits(api, 1)
    owner = await asyncpg.connect(database.owner_url)
    await owner.execute("update tenure.attempts set expires_at = clock_timestamp()")
    await owner.close()
    result = (await client).json()
    assert (result["state"], result["reason"]) == ("held", "lost_with_possible_effect")
