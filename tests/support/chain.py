"""Tasks through all parts, by the queue of their node: for tests of how the parts are connected."""

import asyncio
import secrets

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractQueue
from aiormq.exceptions import ChannelNotFoundEntity

from tenure.contract.codec import decode_event
from tests.support.coordinator import Fleet, registration


async def carry_through(api: Fleet, broker_url: str, tasks: int = 1) -> None:
    """Submit tasks for a new node, wait for their messages in its queue, deliver, read the results.

    A relay has to run. ``broker_url`` is of somebody who may read the node's queue.
    """
    node_id = f"node-{secrets.token_hex(4)}"
    body = registration(node_id, (node_id,), slots=tasks)
    reply = await api.executor.post("/v1/nodes", body)
    assert reply.status_code == 200, reply.text
    task_ids = [await api.submit(type=node_id) for _ in range(tasks)]
    await _arrived(broker_url, reply.json()["queue"], set(task_ids))
    waiting = [api.application.get(f"/v1/tasks/{one}/result?wait=30") for one in task_ids]
    results = asyncio.gather(*waiting)
    for task_id in task_ids:
        assignment = await api.assigned(body["incarnation"], task_id, node_id)
        for kind, values in (("take", {}), ("deliver", {"output": {"of": task_id}})):
            told = await api.report(body["incarnation"], assignment, kind, node_id, **values)
            assert told.outcome == "applied"
    assert [one.json()["output"] for one in await results] == [{"of": one} for one in task_ids]


async def _arrived(broker_url: str, name: str, task_ids: set[str]) -> None:
    missing = set(task_ids)
    async with await aio_pika.connect(broker_url) as connection:
        queue = await _declared(connection, name)
        while missing:
            message = await queue.get(fail=False)
            if message is None:
                await asyncio.sleep(0.02)
                continue
            await message.ack()
            missing.discard(decode_event(message.body).task_id or "")


async def _declared(connection: AbstractConnection, name: str) -> AbstractQueue:
    """The queue, once the coordinator has declared it: a missing one costs a channel."""
    while True:
        channel = await connection.channel()
        try:
            return await channel.get_queue(name)
        except ChannelNotFoundEntity:
            await asyncio.sleep(0.02)
