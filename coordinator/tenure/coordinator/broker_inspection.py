"""Facts about a broker and a login to it, for `tenure doctor`. Leaves nothing behind."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import AMQPError, ChannelClosed, PublishError

from tenure.contract.topology import dead_letter_queue, events_exchange
from tenure.coordinator.broker_refusals import refusal

_SECONDS: Final = 10.0
_Action = Callable[[AbstractChannel], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What was found. ``refused``: what the login may not do, in words, of what was tried."""

    product: str
    exchange_exists: bool
    dead_letters_exist: bool
    refused: tuple[str, ...]


async def inspect(url: str, name_prefix: str, *, may_declare: bool) -> BrokerFacts:
    """Look at the broker as a coordinator (``may_declare``) or a relay would use it.

    Raises BrokerUnreachable, BrokerRefused, BrokerUntrusted.
    """
    try:
        async with asyncio.timeout(3 * _SECONDS):
            async with await aio_pika.connect(url, timeout=_SECONDS) as connection:
                return await _look(connection, name_prefix, may_declare)
    except (AMQPError, OSError, RuntimeError, TimeoutError) as error:
        raise refusal(error) from error


async def greet(url: str) -> str:
    """Log in; the broker's name and version. Raises as ``inspect`` does."""
    try:
        async with await aio_pika.connect(url, timeout=_SECONDS) as connection:
            return _product(connection)
    except (AMQPError, OSError, RuntimeError, TimeoutError) as error:
        raise refusal(error) from error


async def _look(connection: AbstractConnection, name_prefix: str, may_declare: bool) -> BrokerFacts:
    probe = f"{name_prefix}.doctor.{secrets.token_hex(8)}"
    tried = {}
    if may_declare:
        # Exclusive: it goes with this connection.
        tried[f"declare a queue called {probe}"] = await _objection(
            connection, lambda channel: channel.declare_queue(probe, exclusive=True)
        )
        tried[f"read a queue called {probe}"] = await _objection(
            connection, lambda channel: _read(channel, probe)
        )
    tried["publish to the default exchange"] = await _objection(
        connection, lambda channel: _publish(channel, probe)
    )
    exchange, dead_letters = events_exchange(name_prefix), dead_letter_queue(name_prefix)
    return BrokerFacts(
        product=_product(connection),
        exchange_exists=not await _objection(connection, lambda one: one.get_exchange(exchange)),
        dead_letters_exist=not await _objection(
            connection, lambda one: one.get_queue(dead_letters)
        ),
        refused=tuple(f"{words}: {reason}" for words, reason in tried.items() if reason),
    )


async def _objection(connection: AbstractConnection, action: _Action) -> str:
    """What the broker says against it; empty when it lets us. On a channel of its own, which a
    refusal closes."""
    channel = await connection.channel(on_return_raises=True)
    try:
        async with asyncio.timeout(_SECONDS):
            await action(channel)
    except ChannelClosed as error:
        return str(error)
    finally:
        with suppress(AMQPError, RuntimeError):
            await channel.close()
    return ""


async def _read(channel: AbstractChannel, queue: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).get(fail=False)


async def _publish(channel: AbstractChannel, queue: str) -> None:
    """To the probing queue, which goes with the connection, or to nobody."""
    with suppress(PublishError):
        await channel.default_exchange.publish(aio_pika.Message(b""), queue, mandatory=True)


def _product(connection: AbstractConnection) -> str:
    transport = connection.transport
    properties = {} if transport is None else transport.connection.server_properties
    words = (properties.get(name) for name in ("product", "version"))
    return " ".join(word for word in words if isinstance(word, str)) or "an AMQP broker"
