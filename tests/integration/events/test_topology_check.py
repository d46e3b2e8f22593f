"""What is on the broker beside what must be there: told, mended, and a queue that is no use."""

from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelClosed

from tenure.cli.exits import Exit
from tenure.contract.topology import dead_letter_queue, events_exchange
from tenure.coordinator.broker import Broker
from tests.support.commands import tenure, tenure_json
from tests.support.consumers import subscribe
from tests.support.coordinator import Fleet, fleet, until
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


@pytest.fixture
async def channel(broker: BrokerSpace) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(broker.url) as connection:
        yield await connection.channel(on_return_raises=True)


async def fitness(api: Fleet) -> dict[str, str]:
    """What each thing is, by name."""
    reply = await api.reader.get("/v1/topology")
    assert reply.status_code == 200, reply.text
    return {one["name"]: one["fitness"] for one in reply.json()["findings"]}


async def queue_of(api: Fleet, incarnation: str, broker: BrokerSpace) -> str:
    return f"{broker.name_prefix}.node.default.{incarnation}"


async def test_what_is_missing_is_told_and_declared(
    api: Fleet, broker: BrokerSpace, channel: AbstractChannel
) -> None:
    node = await queue_of(api, await api.register(), broker)
    billing = await subscribe(api, "task")
    exchange, dead = events_exchange(broker.name_prefix), dead_letter_queue(broker.name_prefix)
    assert await fitness(api) == dict.fromkeys((exchange, dead, billing, node), "ok")
    await channel.queue_delete(node)
    await channel.exchange_delete(exchange)
    assert await fitness(api) == {exchange: "missing", dead: "ok", billing: "ok", node: "missing"}
    mended = await api.operator.post("/v1/topology/apply", {})
    assert {one["fitness"] for one in mended.json()["findings"]} == {"ok"}
    found = await channel.get_exchange(exchange, ensure=True)
    await found.publish(aio_pika.Message(b"x"), "default.task.open", mandatory=True)


async def test_what_is_different_is_told_and_replaced_only_when_it_is_named(
    api: Fleet, broker: BrokerSpace, channel: AbstractChannel
) -> None:
    billing = f"{broker.name_prefix}.subscription.default.billing"
    await channel.declare_queue(billing, durable=True)
    await channel.default_exchange.publish(aio_pika.Message(b"kept"), billing)
    reply = await api.operator.post("/v1/subscriptions", {"name": "billing", "events": ["task"]})
    assert reply.status_code == 200
    (finding,) = [
        one
        for one in (await api.reader.get("/v1/topology")).json()["findings"]
        if one["name"] == billing
    ]
    assert (finding["fitness"], finding["messages"]) == ("different", 1)
    assert "inequivalent arg 'x-" in finding["says"]
    assert f"--replace {billing}" in finding["next_step"]
    await api.operator.post("/v1/topology/apply", {})
    assert (await fitness(api))[billing] == "different"
    code, out, _ = await tenure(api, "topology", "check")
    assert code == Exit.REFUSED
    assert (
        f"To do: Move what is in it elsewhere, then `tenure topology apply --replace {billing}`"
        in out
    )
    mended = await tenure_json(api, "topology", "apply", "--replace", billing)
    assert {one["fitness"] for one in mended["findings"]} == {"ok"}
    found = await channel.get_exchange(events_exchange(broker.name_prefix), ensure=True)
    await found.publish(aio_pika.Message(b"x"), "default.task.open", mandatory=True)


async def test_the_broker_is_looked_after_by_operators_of_the_platform(api: Fleet) -> None:
    for caller in (api.application, api.executor, api.stranger):
        assert (await caller.get("/v1/topology")).status_code == 403
    for caller in (api.application, api.executor, api.reader, api.stranger):
        assert (await caller.post("/v1/topology/apply", {})).status_code == 403
    refused = await api.operator.post("/v1/topology/apply", {"replace": [1]})
    assert refused.status_code == 422


@pytest.mark.requirement("OPS-01")
async def test_a_queue_that_its_node_cannot_consume_is_made_anew(
    database: FreshDatabase,
    broker: BrokerSpace,
    channel: AbstractChannel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node does not even try. One that is consumed stays as it is."""
    defaults = Broker.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "compare_seconds", 0.05)
    monkeypatch.setitem(defaults, "lonely_seconds", 2.0)
    async with fleet(database, broker) as api:
        incarnation, other = await api.register("node-1"), await api.register("node-2")
        queue, served = [await queue_of(api, one, broker) for one in (incarnation, other)]

        async def nothing(_: Any) -> None:
            return

        await (await channel.get_queue(served)).consume(nothing)
        await channel.default_exchange.publish(aio_pika.Message(b"x"), queue)

        async def made_anew() -> bool:
            for node, one in (("node-1", incarnation), ("node-2", other)):
                renewals = {"incarnation": one, "leases": []}
                beat = await api.executor.post(f"/v1/nodes/{node}/renewals", renewals)
                assert beat.status_code == 200, beat.text
            async with await aio_pika.connect(broker.url) as connection:
                try:
                    own = await connection.channel()
                    declared = await own.declare_queue(queue, passive=True, timeout=10)
                except (ChannelClosed, TimeoutError):
                    return False  # at this moment it is being made anew
                return declared.declaration_result.message_count == 0

        await until(made_anew)
        served_count = (await channel.declare_queue(served, passive=True)).declaration_result
        assert served_count.consumer_count == 1
