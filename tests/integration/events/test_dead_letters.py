"""Dead letters: what queues give up is recorded before it goes, seen, and sent again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aio_pika
import asyncpg
import pytest
from aio_pika.abc import AbstractChannel

from tenure.cli.exits import Exit
from tenure.contract.events import EVENT_ID_HEADER
from tenure.contract.topology import DELIVERY_LIMIT, dead_letter_queue, events_exchange
from tenure.coordinator.store.dead_letters import CameBack, DeadLetters
from tenure.coordinator.store.postgres import Pool, open_pool
from tenure.coordinator.store.reading import PoolReader
from tests.support import golden
from tests.support.commands import tenure, tenure_json
from tests.support.coordinator import Fleet, fleet, until
from tests.support.isolation import BrokerSpace, FreshDatabase

BODY = golden.messages()["task open"]


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


@pytest.fixture
async def channel(broker: BrokerSpace) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(broker.url) as connection:
        yield await connection.channel(on_return_raises=True)


async def subscribed(api: Fleet) -> str:
    """The queue of a new subscription."""
    reply = await api.operator.post("/v1/subscriptions", {"name": "billing", "events": ["task"]})
    assert reply.json()["bound"]
    return str(reply.json()["subscription"]["queue"])


async def send(
    channel: AbstractChannel, queue: str, body: bytes = BODY, headers: Any = None
) -> None:
    """A message to a queue, as the relay makes them."""
    message = aio_pika.Message(body, headers=headers, delivery_mode=2, message_id=uuid4().hex)
    await channel.default_exchange.publish(message, queue)


async def received(channel: AbstractChannel, queue: str) -> aio_pika.abc.AbstractIncomingMessage:
    """The next message of a queue."""

    async def look() -> Any:
        return await (await channel.get_queue(queue, ensure=False)).get(fail=False)

    found = await until(look)
    assert isinstance(found, aio_pika.abc.AbstractIncomingMessage)
    return found


async def give_up(channel: AbstractChannel, queue: str) -> bytes:
    """Refuse the next message of a queue for good; its body."""
    found = await received(channel, queue)
    await found.reject(requeue=False)
    return found.body


async def letters(api: Fleet, number: int, **query: Any) -> list[Any]:
    """Dead letters, once there are so many; newest first."""

    async def look() -> Any:
        reply = await api.reader.get("/v1/dead-letters", **query)
        assert reply.status_code == 200, reply.text
        found = reply.json()["dead_letters"]
        return (found,) if len(found) == number else None

    (found,) = await until(look)
    assert isinstance(found, list)
    return found


@pytest.mark.requirement("EVENT-03")
async def test_what_a_queue_gave_up_is_recorded_sent_again_and_counted_when_it_comes_back(
    api: Fleet, channel: AbstractChannel
) -> None:
    queue = await subscribed(api)
    await send(channel, queue)
    await give_up(channel, queue)
    (one,) = await letters(api, 1)
    assert (one["queue"], one["reason"], one["state"], one["times"]) == (
        queue, "rejected", "waiting", 1,
    )  # fmt: skip
    assert (one["tenant"], one["event_type"]) == ("default", "tenure.task.open")
    number = one["dead_letter_id"]
    detail = (await api.reader.get(f"/v1/dead-letters/{number}")).json()
    assert detail["body"].encode() == BODY

    async def counted() -> bool:
        metrics = (await api.nobody.get("/metrics")).text
        return 'tenure_dead_letters_total{reason="rejected"} 1.0' in metrics

    await until(counted)
    redriven = await api.operator.post(f"/v1/dead-letters/{number}/redrive", {"reason": "mended"})
    assert redriven.status_code == 200, redriven.text
    assert (redriven.json()["state"], redriven.json()["settled_by"]) == ("redriven", "ops")
    again = await received(channel, queue)
    assert (again.body, again.headers[EVENT_ID_HEADER]) == (BODY, one["event_id"])
    await again.reject(requeue=False)

    async def twice() -> bool:
        (found,) = await letters(api, 1)
        return (found["times"], found["state"]) == (2, "waiting")

    await until(twice)


async def test_a_message_that_is_delivered_too_often_is_given_up_by_the_queue_alone(
    api: Fleet, channel: AbstractChannel, broker: BrokerSpace
) -> None:
    """Whatever is in its headers: the queue counts by itself (T18)."""
    queue = await subscribed(api)
    await send(channel, queue, headers={"x-delivery-count": 0, "x-death": "none"})
    for _ in range(DELIVERY_LIMIT + 1):
        await (await received(channel, queue)).reject(requeue=True)
    (one,) = await letters(api, 1)
    assert (one["queue"], one["reason"]) == (queue, "delivery_limit")


async def test_an_event_and_what_is_none_are_told_apart_and_nothing_in_them_is_trusted(
    api: Fleet, channel: AbstractChannel, broker: BrokerSpace
) -> None:
    dead = dead_letter_queue(broker.name_prefix)
    death = {"queue": "q\x00", "reason": "x" * 99}
    await send(channel, dead, b"\x00\xff", {"x-death": [death]})
    await send(channel, dead, b"no event", {EVENT_ID_HEADER: "e" * 300, "x-death": [1]})
    await send(channel, dead, b"large" * 300_000)
    found = await letters(api, 3)
    large, named, odd = found
    assert (odd["queue"], odd["reason"], odd["tenant"]) == ("q\ufffd", "unknown", None)
    assert odd["event_id"].startswith("sha256:")
    assert (named["queue"], named["event_id"]) == ("unknown", "e" * 255)
    assert large["body_bytes"] == 1_500_000
    detail = (await api.reader.get(f"/v1/dead-letters/{odd['dead_letter_id']}")).json()
    assert detail["body"] == "\ufffd\ufffd"
    refused = await api.operator.post(
        f"/v1/dead-letters/{large['dead_letter_id']}/redrive", {"reason": "x"}
    )
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")


async def test_a_dead_letter_of_a_queue_that_is_gone_is_not_lost_by_sending_it(
    api: Fleet, channel: AbstractChannel, broker: BrokerSpace
) -> None:
    gone = {"queue": f"{broker.name_prefix}.node.default.gone", "reason": "rejected"}
    await send(channel, dead_letter_queue(broker.name_prefix), headers={"x-death": [gone]})
    (one,) = await letters(api, 1)
    number = one["dead_letter_id"]
    refused = await api.operator.post(f"/v1/dead-letters/{number}/redrive", {"reason": "x"})
    assert (refused.status_code, refused.json()["code"]) == (409, "unroutable")
    assert (await letters(api, 1))[0]["state"] == "waiting"
    discarded = await api.operator.post(f"/v1/dead-letters/{number}/discard", {"reason": "gone"})
    assert discarded.json()["state"] == "discarded"
    assert await letters(api, 0, state="waiting") == []


@asynccontextmanager
async def doubted(database: FreshDatabase) -> AsyncIterator[None]:
    """The database is taken for a copy of another one."""
    owner = await asyncpg.connect(database.owner_url)
    change = "update tenure.authority set system_identifier = system_identifier + $1::int"
    await owner.execute(change, 1)
    try:
        yield
    finally:
        await owner.execute(change, -1)
        await owner.close()


@asynccontextmanager
async def replica_pool(database: FreshDatabase) -> AsyncIterator[Pool]:
    """Connections with the rights of a coordinator."""
    async with await open_pool(
        database.coordinator_url, size=1, application_name="test", pooled=database.pooled
    ) as pool:
        yield pool


async def test_a_database_in_doubt_records_nothing_and_lets_nothing_go(
    api: Fleet, channel: AbstractChannel, database: FreshDatabase
) -> None:
    """A copy of the database must not take the messages of the real one."""
    queue = await subscribed(api)
    async with doubted(database), replica_pool(database) as pool:
        await send(channel, queue)
        await give_up(channel, queue)
        letter = CameBack(queue, "e", None, None, None, "rejected", "m", 1, b"x")
        assert not await DeadLetters(PoolReader(pool, deadline_seconds=10)).record([letter])
        assert await letters(api, 0) == []
    (one,) = await letters(api, 1)
    assert (one["queue"], one["times"]) == (queue, 1)


async def test_two_events_that_are_given_up_at_once_are_both_recorded(
    api: Fleet, channel: AbstractChannel
) -> None:
    queue = await subscribed(api)
    bodies = [body for name, body in golden.messages().items() if name.startswith("task ")][:3]
    await asyncio.gather(*(send(channel, queue, body) for body in bodies))
    given_up = {await give_up(channel, queue) for _ in bodies}
    found = await letters(api, len(bodies), queue=queue)
    assert given_up == set(bodies)
    assert len({one["event_id"] for one in found}) == len(bodies)


async def test_an_operator_lists_shows_sends_again_and_discards_by_commands(
    api: Fleet, channel: AbstractChannel
) -> None:
    queue = await subscribed(api)
    bodies = [body for name, body in golden.messages().items() if name.startswith("task ")][:2]
    for body in bodies:
        await send(channel, queue, body)
        await give_up(channel, queue)
    await letters(api, 2)
    page = await tenure_json(api, "dead-letter", "list", "--limit", "1")
    number = page["dead_letters"][0]["dead_letter_id"]
    assert page["next"] == number
    code, out, err = await tenure(api, "dead-letter", "list", "--queue", queue)
    assert (code, err) == (Exit.DONE, "")
    assert out.count("waiting") == 2
    assert (await tenure_json(api, "dead-letter", "show", str(number)))["body"].encode() in bodies
    done = await tenure_json(api, "dead-letter", "discard", str(number), "--reason", "a test")
    assert [one["state"] for one in done] == ["discarded"]
    code, out, _ = await tenure(
        api, "dead-letter", "redrive", "--queue", queue, "--reason", "a test"
    )
    assert (code, out.endswith(": redriven\n"), out.count("\n")) == (Exit.DONE, True, 1)
    assert (await received(channel, queue)).body in bodies
    code, out, _ = await tenure(api, "dead-letter", "discard", "--queue", queue, "--reason", "x")
    assert out == "nothing waits there\n"


async def test_dead_letters_are_their_tenants_and_settled_by_operators(
    api: Fleet, channel: AbstractChannel, broker: BrokerSpace, database: FreshDatabase
) -> None:
    queue = await subscribed(api)
    await send(channel, queue)
    await give_up(channel, queue)
    (one,) = await letters(api, 1)
    path = f"/v1/dead-letters/{one['dead_letter_id']}"
    for caller in (api.application, api.executor, api.stranger):
        assert (await caller.get("/v1/dead-letters")).status_code == 403
    for caller in (api.application, api.executor, api.reader, api.stranger):
        for verb in ("redrive", "discard"):
            assert (await caller.post(f"{path}/{verb}", {"reason": "x"})).status_code == 403
    for odd in ("0", "x", "9" * 30, "-1"):
        assert (await api.reader.get(f"/v1/dead-letters/{odd}")).status_code == 404
    for body in ({}, {"reason": ""}, {"reason": "x" * 1001}):
        assert (await api.operator.post(f"{path}/discard", body)).status_code == 422
    owner = await asyncpg.connect(database.owner_url)
    await owner.execute("update tenure.dead_letters set tenant = 'acme'")
    seen = await owner.fetchval(
        "select tenure.settle_dead_letter('other', $1, 'discarded', 'x', 'y')",
        one["dead_letter_id"],
    )
    await owner.close()
    assert seen is False


async def test_messages_on_the_exchange_pass_the_dead_letters_by(
    api: Fleet, channel: AbstractChannel, broker: BrokerSpace
) -> None:
    queue = await subscribed(api)
    exchange = await channel.get_exchange(events_exchange(broker.name_prefix), ensure=False)
    await exchange.publish(aio_pika.Message(BODY, delivery_mode=2), "default.task.open")
    assert (await received(channel, queue)).body == BODY
    assert await letters(api, 0) == []
