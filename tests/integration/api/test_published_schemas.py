"""The published documents say what is really served and sent.

Every answer of every other test of the API is held against OpenAPI too (tests/support/coordinator).
"""

import pytest

from tenure.contract.ids import IncarnationId
from tenure.contract.topology import node_queue
from tests.support.asyncapi import TO_NODES, message_name
from tests.support.authority import TENANT, replica
from tests.support.coordinator import fleet
from tests.support.happenings import everything_that_can_happen
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.published import check_message, published
from tests.support.relays import (
    Consumer,
    all_passed,
    broker_channel,
    consume,
    declare_events,
    declare_queue,
    relaying,
)
from tests.support.sessions import until


@pytest.mark.requirement("EVENT-01")
async def test_every_message_on_the_broker_is_as_asyncapi_says(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    prefix = broker.name_prefix
    async with replica(database, prefix=prefix) as bench, broker_channel(broker.url) as channel:
        exchange = await declare_events(channel, prefix)
        events = await consume(channel, await declare_queue(channel, f"{prefix}.all", exchange))
        await everything_that_can_happen(bench)
        incarnations = await bench.owner.fetch("select incarnation::text as id from tenure.nodes")
        nodes = [
            await consume(channel, await declare_queue(channel, name))
            for name in (
                node_queue(TENANT, IncarnationId(record["id"]), prefix) for record in incarnations
            )
        ]
        rows = await bench.owner.fetch("select event_id::text from tenure.log where not copy")

        async def arrived() -> bool:
            every_event = {row["event_id"] for row in rows} <= events.event_ids
            return every_event and set(TO_NODES) <= names_of(*nodes)

        async with relaying(database.relay_url, broker.url, prefix):
            await all_passed(database.relay_url)
            await until(arrived)
    for message in events.messages:
        check_message(message.body, "events")
    for node in nodes:
        for message in node.messages:
            check_message(message.body, "assignments")
    assert names_of(events) == set(published("asyncapi.json")["channels"]["events"]["messages"])
    assert names_of(*nodes) == set(TO_NODES)


def names_of(*consumers: Consumer) -> set[str]:
    """Which messages of the document have arrived."""
    return {message_name(message.body) for one in consumers for message in one.messages}


async def test_the_served_document_is_the_published_one(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with fleet(database, broker) as api:
        served = await api.nobody.get("/openapi.json")
        pages = [
            await api.nobody.get(path)
            for path in published("openapi.json")["paths"]
            if not path.startswith("/v1/")
        ]
    assert served.json() == published("openapi.json")
    assert [page.status_code for page in pages] == [200, 200, 200, 200]
