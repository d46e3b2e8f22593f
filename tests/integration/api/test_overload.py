"""A database that stands still turns into refusals that may be repeated, not into memory."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually

ROOM = 3


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker, max_waiting_requests=ROOM) as found:
        yield found


async def test_what_does_not_fit_is_refused_and_renewals_go_on(
    api: Fleet, database: FreshDatabase
) -> None:
    """Nothing can be appended while somebody holds the append lock; renewals append nothing."""
    incarnation = await api.register()
    assignment = await api.assigned(incarnation, await api.submit())
    await api.report(incarnation, assignment, "take")
    owner = await asyncpg.connect(database.owner_url)
    async with owner.transaction():
        await owner.execute("lock table tenure.append_lock in access exclusive mode")
        waiting = [
            asyncio.create_task(api.application.post("/v1/tasks", {"type": "sha256", "input": n}))
            for n in range(ROOM)
        ]

        async def full() -> bool:
            text = (await api.nobody.get("/metrics")).text
            return f'tenure_http_waiting_requests{{gate="applications"}} {ROOM}.0' in text

        await eventually(full)
        reply = await api.application.post("/v1/tasks", {"type": "sha256"})
        assert (reply.status_code, reply.json()["code"]) == (503, "overloaded")
        assert int(reply.headers["retry-after"]) > 0
        lease = {name: assignment[name] for name in ("task_id", "attempt_id", "fencing_token")}
        renewed = await api.executor.post(
            "/v1/nodes/node-1/renewals", {"incarnation": incarnation, "leases": [lease]}
        )
        assert renewed.json()["replies"][0]["outcome"] == "renewed"
        assert (await api.reader.get("/v1/tasks")).status_code == 200
    replies = await asyncio.gather(*waiting)
    assert {entry.status_code for entry in replies} == {201}
    await owner.close()


async def test_an_authority_in_doubt_grants_nothing_and_says_so(
    api: Fleet, database: FreshDatabase
) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    owner = await asyncpg.connect(database.owner_url)
    await owner.execute("update tenure.authority set system_identifier = system_identifier + 1")
    submitted = await api.application.post("/v1/tasks", {"type": "sha256"})
    assert (submitted.status_code, submitted.json()["code"]) == (503, "authority_unconfirmed")
    taken = await api.report(incarnation, assignment, "take")
    assert (taken.outcome, taken.code) == ("retry", "authority_unconfirmed")
    assert (await api.reader.get(f"/v1/tasks/{task_id}")).json()["phase"] == "assigned"

    async def told() -> bool:
        return "database: authority_unconfirmed" in (await api.nobody.get("/readyz")).text

    await eventually(told)
    await owner.execute("update tenure.authority set system_identifier = system_identifier - 1")
    assert (await api.report(incarnation, assignment, "take")).outcome == "applied"
    await owner.close()
