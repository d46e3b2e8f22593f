"""Subscriptions: which events reach which queue, over HTTP, the command line and a real broker."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import asyncpg
import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelClosed

from tenure.cli.exits import Exit
from tenure.contract.topology import (
    dead_letter_queue,
    events_exchange,
    subscription_queue,
    subscription_queue_arguments,
)
from tests.support.commands import tenure
from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


async def subscribe(api: Fleet, *events: str, name: str = "billing", **values: Any) -> Any:
    reply = await api.operator.post(
        "/v1/subscriptions", {"name": name, "events": list(events)} | values
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


class Exchange:
    """Publishes to the events exchange as the relay does, and looks into queues."""

    def __init__(self, channel: AbstractChannel, space: BrokerSpace) -> None:
        self._channel = channel
        self._name = events_exchange(space.name_prefix)

    async def routes(self, key: str) -> bool:
        """Whether a message with this key reaches any queue."""
        exchange = await self._channel.get_exchange(self._name, ensure=False)
        message = aio_pika.Message(key.encode(), delivery_mode=2)
        try:
            await exchange.publish(message, key, mandatory=True)
        except aio_pika.exceptions.PublishError:
            return False
        return True

    async def taken(self, queue: str) -> list[str]:
        """Everything that waits in a queue."""
        found = []
        source = await self._channel.get_queue(queue, ensure=False)
        while (message := await source.get(fail=False)) is not None:
            await message.ack()
            found.append(message.body.decode())
        return found


@pytest.fixture
async def exchange(broker: BrokerSpace) -> AsyncIterator[Exchange]:
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel(on_return_raises=True)
        yield Exchange(channel, broker)


async def test_a_subscribed_event_reaches_the_queue_and_no_other_does(
    api: Fleet, broker: BrokerSpace, exchange: Exchange
) -> None:
    found = await subscribe(api, "task.delivered", "attempt")
    one = found["subscription"]
    assert found["bound"] is True
    assert one["queue"] == subscription_queue("default", "billing", broker.name_prefix)
    assert one["patterns"] == ["default.task.delivered", "default.attempt.*"]
    assert one["whole_streams"] == ["attempt"]
    assert one["dedupe_retention_seconds"] == 7 * 86_400
    keys = [
        "default.task.delivered",
        "default.attempt.running",
        "default.task.open",
        "other.task.delivered",
    ]
    assert [await exchange.routes(key) for key in keys] == [True, True, False, False]
    assert await exchange.taken(one["queue"]) == keys[:2]
    assert (await api.reader.get("/v1/subscriptions")).json() == {"subscriptions": [one]}


async def test_a_changed_subscription_is_bound_anew_and_loses_nothing_that_waits(
    api: Fleet, exchange: Exchange
) -> None:
    queue = (await subscribe(api, "task"))["subscription"]["queue"]
    assert await exchange.routes("default.task.failed")
    again = await subscribe(api, "task")
    changed = await subscribe(api, "node.gone", dedupe_retention_seconds=60)
    assert again["subscription"]["changed_at"] < changed["subscription"]["changed_at"]
    assert again["subscription"]["created_at"] == changed["subscription"]["created_at"]
    assert not await exchange.routes("default.task.failed")
    assert await exchange.routes("default.node.gone")
    assert await exchange.taken(queue) == ["default.task.failed", "default.node.gone"]
    back = await subscribe(api, "task")
    assert back["bound"]
    assert not await exchange.routes("default.node.gone")
    assert await exchange.routes("default.task.failed")


async def test_a_removed_subscription_takes_its_queue_along(
    api: Fleet, broker: BrokerSpace, exchange: Exchange
) -> None:
    queue = (await subscribe(api, "task"))["subscription"]["queue"]
    which = {"name": "billing"}
    for removed in (True, False):
        reply = await api.operator.post("/v1/subscriptions/remove", which)
        assert reply.json() == {"removed": removed}
    assert (await api.reader.get("/v1/subscriptions")).json() == {"subscriptions": []}
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        with pytest.raises(ChannelClosed):
            await channel.get_queue(queue, ensure=True)
    assert not await exchange.routes("default.task.failed")
    assert (await subscribe(api, "task"))["bound"]
    assert await exchange.routes("default.task.failed")


async def test_queues_have_a_delivery_limit_and_a_dead_letter_queue_of_their_own_stating(
    api: Fleet, broker: BrokerSpace
) -> None:
    queue = (await subscribe(api, "all", all_tenants=True))["subscription"]["queue"]
    assert queue == f"{broker.name_prefix}.subscription._all.billing"
    arguments = subscription_queue_arguments(broker.name_prefix)
    assert arguments["x-delivery-limit"] == 20
    assert arguments["x-dead-letter-routing-key"] == dead_letter_queue(broker.name_prefix)
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(queue, durable=True, arguments=arguments)


async def test_operators_subscribe_to_events_of_their_tenant_and_the_platforms_to_all(
    api: Fleet, database: FreshDatabase
) -> None:
    body = {"name": "x", "events": ["all"]}
    for caller in (api.application, api.executor, api.reader, api.stranger):
        assert (await caller.post("/v1/subscriptions", body)).status_code == 403
        assert (await caller.post("/v1/subscriptions/remove", {"name": "x"})).status_code == 403
    assert (await subscribe(api, "task", tenant="other"))["subscription"]["tenant"] == "other"
    assert (await subscribe(api, "task", all_tenants=True))["subscription"]["tenant"] is None
    assert (await api.stranger.get("/v1/subscriptions")).json()["subscriptions"][0]["tenant"] == (
        "other"
    )
    assert len((await api.stranger.get("/v1/subscriptions")).json()["subscriptions"]) == 1
    assert len((await api.reader.get("/v1/subscriptions")).json()["subscriptions"]) == 2
    owner = await asyncpg.connect(database.owner_url)
    changes = await owner.fetch(
        "select actor, tenant, subject_id from tenure.fact_changes where subject = 'subscription'"
        " order by at"
    )
    await owner.close()
    assert [tuple(row) for row in changes] == [("ops", "other", "billing"), ("ops", "*", "billing")]


async def test_bad_input_subscribes_to_nothing_and_says_what_to_do(api: Fleet) -> None:
    for body, said in (
        ({"name": "x", "events": []}, "events"),
        ({"name": "x", "events": ["task.done"]}, "states of task are"),
        ({"name": "X", "events": ["task"]}, "name"),
        ({"name": "x", "events": ["task"], "dedupe_retention_seconds": 0}, "greater than 0"),
        ({"name": "x", "events": ["task"], "tenant": "a", "all_tenants": True}, "not both"),
        ({"name": "x", "events": ["task"], "tenant": "No Tenant"}, "tenant"),
    ):
        refused = await api.operator.post("/v1/subscriptions", body)
        assert refused.status_code == 422, refused.text
        assert said in refused.text
    assert (await api.reader.get("/v1/subscriptions")).json() == {"subscriptions": []}


async def test_an_operator_subscribes_looks_and_removes_by_commands(api: Fleet) -> None:
    words = ("subscription", "add", "audit", "all", "--all-tenants", "--dedupe-retention", "30d")
    code, out, err = await tenure(api, *words, "-o", "json")
    assert code == Exit.DONE, err
    made = json.loads(out)
    assert made["bound"] is True
    assert made["subscription"]["dedupe_retention_seconds"] == 30 * 86_400
    code, out, _ = await tenure(api, *words)
    assert "whole streams   task, attempt, node" in out
    code, out, _ = await tenure(api, "subscription", "list")
    assert out.splitlines()[1].split()[:2] == ["audit", "(all)"]
    code, out, _ = await tenure(api, "subscription", "remove", "audit", "--all-tenants")
    assert (code, out) == (Exit.DONE, "audit: removed\n")
    code, out, _ = await tenure(api, "subscription", "list", "-o", "json")
    assert json.loads(out) == {"subscriptions": []}
