"""A listener whose hints stop coming: rows are published all the same, and hints come again."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from tenure.cli.chaos.toxic import Side, ToxicProxy, toxic
from tenure.contract.topology import LOG_CHANNEL
from tenure.relay.app import Parts
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import Stream, append, rows_of
from tests.support.relays import broker_channel, consume, declare_queue, relaying
from tests.support.sessions import session, until


async def terminate(database: FreshDatabase, proxy: ToxicProxy) -> None:
    """The server ends the sessions of the relay."""
    found = urlsplit(database.relay_url)
    async with session(database.admin_url) as admin:
        await admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = $1 and usename = $2",
            found.path.removeprefix("/"),
            found.username,
        )


async def cut(database: FreshDatabase, proxy: ToxicProxy) -> None:
    """The connections are reset."""
    proxy.cut()


async def half_open(database: FreshDatabase, proxy: ToxicProxy) -> None:
    """The connections look open, and nothing comes through them any more."""
    proxy.leave_half_open(Side.SERVER)


@pytest.mark.direct("nobody can listen through a pooler")
@pytest.mark.requirement("RELAY-05")
@pytest.mark.parametrize("strike", [terminate, cut, half_open])
async def test_a_listener_that_was_cut_off_misses_no_row_and_hears_hints_again(
    database: FreshDatabase,
    broker: BrokerSpace,
    strike: Callable[[FreshDatabase, ToxicProxy], Awaitable[None]],
) -> None:
    async with (
        broker_channel(broker.url) as channel,
        toxic(database.relay_url) as proxy,
        session(database.owner_url) as owner,
    ):
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        rows = rows_of([Stream() for _ in range(3)], 1, routing_key=queue, required=True)
        async with relaying(proxy.url, broker.url, broker.name_prefix) as parts:
            await append(owner, rows[:1])
            await consumer.has(rows[:1])
            await until_it_listens(parts)
            connections = proxy.accepted

            await strike(database, proxy)
            await append(owner, rows[1:2])  # and nobody gives a hint
            await consumer.has(rows[:2])
            assert proxy.accepted > connections

            await until_it_listens(parts)
            parts.relay._pace = replace(parts.relay._pace, listening_poll_seconds=3600.0)

            async def looks_no_more() -> bool:
                return parts.relay._look_at > parts.relay._clock() + 1800

            await until(looks_no_more)
            await append(owner, rows[2:])
            await owner.execute("select pg_notify($1, '')", LOG_CHANNEL)
            await consumer.has(rows)


async def until_it_listens(parts: Parts) -> None:
    async def listens() -> bool:
        return parts.log.listens and parts.relay.database_well

    await until(listens)
