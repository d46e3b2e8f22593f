"""A synchronous standby that is slow, or stops answering: callers are told in time, nothing is told
to anybody that only one server has, and all goes on by itself when it is back."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from tenure.cli.chaos.toxic import ToxicProxy, toxic
from tenure.coordinator.store.verify import verify
from tests.support.clusters import await_standby, started, synchronous_standby
from tests.support.coordinator import Fleet, fleet, until
from tests.support.isolation import BrokerSpace, DatabaseServer, FreshDatabase
from tests.support.services import local_postgres
from tests.support.sessions import session

LANES = 6
WAITING = "select pid from pg_stat_activity where wait_event = 'SyncRep'"


@dataclass(frozen=True)
class Site:
    """A server with a synchronous standby behind ``way``, and a database on it."""

    way: ToxicProxy
    database: FreshDatabase


@pytest.fixture(scope="module")
async def pair(server_directory: Path) -> AsyncIterator[tuple[DatabaseServer, ToxicProxy]]:
    async with local_postgres(server_directory) as primary, toxic(primary.url()) as way:
        server = DatabaseServer(primary.url())
        await server.prepare()
        folder = await synchronous_standby(primary, server_directory, port=urlsplit(way.url).port)
        async with started(folder):
            await await_standby(primary)
            yield server, way


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which nothing comes back, so that they need not wait as long as the product."""
    monkeypatch.setattr("tenure.coordinator.store.postgres.COMMAND_TIMEOUT_SECONDS", 1.5)
    monkeypatch.setattr("tenure.coordinator.standby.WAITING_SINCE", timedelta(seconds=0.5))
    monkeypatch.setattr("tenure.coordinator.standby.PROBE_SECONDS", 1.0)


@pytest.fixture
async def site(pair: tuple[DatabaseServer, ToxicProxy]) -> AsyncIterator[Site]:
    server, way = pair
    database = await server.create_migrated(f"standby_{secrets.token_hex(4)}")
    try:
        yield Site(way, database)
    finally:
        way.thaw()
        way.to_client.latency_seconds = 0
        await server.drop(database.name)


@asynccontextmanager
async def silence(site: Site) -> AsyncIterator[None]:
    """The standby hears nothing and says nothing."""
    site.way.freeze()
    try:
        yield
    finally:
        site.way.thaw()


async def submitted(api: Fleet, key: str) -> tuple[int, dict[str, Any]]:
    reply = await api.application.post(
        "/v1/tasks", {"type": "sha256"}, headers={"Idempotency-Key": key}
    )
    return reply.status_code, reply.json()


async def refused(api: Fleet, key: str = "any") -> bool:
    """Whether a submission is answered with the alarm's own code."""
    status, body = await submitted(api, key)
    return (status, body.get("code")) == (503, "standby_not_answering")


async def waiting(site: Site) -> list[int]:
    async with session(site.database.admin_url) as admin:
        return [row["pid"] for row in await admin.fetch(WAITING)]


def once(api: Fleet, key: str, status: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await submitted(api, key))[0] == status

    return look


@pytest.mark.requirement("OPS-01")
async def test_a_slow_standby_slows_commits_and_refuses_nobody(
    site: Site, broker: BrokerSpace
) -> None:
    async with fleet(site.database, broker) as api:
        await api.register()
        for latency in (0.005, 0.05, 0.25):
            site.way.to_client.latency_seconds = latency
            found = await asyncio.gather(
                *(submitted(api, f"{latency}-{number}") for number in range(40))
            )
            assert {status for status, _ in found} == {201}
        assert not api.coordinator._authority.standby.silent


@pytest.mark.requirement("OPS-01")
@pytest.mark.usefixtures("impatience")
async def test_a_standby_that_stops_answering_is_told_in_time_and_goes_on_by_itself(
    site: Site, broker: BrokerSpace
) -> None:
    async with fleet(site.database, broker) as api:
        await api.register()
        assert (await submitted(api, "before"))[0] == 201
        async with silence(site):
            # The one that meets it first, and whatever comes after it: the same code, at once.
            found = await asyncio.gather(*(submitted(api, f"meanwhile-{n}") for n in range(20)))
            assert {body["code"] for _, body in found} <= {"standby_not_answering", "unavailable"}
            await until(lambda: refused(api))
            assert (await api.reader.get("/v1/tasks")).status_code == 200  # reading goes on
            for _ in range(20):
                assert await refused(api)
            assert 0 < len(await waiting(site)) <= LANES + 2  # no more behind than that, ever

            async def told() -> bool:
                return "standby_not_answering" in (await api.nobody.get("/readyz")).text

            await until(told)
            metrics = (await api.nobody.get("/metrics")).text
            assert "tenure_standby_not_answering 1.0" in metrics
        await until(once(api, "after", 201))
        assert (await submitted(api, "before"))[0] == 200

        async def all_known() -> bool:
            statuses = [(await submitted(api, f"meanwhile-{n}"))[0] for n in range(20)]
            return set(statuses) <= {200, 201}

        await until(all_known)
        async with session(site.database.admin_url) as admin:
            keys = await admin.fetchval("select count(*) from tenure.tasks")
        assert keys == 22 + (await submitted(api, "any"))[1]["replayed"]
    assert (await verify(site.database.owner_url)).broken == {}


@pytest.mark.requirement("OPS-01")
@pytest.mark.usefixtures("impatience")
async def test_a_commit_whose_wait_was_ended_is_told_to_nobody_before_the_standby_has_it(
    site: Site, broker: BrokerSpace
) -> None:
    async with fleet(site.database, broker) as api, session(site.database.admin_url) as admin:
        await api.register()
        async with silence(site):
            sending = asyncio.create_task(submitted(api, "the-one"))

            async def committed_here() -> bool:
                """An operator ends whatever waits: it is committed, on this server alone."""
                await admin.execute(f"select pg_cancel_backend(pid) from ({WAITING}) w")
                return bool(await admin.fetchval("select exists (select from tenure.tasks)"))

            await until(committed_here)
            status, body = await sending
            assert (status, body["code"]) == (503, "standby_not_answering")
            for _ in range(10):  # known here, and told to nobody
                assert await refused(api, "the-one")
                await admin.execute(f"select pg_cancel_backend(pid) from ({WAITING}) w")
        await until(once(api, "the-one", 200))
        assert await admin.fetchval("select count(*) from tenure.tasks") == 1


@pytest.mark.requirement("OPS-01")
@pytest.mark.usefixtures("impatience")
async def test_taking_the_standby_out_of_the_set_lets_everything_go_on(
    site: Site, broker: BrokerSpace
) -> None:
    async with fleet(site.database, broker) as api, session(site.database.admin_url) as admin:
        await api.register()
        names = await admin.fetchval("show synchronous_standby_names")
        async with silence(site):
            await until(lambda: refused(api, "mine"))
            try:
                await wait_for(admin, "''")
                await until(once(api, "mine", 200))
            finally:
                await wait_for(admin, f"'{names}'")


async def wait_for(admin: asyncpg.Connection, names: str) -> None:
    """Which standbys commits wait for from now on."""
    await admin.execute(f"alter system set synchronous_standby_names = {names}")
    await admin.execute("select pg_reload_conf()")
