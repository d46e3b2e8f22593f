"""Queues that came back without a leader, on a real broker that was killed too early."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelClosed

from tenure.cli.exits import Exit
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.contract.topology import dead_letter_queue
from tenure.coordinator.broker import Broker
from tests.support.commands import tenure
from tests.support.consumers import subscribe
from tests.support.coordinator import Fleet, fleet, until
from tests.support.durability import queue_is_on_disk
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.leaderless import BeforeDeclarations
from tests.support.relays import broker_channel, consume, relaying


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that looks often."""
    defaults = Broker.__init__.__kwdefaults__
    assert defaults is not None
    for name, seconds in (("compare_seconds", 0.2), ("lonely_seconds", 2.0), ("look_seconds", 0.2)):
        monkeypatch.setitem(defaults, name, seconds)
    monkeypatch.setattr("tenure.coordinator.topology._SECONDS", 3.0)


async def fitness(api: Fleet, name: str) -> str:
    """What this thing on the broker is. On a busy machine the broker may not answer in time."""
    while (reply := await api.reader.get("/v1/topology")).status_code == 503:
        pass
    findings: dict[str, str] = {one["name"]: one["fitness"] for one in reply.json()["findings"]}
    return findings[name]


async def apply(api: Fleet, *replaced: str) -> None:
    """Mend the topology, and replace what is named; repeated as an answer may ask for."""
    while True:
        reply = await api.operator.post("/v1/topology/apply", {"replace": list(replaced)})
        if reply.status_code != 503:
            assert reply.status_code == 200, reply.text
            return


async def ready(api: Fleet) -> bool:
    return "broker: ok" in (await api.nobody.get("/readyz")).text


async def silent(api: Fleet) -> int:
    """How many queues do not answer, as an operator's monitoring sees it."""
    page = (await api.nobody.get("/metrics")).text
    (line,) = [one for one in page.splitlines() if one.startswith("tenure_broker_silent_queues ")]
    return int(float(line.split()[1]))


@asynccontextmanager
async def killed_too_early(
    database: FreshDatabase, broker: PrivateRabbitmq, *, before_everything: bool
) -> AsyncIterator[tuple[Fleet, str, str]]:
    """A coordinator whose broker was killed within a moment of the declaration of a subscription's
    queue and a node's, or of all queues; these two."""
    space = BrokerSpace(broker.url(), "t")
    before = BeforeDeclarations(broker)
    async with fleet(database, space) as api:
        await until(lambda: ready(api))
        if not before_everything:
            await queue_is_on_disk(broker, dead_letter_queue("t"))
            before = BeforeDeclarations(broker)
        billing = await subscribe(api, "task")
        node = f"t.node.default.{await api.register('node-1')}"
        before.kill()
        await broker.start()
        yield api, billing, node


@pytest.mark.requirement("OPS-01")
@pytest.mark.timeout(300)
async def test_a_nodes_queue_without_a_leader_is_made_anew_and_a_subscriptions_is_told(
    impatience: None, database: FreshDatabase, private_rabbitmq: PrivateRabbitmq
) -> None:
    """What is in a subscription's queue may be nowhere else: a person gives it up, and has it sent
    once more."""
    url = private_rabbitmq.url()
    async with killed_too_early(database, private_rabbitmq, before_everything=False) as (
        api,
        billing,
        node,
    ):
        await until(lambda: ready(api))
        renewals = {"incarnation": node.rpartition(".")[2], "leases": []}

        async def fit() -> bool:
            """The node is heard all the while."""
            await api.executor.post("/v1/nodes/node-1/renewals", renewals)
            return await fitness(api, node) == "ok"

        await until(fit)

        async def told() -> bool:
            return await silent(api) == 1

        await until(told)
        code, out, _ = await tenure(api, "topology", "check")
        assert code == Exit.REFUSED
        assert f"{billing}: no answer within 3 s" in out
        assert f"`tenure topology apply --replace {billing}`" in out

        async with broker_channel(url) as channel, relaying(database.relay_url, url, "t"):
            await api.submit()
            await apply(api)
            assert await fitness(api, billing) == "silent"
            await apply(api, billing)

            async def replaced() -> bool:
                return await fitness(api, billing) == "ok"

            await until(replaced)
            consumer = await consume(channel, billing)
            words = ("--to", billing, "--since", "1h", "--reason", "no leader", "--yes")
            await tenure(api, "outbox", "replay", *words)
            await until(lambda: some(consumer.event_ids))

        async def well() -> bool:
            return await silent(api) == 0

        await until(well)


async def some(found: set[str]) -> bool:
    return bool(found)


@pytest.mark.requirement("OPS-01")
@pytest.mark.timeout(300)
async def test_a_dead_letter_queue_without_a_leader_keeps_no_other_queue_from_existing(
    impatience: None, database: FreshDatabase, private_rabbitmq: PrivateRabbitmq
) -> None:
    async with killed_too_early(database, private_rabbitmq, before_everything=True) as (api, _, _):
        dead = dead_letter_queue("t")

        async def told() -> bool:
            return await ready(api) and await silent(api) == 2

        await until(told)
        other = f"t.node.default.{await api.register('node-2')}"

        async with broker_channel(private_rabbitmq.url()) as channel:

            async def declared() -> bool:
                return await consumers(channel, other) is not None

            await until(declared)
            await apply(api, dead)

            async def read_again() -> bool:
                return await consumers(channel, dead) == 1

            await until(read_again)


async def consumers(channel: AbstractChannel, queue: str) -> int | None:
    """How many a queue has; None where there is none."""
    try:
        declared = await channel.declare_queue(queue, passive=True)
    except ChannelClosed:
        await channel.reopen()
        return None
    return declared.declaration_result.consumer_count
