"""The primary dies under load, a synchronous standby is promoted: it grants again by itself."""

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from tenure.cli.chaos.toxic import toxic
from tenure.contract.ids import FencingToken, epoch_of
from tenure.coordinator.store.verify import verify
from tests.support.clusters import await_standby, on, started, synchronous_standby
from tests.support.coordinator import Fleet, fleet, report_of, until
from tests.support.isolation import BrokerSpace, DatabaseServer
from tests.support.services import local_postgres

SETTINGS = {
    # The control file names the old timeline until the next checkpoint: nothing may wait for that.
    "checkpoint_timeout": "1d",
    "max_wal_size": "4GB",
}


@dataclass
class Load:
    """An application that submits and a node that works, whatever the answers."""

    api: Fleet
    incarnation: str
    tokens: dict[str, list[FencingToken]] = field(default_factory=lambda: defaultdict(list))
    delivered: int = 0
    acknowledged: set[str] = field(default_factory=set)

    async def submit(self) -> None:
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                reply = await self.api.application.post("/v1/tasks", {"type": "sha256"})
                if reply.status_code == 201:
                    self.acknowledged.add(reply.json()["task_id"])
            await asyncio.sleep(0.01)

    async def work(self) -> None:
        node = "/v1/nodes/node-1"
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                body: Any = {"incarnation": self.incarnation}
                await self.api.executor.post(f"{node}/renewals", body)
                reply = await self.api.executor.get(f"{node}/assignments", **body)
                found = reply.json()["assignments"] if reply.status_code == 200 else []
                for one in found:
                    known = self.tokens[one["task_id"]]
                    if one["fencing_token"] not in known:
                        known.append(one["fencing_token"])
                for kind in ("take", "deliver"):
                    reports = [report_of(one, kind) for one in found]
                    if reports:
                        reply = await self.api.executor.post(
                            f"{node}/reports", body | {"reports": reports}
                        )
                if found and reply.status_code == 200:
                    applied = [one["outcome"] == "applied" for one in reply.json()["replies"]]
                    self.delivered += sum(applied)
            await asyncio.sleep(0.01)

    def granted(self) -> list[FencingToken]:
        """Every token that the node was granted."""
        return [token for known in self.tokens.values() for token in known]


@asynccontextmanager
async def loaded(api: Fleet) -> AsyncIterator[Load]:
    load = Load(api, await api.register(slots=8))
    loops = [asyncio.create_task(loop) for loop in (load.submit(), load.work())]
    try:
        yield load
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


@pytest.mark.requirement("LEASE-04")
async def test_a_promoted_standby_grants_again_by_itself_and_above_all_tokens_before(
    server_directory: Path, broker: BrokerSpace, record_property: Callable[[str, object], None]
) -> None:
    async with local_postgres(server_directory, settings=SETTINGS) as primary:
        server = DatabaseServer(primary.url())
        await server.prepare()
        database = await server.create_migrated(f"promoted_{secrets.token_hex(4)}")
        folder = await synchronous_standby(primary, server_directory)
        async with (
            started(folder, settings=SETTINGS) as standby,
            toxic(database.coordinator_url) as address,
        ):
            await await_standby(primary)
            there = replace(database, coordinator_url=address.url)
            async with fleet(there, broker) as api, loaded(api) as load:
                await until(lambda: enough(load, 20))
                primary.kill()
                address.lead_to(on(standby, database).coordinator_url)
                # What the dead primary granted and the node read, all of it.
                before = {token for token in load.granted() if epoch_of(token) == 1}
                began = asyncio.get_running_loop().time()
                await promote(standby.url())
                await until(lambda: granted_anew(load))
                seconds = asyncio.get_running_loop().time() - began
                record_property("granted_again_after_seconds", round(seconds, 1))
                so_far = load.delivered
                await until(lambda: enough(load, so_far + 20))
            assert all(known == sorted(known) for known in load.tokens.values())
            later = [token for token in load.granted() if token not in before]
            assert min(later) > max(before)
            await nothing_acknowledged_is_lost(on(standby, database).owner_url, load)


async def enough(load: Load, deliveries: int) -> bool:
    return load.delivered >= deliveries


async def granted_anew(load: Load) -> bool:
    return any(epoch_of(token) > 1 for token in load.granted())


async def promote(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        assert await connection.fetchval("select pg_promote(true, 60)")
        # The waiting for a standby came with the base backup or not: nobody is there to wait for.
        await connection.execute("alter system set synchronous_standby_names = ''")
        await connection.execute("select pg_reload_conf()")
    finally:
        await connection.close()


async def nothing_acknowledged_is_lost(url: str, load: Load) -> None:
    owner = await asyncpg.connect(url)
    try:
        rows = await owner.fetch(
            "select task_id::text from tenure.tasks where task_id = any($1::uuid[])",
            list(load.acknowledged),
        )
        assert {row["task_id"] for row in rows} == load.acknowledged
        epochs = await owner.fetch("select epoch, cause from tenure.authority_epochs order by 1")
        assert [row["cause"] for row in epochs] == ["initial", "promotion"]
        assert (await verify(url)).broken == {}
    finally:
        await owner.close()
