"""The coordinator as a process: what it says when its servers are not as they should be."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg
import httpx2
import pytest

from tenure.cli.local.postgres import PrivatePostgres
from tenure.coordinator.store import migrate
from tests.support.coordinator import TOKENS, Fleet, running, settings_for
from tests.support.isolation import BrokerSpace, DatabaseServer, FreshDatabase
from tests.support.outages import EVERY_OUTAGE, Outage
from tests.support.waiting import eventually

PROGRAM = (
    "import asyncio; from tenure.coordinator.app import run;"
    " from tenure.coordinator.config import load_settings; asyncio.run(run(load_settings()))"
)


@asynccontextmanager
async def over(database_url: str, broker_url: str) -> AsyncIterator[Fleet]:
    """A coordinator that need not be ready."""
    async with running(settings_for(database_url, broker_url)) as coordinator:
        found = Fleet(coordinator)
        try:
            yield found
        finally:
            await found.close()


async def says(api: Fleet, words: str) -> None:
    """Return when readiness says so."""

    async def look() -> bool:
        return words in (await api.nobody.get("/readyz")).text

    await eventually(look)


async def test_a_database_that_is_not_migrated_is_waited_for(
    empty_database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with over(empty_database.owner_url, broker.url) as api:
        await says(api, "database: not_migrated")
        assert (await api.nobody.get("/healthz")).text == "ok\n"
        assert (await api.nobody.get("/readyz")).status_code == 503
        reply = await api.application.post("/v1/tasks", {"type": "sha256"})
        assert (reply.status_code, reply.json()["code"]) == (503, "not_migrated")
        assert "tenure migrate up" in reply.json()["next_step"]
        assert int(reply.headers["retry-after"]) > 0
        await migrate.up(empty_database.owner_url)
        await says(api, "database: ok")
        await api.register()
        await api.submit()


async def test_a_database_newer_than_the_code_is_refused(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    owner = await asyncpg.connect(database.owner_url)
    await owner.execute(
        "insert into tenure.schema_migrations (version, name, sha256) values (9999, 'later', '')"
    )
    async with over(database.coordinator_url, broker.url) as api:
        await says(api, "database: schema_too_new")
        reply = await api.application.post("/v1/tasks", {"type": "sha256"})
        assert (reply.status_code, reply.json()["code"]) == (503, "schema_too_new")
        await owner.execute("delete from tenure.schema_migrations where version = 9999")
        await says(api, "database: ok")
    await owner.close()


async def test_a_login_that_the_database_refuses_is_named(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    host = database.coordinator_url.rpartition("@")[2]
    async with over(f"postgresql://nobody:wrong@{host}", broker.url) as api:
        await says(api, "database: database_refused")
        reply = await api.application.post("/v1/tasks", {"type": "sha256"})
        assert (reply.status_code, reply.json()["code"]) == (503, "unavailable")


@pytest.mark.requirement("INC-01")
@EVERY_OUTAGE
async def test_a_database_that_goes_down_loses_no_submission_and_doubles_none(
    private_postgres: PrivatePostgres, broker: BrokerSpace, outage: Outage
) -> None:
    server = DatabaseServer(private_postgres.url())
    await server.prepare()
    database = await server.create_migrated("killed")
    async with over(database.coordinator_url, broker.url) as api:
        await says(api, "database: ok")
        await api.register()
        begun = asyncio.Event()
        killed = asyncio.Event()

        async def submit(number: int) -> str:
            """Repeats the same request, as the interface says, until it is answered."""
            headers = {"Idempotency-Key": f"key-{number}"}
            while True:
                reply = await api.application.post(
                    "/v1/tasks", {"type": "sha256", "input": number}, headers=headers
                )
                if reply.status_code in (200, 201):
                    return str(reply.json()["task_id"])
                assert reply.json()["code"] in ("unavailable", "overloaded"), reply.text

        async def submit_some(first: int) -> list[str]:
            done = []
            for number in range(first, first + 10):
                if number % 10 == 5:
                    begun.set()
                    await killed.wait()
                done.append(await submit(number))
            return done

        async def kill() -> None:
            await begun.wait()
            await outage(private_postgres)
            killed.set()
            await private_postgres.start()

        killing = asyncio.create_task(kill())
        batches = await asyncio.gather(*(submit_some(first) for first in range(0, 100, 10)))
        await killing
        task_ids = {task_id for batch in batches for task_id in batch}
        assert len(task_ids) == 100
        owner = await asyncpg.connect(database.owner_url)
        assert await owner.fetchval("select count(*) from tenure.tasks") == 100
        await owner.close()
        await says(api, "database: ok")


async def test_sigterm_answers_who_waits_and_ends_with_success(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        env=os.environ
        | {
            "TENURE_DATABASE_URL": database.coordinator_url,
            "TENURE_BROKER_URL": broker.url,
            "TENURE_NAME_PREFIX": broker.name_prefix,
            "TENURE_LISTEN": "127.0.0.1:0",
            "TENURE_TOKENS": json.dumps(TOKENS),
            "TENURE_LOG_FORMAT": "json",
        },
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    lines = process.stderr
    logged: list[dict[str, object]] = []

    async def next_event(event: str) -> dict[str, object]:
        while True:
            line = await lines.readline()
            assert line, f"ended without {event!r}: {logged}"
            logged.append(json.loads(line))
            if logged[-1]["event"] == event:
                return logged[-1]

    url = str((await next_event("listening"))["url"])
    headers = {"Authorization": f"Bearer {TOKENS[0]['token']}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:

        async def ready() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await eventually(ready)
        executor = {"Authorization": f"Bearer {TOKENS[1]['token']}"}
        body = {
            "node_id": "n",
            "incarnation": str(uuid4()),
            "protocol_version": 1,
            "software": "tests",
            "slots": 1,
            "task_types": [{"name": "a"}],
        }
        assert (await client.post("/v1/nodes", json=body, headers=executor)).status_code == 200
        task_id = (await client.post("/v1/tasks", json={"type": "a"})).json()["task_id"]
        waiting = asyncio.create_task(
            client.get(f"/v1/tasks/{task_id}/result", params={"wait": 30})
        )

        async def waits() -> bool:
            return "tenure_waiters 1.0" in (await client.get("/metrics")).text

        await eventually(waits)
        process.send_signal(signal.SIGTERM)
        reply = await waiting
        assert (reply.status_code, reply.json()["state"]) == (200, "open")
    await next_event("stopped")
    assert await process.wait() == 0
    assert TOKENS[0]["token"] not in json.dumps(logged)
