"""What the coordinator keeps on the broker, on a real one."""

import asyncio
from collections.abc import AsyncIterator

import aio_pika
import asyncpg
import pytest
from aio_pika.exceptions import ChannelClosed, PublishError

from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.contract.topology import dead_letter_queue, events_exchange, node_queue_arguments
from tenure.coordinator.broker import COMPARISONS_PER_CHECK
from tenure.coordinator.store.postgres import open_pool
from tenure.coordinator.store.reading import PoolReader
from tenure.coordinator.store.reads import Reads
from tests.support.coordinator import Fleet, fleet, registration, running, settings_for, until
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.waiting import eventually


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


async def exists(url: str, queue: str) -> bool:
    """Whether a queue exists, asked as executors do."""
    try:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(queue, passive=True, timeout=10)
    except (ChannelClosed, ConnectionError, OSError):
        return False
    return True


async def routes(space: BrokerSpace, key: str) -> bool:
    """Whether a message with this key reaches any queue."""
    async with await aio_pika.connect(space.url) as connection:
        channel = await connection.channel(on_return_raises=True)
        exchange = await channel.get_exchange(events_exchange(space.name_prefix), ensure=False)
        try:
            await exchange.publish(aio_pika.Message(b""), key, mandatory=True)
        except PublishError:
            return False
        return True


async def registered(api: Fleet, node_id: str = "node-1") -> tuple[str, str]:
    """Incarnation and queue of a new node."""
    body = registration(node_id)
    reply = await api.executor.post("/v1/nodes", body)
    assert reply.status_code == 200, reply.text
    return str(body["incarnation"]), str(reply.json()["queue"])


async def published(database: FreshDatabase) -> None:
    """As if the relay had published everything."""
    owner = await asyncpg.connect(database.owner_url)
    await owner.execute(
        "update tenure.relay_shards set position = (select max(position) from tenure.log)"
    )
    await owner.close()


async def test_the_queue_of_a_node_is_there_when_its_registration_is_answered(
    api: Fleet, broker: BrokerSpace
) -> None:
    incarnation, queue = await registered(api)
    assert queue == f"{broker.name_prefix}.node.default.{incarnation}"
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(
            queue, durable=True, arguments=node_queue_arguments(broker.name_prefix)
        )
        await channel.get_exchange(events_exchange(broker.name_prefix), ensure=True)
        await channel.get_queue(dead_letter_queue(broker.name_prefix), ensure=True)


async def test_a_queue_goes_when_its_node_is_gone_and_its_messages_are_published(
    api: Fleet, database: FreshDatabase, broker: BrokerSpace
) -> None:
    first, first_queue = await registered(api)
    assignment = await api.assigned(first, await api.submit())
    _, second_queue = await registered(api)  # the same node again: the first start is gone

    async def states() -> set[str]:
        nodes = (await api.reader.get("/v1/nodes")).json()["nodes"]
        return {node["state"] for node in nodes}

    assert await states() == {"active", "gone"}
    assert await exists(broker.url, first_queue)
    owner = await asyncpg.connect(database.owner_url)
    await owner.execute(
        "update tenure.attempts set expires_at = clock_timestamp() where ended_at is null"
    )

    async def ended() -> bool:
        return bool(
            await owner.fetchval(
                "select ended_at is not null from tenure.attempts where attempt_id = $1",
                assignment["attempt_id"],
            )
        )

    await eventually(ended)
    await published(database)
    await api.application.post("/v1/tasks", {"type": "sha256"})

    async def deleted() -> bool:
        await published(database)
        return not await exists(broker.url, first_queue)

    await eventually(deleted)
    await owner.close()
    assert await exists(broker.url, second_queue)


async def test_a_queue_stays_while_messages_for_it_wait_in_the_log(
    api: Fleet, database: FreshDatabase
) -> None:
    """The relay could not get past a message whose required queue is gone."""
    _, queue = await registered(api)
    await registered(api)
    async with await open_pool(
        database.coordinator_url, size=1, application_name="test", pooled=database.pooled
    ) as pool:
        reads = Reads(PoolReader(pool, deadline_seconds=10))
        assert (await reads.queues())[queue] is True
        await published(database)
        assert (await reads.queues())[queue] is False


@pytest.mark.timeout(300)  # a broker is started three times
@pytest.mark.requirement("OPS-01")
async def test_a_broker_that_was_away_or_wiped_gets_its_queues(
    database: FreshDatabase, private_rabbitmq: PrivateRabbitmq
) -> None:
    space = BrokerSpace(private_rabbitmq.url(), "away")
    private_rabbitmq.kill()
    settings = settings_for(database.coordinator_url, space.url, name_prefix=space.name_prefix)
    async with running(settings) as coordinator:
        api = Fleet(coordinator)

        async def serves() -> bool:
            return "database: ok" in (await api.nobody.get("/readyz")).text

        await until(serves)
        _, queue = await registered(api)
        assert "broker: broker_unreachable" in (await api.nobody.get("/readyz")).text
        assert (await api.application.post("/v1/tasks", {"type": "sha256"})).status_code == 201
        subscribed = await api.operator.post(
            "/v1/subscriptions", {"name": "billing", "events": ["task"]}
        )
        assert subscribed.json()["bound"] is False
        billing = subscribed.json()["subscription"]["queue"]
        await private_rabbitmq.start()

        async def declared() -> bool:
            return (
                await exists(space.url, queue)
                and await exists(space.url, billing)
                and await routes(space, "default.task.open")
            )

        await eventually(declared)
        private_rabbitmq.kill()
        private_rabbitmq.wipe()
        await private_rabbitmq.start()
        await eventually(declared)

        async def ready() -> bool:
            return (await api.nobody.get("/readyz")).status_code == 200

        await eventually(ready)
        await api.close()


async def test_a_queue_that_somebody_deleted_comes_back(api: Fleet, broker: BrokerSpace) -> None:
    _, queue = await registered(api)
    async with await aio_pika.connect(broker.url) as connection:
        await (await connection.channel()).queue_delete(queue)
    for number in range(COMPARISONS_PER_CHECK):
        await registered(api, f"node-{2 + number}")  # wakes a comparison

    async def back() -> bool:
        return await exists(broker.url, queue)

    await eventually(back)


async def test_a_queue_with_other_arguments_keeps_no_other_from_existing(
    api: Fleet, broker: BrokerSpace
) -> None:
    body = registration("odd")
    queue = f"{broker.name_prefix}.node.default.{body['incarnation']}"
    async with await aio_pika.connect(broker.url) as connection:
        await (await connection.channel()).declare_queue(queue, durable=True)
    assert (await api.executor.post("/v1/nodes", body)).status_code == 200
    _, other = await registered(api, "node-2")
    assert await exists(broker.url, other)


async def test_a_broker_that_refuses_the_login_is_named_and_tasks_go_on(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    wrong = f"amqp://nobody:wrong@{broker.url.rpartition('@')[2]}"
    async with running(settings_for(database.coordinator_url, wrong)) as coordinator:
        api = Fleet(coordinator)

        async def refused() -> bool:
            text = (await api.nobody.get("/readyz")).text
            return "broker: broker_refused" in text and "database: ok" in text

        await eventually(refused)
        assert (await api.nobody.get("/readyz")).status_code == 503
        assert (await api.nobody.get("/healthz")).status_code == 200
        await registered(api)
        await api.submit()
        await api.close()


async def test_two_coordinators_keep_one_topology(
    api: Fleet, database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with fleet(database, broker) as second:
        (_, one), (_, two) = await asyncio.gather(
            registered(api, "node-1"), registered(second, "node-2")
        )
        assert await exists(broker.url, one)
        assert await exists(broker.url, two)
