"""Broker users with the rights that docs/settings.md names, and no others, are enough."""

import re
from typing import NamedTuple

import aio_pika
import pytest
from aiormq.exceptions import ChannelAccessRefused

from tenure.contract import topology
from tests.support.broker_users import broker_user
from tests.support.chain import carry_through
from tests.support.coordinator import fleet
from tests.support.exported import SETTINGS
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying
from tests.support.services import BrokerServer


class Rights(NamedTuple):
    """Regular expressions of the names that a user may configure, write and read."""

    configure: str
    write: str
    read: str


def documented(prefix: str, tenant: str = "default") -> dict[str, Rights]:
    """What the page about settings says, for another prefix and tenant than its examples."""
    page = SETTINGS.read_text(encoding="utf-8")
    found = {}
    for who in ("coordinators", "relays", "executors"):
        (row,) = re.findall(rf"^\| {who}.*$", page, re.MULTILINE)
        cells = re.findall(r"`([^`]*)`(?= *\|)", row.replace("`acme`", "acme"))
        rights = (cell.replace(r"\|", "|") for cell in cells)
        named = (one.replace("tenure", re.escape(prefix)).replace("acme", tenant) for one in rights)
        found[who] = Rights(*named)
    return found


async def test_tasks_go_through_with_users_limited_to_their_names(
    database: FreshDatabase, broker: BrokerSpace, broker_server: BrokerServer
) -> None:
    rights = documented(broker.name_prefix)
    async with (
        broker_user(broker_server, broker, **rights["coordinators"]._asdict()) as coordinator,
        broker_user(broker_server, broker, **rights["relays"]._asdict()) as relay,
        broker_user(broker_server, broker, **rights["executors"]._asdict()) as executor,
    ):
        space = BrokerSpace(coordinator.url, broker.name_prefix)
        async with (
            fleet(database, space) as api,
            relaying(database.relay_url, relay.url, broker.name_prefix),
        ):
            await carry_through(api, executor.url, tasks=2)


@pytest.mark.parametrize("who", ["coordinators", "relays", "executors"])
async def test_a_limited_user_cannot_touch_what_is_not_its_own(
    broker: BrokerSpace, broker_server: BrokerServer, who: str
) -> None:
    """The other way round: the rights in the test above did limit them."""
    rights = documented(broker.name_prefix)[who]
    others = [f"{broker.name_prefix}x.events", f"other.{broker.name_prefix}.events", "events"]
    if who != "coordinators":
        others.append(topology.dead_letter_queue(broker.name_prefix))
    async with (
        broker_user(broker_server, broker, **rights._asdict()) as user,
        await aio_pika.connect(user.url) as connection,
    ):
        for name in others:
            channel = await connection.channel()
            with pytest.raises(ChannelAccessRefused):
                await channel.declare_queue(name, durable=True)
