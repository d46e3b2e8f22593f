"""Compares the broker with what must be on it, and mends it. AMQP alone: no management interface.

A passive declaration tells what is missing, and one with the properties that it must have tells
what is different; neither changes what is there. A queue that says it is empty is asked for a
message: one without a leader does not answer. Bindings cannot be asked for; stating them again
changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import AMQPError, ChannelClosed, ChannelNotFoundEntity

from tenure.contract.broker_report import BrokerObject, Fitness, TopologyFinding
from tenure.contract.topology import (
    dead_letter_queue,
    dead_letter_queue_arguments,
    events_exchange,
    node_queue_arguments,
    subscription_queue_arguments,
)
from tenure.coordinator.store.subscriptions import SubscriptionQueue

_SECONDS: Final = 5.0
_NEXT_STEP: Final = {
    Fitness.OK: "",
    Fitness.MISSING: "Run `tenure topology apply`; the coordinator does it by itself too.",
    Fitness.DIFFERENT: "Move what is in it elsewhere, then `tenure topology apply --replace NAME`.",
    Fitness.SILENT: "It has no leader: bring the broker's nodes back, or give up what is in it with"
    " `tenure topology apply --replace NAME`.",
}


def wanted_queues(
    prefix: str, nodes: Mapping[str, bool], subscriptions: Sequence[SubscriptionQueue]
) -> dict[str, dict[str, Any]]:
    """Arguments of every queue that must exist, by name."""
    return {
        dead_letter_queue(prefix): dead_letter_queue_arguments(),
        **{one.queue: subscription_queue_arguments(prefix) for one in subscriptions if one.needed},
        **{queue: node_queue_arguments(prefix) for queue, needed in nodes.items() if needed},
    }


async def examine(
    connection: AbstractConnection, prefix: str, queues: Mapping[str, Mapping[str, Any]]
) -> tuple[TopologyFinding, ...]:
    """Look at the exchange and at these queues, and change nothing. Raises what a lost connection
    raises."""
    found = [await _examine_exchange(connection, events_exchange(prefix))]
    for name, arguments in queues.items():
        found.append(await _examine_queue(connection, name, dict(arguments)))
    return tuple(found)


async def replace(
    connection: AbstractConnection,
    findings: Sequence[TopologyFinding],
    names: Collection[str],
) -> None:
    """Delete, of what is different or silent, what is named; it is declared again afterwards."""
    for finding in findings:
        if finding.name in names and finding.fitness in (Fitness.DIFFERENT, Fitness.SILENT):

            async def delete(channel: AbstractChannel, finding: TopologyFinding = finding) -> None:
                if finding.kind is BrokerObject.EXCHANGE:
                    await channel.exchange_delete(finding.name)
                else:
                    await channel.queue_delete(finding.name)

            # A queue without a leader takes some seconds to go.
            await _apart(connection, delete, seconds=3 * _SECONDS)


async def _examine_exchange(connection: AbstractConnection, name: str) -> TopologyFinding:
    async def passive(channel: AbstractChannel) -> None:
        await channel.get_exchange(name, ensure=True)

    async def exact(channel: AbstractChannel) -> None:
        await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)

    return await _judged(connection, BrokerObject.EXCHANGE, name, passive, exact)


async def _examine_queue(
    connection: AbstractConnection, name: str, arguments: dict[str, Any]
) -> TopologyFinding:
    counts: dict[str, int | None] = {}

    async def passive(channel: AbstractChannel) -> None:
        queue = await channel.declare_queue(name, passive=True)
        counts["messages"] = queue.declaration_result.message_count
        counts["consumers"] = queue.declaration_result.consumer_count

    async def exact(channel: AbstractChannel) -> None:
        queue = await channel.declare_queue(name, durable=True, arguments=arguments)
        if not counts["messages"]:
            message = await queue.get(fail=False, timeout=_SECONDS)
            if message is not None:  # it came in between
                await message.nack(requeue=True)

    found = await _judged(connection, BrokerObject.QUEUE, name, passive, exact)
    return found.model_copy(update=counts)


async def _judged(
    connection: AbstractConnection,
    kind: BrokerObject,
    name: str,
    passive: Callable[[AbstractChannel], Awaitable[None]],
    exact: Callable[[AbstractChannel], Awaitable[None]],
) -> TopologyFinding:
    fitness, says = Fitness.OK, ""
    try:
        await _apart(connection, passive)
        fitness = Fitness.DIFFERENT
        await _apart(connection, exact, seconds=2 * _SECONDS)
        fitness = Fitness.OK
    except ChannelNotFoundEntity as error:
        fitness, says = Fitness.MISSING, str(error)
    except ChannelClosed as error:
        says = str(error)
        if fitness is Fitness.OK:  # not even a passive declaration is permitted
            fitness = Fitness.DIFFERENT
    except TimeoutError:
        fitness, says = Fitness.SILENT, f"no answer within {_SECONDS:g} s"
    return TopologyFinding(
        kind=kind,
        name=name,
        fitness=fitness,
        says=says,
        next_step=_NEXT_STEP[fitness].replace("NAME", name),
    )


async def _apart(
    connection: AbstractConnection,
    action: Callable[[AbstractChannel], Awaitable[None]],
    *,
    seconds: float = _SECONDS,
) -> None:
    """On a channel of its own, which a refusal closes."""
    async with asyncio.timeout(seconds):
        channel = await connection.channel(publisher_confirms=False)
        try:
            await action(channel)
        finally:
            with suppress(AMQPError, RuntimeError, TimeoutError):
                await channel.close()
