"""Whatever is killed, whenever, each committed row becomes exactly one task."""

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.support.authority import replica
from tests.support.coordinator import TOKENS
from tests.support.enqueueing import Shop, enqueue, loop, open_shop
from tests.support.isolation import FreshDatabase
from tests.support.postgres_filters import Cuts, readable
from tests.support.sessions import session
from tests.support.waiting import eventually


@pytest.fixture
async def shop(emptied_database: FreshDatabase) -> AsyncIterator[Shop]:
    async with open_shop(emptied_database) as shop:
        yield shop


@pytest.mark.requirement("OPS-01")
async def test_a_replica_that_dies_at_any_message_leaves_one_task_of_each_row(
    shop: Shop, emptied_database: FreshDatabase
) -> None:
    expected: list[str] = []
    cuts = Cuts()
    async with readable(emptied_database.coordinator_url, cuts) as proxy:
        for messages in range(1000):
            async with replica(replace(emptied_database, coordinator_url=proxy.url)) as dying:
                for _ in range(2):  # connections are warm, types are known
                    expected.append(await enqueue(shop.connection))
                    await loop(dying).step()
                died = asyncio.Event()
                cuts.on_last_message = died.set
                expected += [
                    await enqueue(shop.connection, idempotency_key=f"{messages} {number}")
                    for number in range(2)
                ]
                cuts.messages_left = messages
                stepping = asyncio.create_task(loop(dying).step())
                dead = asyncio.create_task(died.wait())
                await asyncio.wait({stepping, dead}, return_when=asyncio.FIRST_COMPLETED)
                cuts.messages_left = None
                for task in (stepping, dead):
                    task.cancel()
                await asyncio.gather(stepping, dead, return_exceptions=True)
            await shop.take_in()
            assert await shop.recorded() == sorted(expected)
            if not died.is_set():
                break
    assert messages > 15  # two reads and a commit were cut at every message
    assert await shop.tasks() == sorted(expected)
    assert {row["state"] for row in await shop.rows()} == {"taken"}


PROGRAM = """
import asyncio
from tenure.coordinator.app import run
from tenure.coordinator.config import load_settings
asyncio.run(run(load_settings()))
"""


@asynccontextmanager
async def coordinator(database: FreshDatabase) -> AsyncIterator[asyncio.subprocess.Process]:
    """A coordinator of its own process, whose broker is away. Killed at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        env=os.environ
        | {
            "TENURE_DATABASE_URL": database.coordinator_url,
            "TENURE_BROKER_URL": "amqp://127.0.0.1:1/",
            "TENURE_LISTEN": "127.0.0.1:0",
            "TENURE_TOKENS": json.dumps(TOKENS),
        },
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.timeout(300)  # several programs are started, one after the other
@pytest.mark.requirement("OPS-01")
async def test_of_coordinators_killed_again_and_again_each_committed_row_becomes_one_task(
    shop: Shop, emptied_database: FreshDatabase
) -> None:
    chance = random.Random(3)
    committed: list[str] = []
    enqueueing = asyncio.Event()
    enqueueing.set()

    async def application_works() -> None:
        async with session(shop.login.url) as connection:
            while enqueueing.is_set():
                transaction = connection.transaction()
                await transaction.start()
                task_ids = [await enqueue(connection) for _ in range(chance.randrange(1, 20))]
                if chance.random() < 0.3:
                    await transaction.rollback()
                else:
                    await transaction.commit()
                    committed.extend(task_ids)
                await asyncio.sleep(0.002)

    async def taken() -> int:
        number: int = await shop.bench.owner.fetchval(
            "select count(*) from tenure.intake where state = 'taken'"
        )
        return number

    working = asyncio.create_task(application_works())
    for _ in range(3):
        before = await taken()
        async with coordinator(emptied_database), coordinator(emptied_database):

            async def goes_on(before: int = before) -> bool:
                return await taken() > before + chance.randrange(1, 100)

            await eventually(goes_on)
    enqueueing.clear()
    await working
    await shop.take_in()
    assert await shop.tasks() == sorted(committed)
    assert await shop.recorded() == sorted(committed)
    assert len(committed) > 100
