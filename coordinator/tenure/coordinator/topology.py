"""Compares the broker with what must be on it, and mends it. AMQP alone: no management interface.

A passive declaration tells what is missing, and one with the properties that it must have tells
what is different; neither changes what is there. A queue that says it is empty is asked for a
message: one without a leader does not answer. Bindings cannot be asked for; stating them again
changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
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
_CLOSE_SECONDS: Final = 1.0
_AT_ONCE: Final = 16
"""Queues that are looked at side by side: each without a leader takes its time."""
_Broken: Final = (AMQPError, OSError, RuntimeError, TimeoutError)
_NEXT_STEP: Final = {
    Fitness.OK: "",
    Fitness.MISSING: "Run `tenure topology apply`; the coordinator does it by itself too.",
    Fitness.DIFFERENT: "Move what is in it elsewhere, then `tenure topology apply --replace NAME`.",
    Fitness.SILENT: "It has no leader: bring the broker's nodes back, or give up what is in it with"
    " `tenure topology apply --replace NAME`, and send a subscription's events once more with"
    " `tenure outbox replay --to NAME`.",
}
_Action = Callable[[AbstractChannel], Awaitable[None]]


class Line:
    """A connection to look at the broker over, opened again after an operation that closed it: some
    releases close the whole connection over a queue of which no member lives."""

    def __init__(self, connect: Callable[[], Awaitable[AbstractConnection]]) -> None:
        self._connect = connect
        self._connection: AbstractConnection | None = None
        self._opening = asyncio.Lock()

    async def apart(self, action: _Action, *, seconds: float = _SECONDS) -> None:
        """On a channel of its own, which a refusal closes. Raises TimeoutError without an answer,
        and what a lost connection raises."""
        try:
            async with asyncio.timeout(seconds):
                channel = await self._channel()
                try:
                    await action(channel)
                finally:
                    with suppress(*_Broken):
                        async with asyncio.timeout(_CLOSE_SECONDS):
                            await channel.close()
        except asyncio.CancelledError as error:
            # The library also cancels what waits on a connection that it gives up.
            task = asyncio.current_task()
            if task is None or task.cancelling() > 0:
                raise
            raise ConnectionError("the broker closed the connection") from error

    async def close(self) -> None:
        """Leave the broker, which need not answer."""
        if self._connection is not None:
            with suppress(*_Broken):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._connection.close()

    async def _channel(self) -> AbstractChannel:
        async with self._opening:
            if self._connection is None or self._connection.is_closed:
                self._connection = await self._connect()
        return await self._connection.channel(publisher_confirms=False)


@asynccontextmanager
async def line(connect: Callable[[], Awaitable[AbstractConnection]]) -> AsyncIterator[Line]:
    """A line for the length of a block."""
    made = Line(connect)
    try:
        yield made
    finally:
        await made.close()


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
    over: Line, prefix: str, queues: Mapping[str, Mapping[str, Any]]
) -> tuple[TopologyFinding, ...]:
    """Look at the exchange and at these queues, and change nothing. Raises what a lost connection
    raises."""
    exchange = await _examine_exchange(over, events_exchange(prefix))
    return exchange, *await examine_queues(over, queues)


async def examine_queues(
    over: Line, queues: Mapping[str, Mapping[str, Any]]
) -> tuple[TopologyFinding, ...]:
    """The same of these queues alone."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def beside_others(name: str, arguments: Mapping[str, Any]) -> TopologyFinding | None:
        async with turns:
            try:
                return await _examine_queue(over, name, dict(arguments))
            except _Broken:
                return None

    async with asyncio.TaskGroup() as group:
        tasks = {one: group.create_task(beside_others(one, queues[one])) for one in queues}
    found = []
    for name, task in tasks.items():
        # One that closes the connection takes answers of others along: they are asked for alone.
        finding = task.result() or await _examine_queue(over, name, dict(queues[name]), alone=True)
        found.append(finding)
    return tuple(found)


async def replace(
    over: Line,
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
            await over.apart(delete, seconds=3 * _SECONDS)


async def _examine_exchange(over: Line, name: str) -> TopologyFinding:
    async def passive(channel: AbstractChannel) -> None:
        await channel.get_exchange(name, ensure=True)

    async def exact(channel: AbstractChannel) -> None:
        await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)

    return await _judged(over, BrokerObject.EXCHANGE, name, passive, exact)


async def _examine_queue(
    over: Line, name: str, arguments: dict[str, Any], *, alone: bool = False
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

    found = await _judged(over, BrokerObject.QUEUE, name, passive, exact, alone=alone)
    return found.model_copy(update=counts)


async def _judged(
    over: Line, kind: BrokerObject, name: str, passive: _Action, exact: _Action,
    *, alone: bool = True,
) -> TopologyFinding:  # fmt: skip
    """Raises what a lost connection raises; ``alone``: only where it is not lost over this."""
    fitness, says = Fitness.OK, ""
    try:
        await over.apart(passive)
        fitness = Fitness.DIFFERENT
        await over.apart(exact, seconds=2 * _SECONDS)
        fitness = Fitness.OK
    except ChannelNotFoundEntity as error:
        fitness, says = Fitness.MISSING, str(error)
    except ChannelClosed as error:
        says = str(error)
        if fitness is Fitness.OK:  # not even a passive declaration is permitted
            fitness = Fitness.DIFFERENT
    except TimeoutError:
        await over.apart(_nothing)  # raises where the broker does not answer at all
        fitness, says = Fitness.SILENT, f"no answer within {_SECONDS:g} s"
    except (AMQPError, OSError, RuntimeError) as error:
        if not alone:
            raise
        await over.apart(passive)  # raises where the broker is away
        fitness, says = Fitness.SILENT, f"{str(error) or type(error).__name__}"
    return TopologyFinding(
        kind=kind,
        name=name,
        fitness=fitness,
        says=says,
        next_step=_NEXT_STEP[fitness].replace("NAME", name),
    )


async def _nothing(_: AbstractChannel) -> None:
    """A channel is opened for it, which is all that is asked."""
