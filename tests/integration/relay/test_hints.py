"""A coordinator tells whoever listens that the log has grown."""

import asyncio

import asyncpg

from tenure.contract.topology import LOG_CHANNEL
from tests.support.coordinator import fleet
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.services import POOLED
from tests.support.waiting import eventually


async def test_a_commit_is_followed_by_a_hint_once_its_rows_can_be_read(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    hinted = asyncio.Event()
    listener = await asyncpg.connect(database.relay_url)
    try:
        await listener.add_listener(LOG_CHANNEL, lambda *_: hinted.set())
        async with fleet(database, broker) as api:
            await api.register()
            task_id = await api.submit()
            if POOLED:  # nobody could listen there, so nobody is told
                return

            async def told_after_the_row() -> bool:
                await hinted.wait()
                hinted.clear()
                return bool(
                    await listener.fetchval(
                        "select exists (select from tenure.log where order_key = $1::text::uuid)",
                        task_id,
                    )
                )

            await eventually(told_after_the_row)
    finally:
        await listener.close()
