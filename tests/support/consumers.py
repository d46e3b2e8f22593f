"""Consumers of events against a real coordinator, relay and broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tenure.executor.consumer import EventConsumer
from tenure.executor.consumer_runner import run_until
from tenure.executor.consumer_settings import ConsumerSettings, load_settings
from tenure.executor.stopping import Stopping
from tests.support.coordinator import Fleet
from tests.support.isolation import BrokerSpace

READER_TOKEN = "read-only-token-001"


def settings_of(fleet: Fleet, broker: BrokerSpace, **values: Any) -> ConsumerSettings:
    """Settings of a consumer of this fleet's events."""
    return load_settings(
        **{
            "url": fleet.coordinator.url,
            "token": READER_TOKEN,
            "broker_url": broker.url,
            "drain_seconds": 20.0,
            **values,
        }
    )


@asynccontextmanager
async def consuming(consumer: EventConsumer, settings: ConsumerSettings) -> AsyncIterator[Stopping]:
    """A consumer for the length of a block; drained at its end."""
    stopping = Stopping(settings.drain_seconds)
    task = asyncio.create_task(run_until(consumer, settings, stopping))
    try:
        yield stopping
        stopping.ask()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def subscribe(fleet: Fleet, *events: str, name: str = "billing", **values: Any) -> str:
    """A subscription; its queue."""
    reply = await fleet.operator.post(
        "/v1/subscriptions", {"name": name, "events": list(events)} | values
    )
    assert reply.status_code == 200, reply.text
    assert reply.json()["bound"]
    return str(reply.json()["subscription"]["queue"])
