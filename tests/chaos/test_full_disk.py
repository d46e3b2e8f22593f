"""The disk of the authority's database fills up: nothing that was answered is lost, nothing is done
twice, and everything goes on by itself once there is room."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tenure.cli.local.postgres import PrivatePostgres
from tenure.client import AsyncClient
from tenure.coordinator.store.verify import verify
from tests.support.armed_app import WRITE, Row, executor
from tests.support.books import Ledger
from tests.support.coordinator import TOKENS, fleet
from tests.support.downstream import downstream
from tests.support.executors import executing, registered, result, settings_of
from tests.support.isolation import BrokerSpace, DatabaseServer, FreshDatabase
from tests.support.relays import all_passed, relaying
from tests.support.services import local_postgres
from tests.support.waiting import eventually

DISK_MIB: Final = 256
LEFT_BYTES: Final = 256 * 1024
VALUE: Final = "x" * 20_000


@pytest.fixture
def small_disk(server_directory: Path) -> Iterator[Path]:
    """A file system of its own, as large as a fresh server and a little more."""
    place = server_directory / "small"
    place.mkdir(mode=0o711)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=711", "tmpfs", place],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
async def cramped(small_disk: Path) -> AsyncIterator[PrivatePostgres]:
    """A server on that disk, with little write-ahead log."""
    settings = {"max_wal_size": "64MB", "min_wal_size": "32MB"}
    async with local_postgres(small_disk, settings=settings) as server:
        yield server


class Ballast:
    """A file that takes the room."""

    def __init__(self, disk: Path) -> None:
        self._file = disk / "ballast"
        self._disk = disk

    def load(self) -> None:
        """Leave next to nothing."""
        room = shutil.disk_usage(self._disk).free - LEFT_BYTES
        with self._file.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, room)

    def drop(self) -> None:
        """There is room again."""
        self._file.unlink()


async def supervise(server: PrivatePostgres) -> None:
    """Start it again whenever it has ended: it may take its time over that."""
    while True:
        if not server.running:
            server.kill()
            await server.start()
        await asyncio.sleep(0.1)


@pytest.mark.requirement("OPS-01")
@pytest.mark.timeout(300)
async def test_a_full_disk_under_the_database_loses_no_answered_task_and_doubles_no_effect(
    cramped: PrivatePostgres,
    small_disk: Path,
    empty_database: FreshDatabase,
    broker: BrokerSpace,
    tmp_path: Path,
) -> None:
    """Whoever is refused meanwhile asks again with the same key. A server that gave itself up
    because it could not write is started again, as its supervisor would; the receiver downstream
    has a disk of its own."""
    maker = DatabaseServer(cramped.url())
    await maker.prepare()
    database = await maker.create_migrated("full")
    ballast, ledger = Ballast(small_disk), Ledger()
    async with (
        downstream(empty_database.admin_url) as receiver,
        fleet(database, broker) as api,
        relaying(database.relay_url, broker.url, broker.name_prefix),
        executing(executor(receiver.writer_url), settings_of(api, broker, tmp_path, slots=8)),
        AsyncClient(api.coordinator.url, str(TOKENS[0]["token"]), retry_seconds=120) as client,
    ):
        await registered(api, "node-1")

        async def submit(key: str) -> None:
            handle = await client.submit(WRITE, Row(value=VALUE), idempotency_key=key)
            ledger.answered(key, handle.task_id)

        async def refused() -> bool:
            key = f"asked-{len(ledger.tasks)}"
            reply = await api.application.post(
                "/v1/tasks",
                {"type": "write", "input": {"value": VALUE}},
                headers={"Idempotency-Key": key},
            )
            if reply.is_success:
                ledger.answered(key, reply.json()["task_id"])
                return False
            assert (reply.status_code, reply.json()["code"]) == (503, "unavailable")
            return True

        await submit("before")
        ballast.load()
        await eventually(refused)
        submitting = [asyncio.create_task(submit(f"during-{number}")) for number in range(20)]
        await eventually(refused)
        ballast.drop()
        supervising = asyncio.create_task(supervise(cramped))
        try:
            await asyncio.gather(*submitting)
            for task_id in ledger.tasks.values():
                assert (await result(api, task_id))["state"] == "delivered"
                assert await receiver.effects(task_id) == [VALUE]
            assert ledger.contradictions == []
            await all_passed(database.owner_url)
        finally:
            supervising.cancel()
    assert (await verify(database.owner_url)).broken == {}
