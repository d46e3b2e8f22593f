"""Executors that were started under random names and killed leave nothing behind (OPS-08)."""

import asyncio
import os
import secrets
from typing import Any

import asyncpg
import httpx2
import pytest

from tenure.coordinator.retention import IN_ORDER
from tenure.coordinator.store.verify import verify
from tests.support.ageing import age
from tests.support.coordinator import fleet, registration, until
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.services import BrokerServer
from tests.support.sessions import session

EXECUTORS = int(os.environ.get("TENURE_TEST_EXECUTORS", "40"))
"""With 500 it takes about two minutes: brokers declare quorum queues slowly."""
EMPTY_IN_THE_END = (
    "nodes", "incarnations", "reservations", "health_reviews", "commands", "renewals", "tasks",
    "task_inputs", "attempts", "receipts",
)  # fmt: skip


async def node_queues(server: BrokerServer, space: BrokerSpace) -> int:
    """How many queues of nodes the broker has in the test's namespace."""
    assert server.management is not None
    vhost = space.url.rpartition("/")[2]
    async with httpx2.AsyncClient(timeout=60) as client:
        reply = await client.get(f"{server.management}/api/queues/{vhost}?disable_stats=true")
        queues: list[dict[str, Any]] = reply.raise_for_status().json()
    return sum(one["name"].startswith(f"{space.name_prefix}.node.") for one in queues)


@pytest.mark.requirement("OPS-08")
async def test_executors_started_under_random_names_and_killed_leave_nothing_behind(
    database: FreshDatabase,
    broker: BrokerSpace,
    broker_server: BrokerServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.coordinator.sweeper.HOUSEKEEPING_SECONDS", 0.2)
    monkeypatch.setattr("tenure.coordinator.broker.COMPARE_SECONDS", 0.2)
    async with (
        fleet(database, broker) as api,
        session(database.owner_url) as owner,
    ):

        async def start() -> None:
            body = registration(f"node-{secrets.token_hex(8)}", slots=1)
            reply = await api.executor.post("/v1/nodes", body)
            assert reply.status_code == 200, reply.text

        for first in range(0, EXECUTORS, 20):
            await asyncio.gather(*(start() for _ in range(first, min(first + 20, EXECUTORS))))
        task_id = await api.submit()

        async def assigned() -> bool:
            return await count(owner, "reservations") == 1

        await until(assigned)
        assert await count(owner, "incarnations") == EXECUTORS
        if broker_server.management is not None:

            async def declared() -> bool:
                return await node_queues(broker_server, broker) == EXECUTORS

            await until(declared)

        # Killed: nobody is heard of again, the lease runs out, and ten minutes go by.
        await api.operator.post(f"/v1/tasks/{task_id}/cancel")
        await age(database, "11 minutes")

        async def retired() -> bool:
            return await count(owner, "incarnations", "state <> 'gone'") == 0

        await until(retired)
        assert await count(owner, "reservations") == 0
        await publish(owner)
        if broker_server.management is not None:

            async def deleted() -> bool:
                return await node_queues(broker_server, broker) == 0

            await until(deleted)

        # And in time nothing tells of them.
        await age(database, "400 days")
        await publish(owner)

        async def nothing_is_left() -> bool:
            for kind in IN_ORDER:
                await api.operator.post("/v1/retention/run", {"kinds": [kind.value]})
            return not any([await count(owner, table) for table in EMPTY_IN_THE_END])

        await until(nothing_is_left)
    assert (await verify(database.owner_url)).broken == {}


async def count(owner: asyncpg.Connection, table: str, condition: str = "true") -> int:
    number: int = await owner.fetchval(f"select count(*) from tenure.{table} where {condition}")
    return number


async def publish(owner: asyncpg.Connection) -> None:
    """As if a relay had published everything."""
    await owner.execute(
        "update tenure.relay_shards set position = (select max(position) from tenure.log)"
    )
