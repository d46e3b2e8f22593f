"""A coordinator, a relay and an executor with a toxic proxy in each of their connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2

from tenure.cli.chaos.toxic import ToxicProxy, toxic
from tenure.contract import topology
from tenure.relay.app import Parts
from tests.support.armed_app import executor
from tests.support.books import Arrival, Ledger, faults, read_log
from tests.support.coordinator import Fleet, fleet
from tests.support.downstream import Downstream
from tests.support.executors import (
    StatusPages,
    executing,
    registered,
    result,
    settings_of,
    status_pages,
)
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import (
    Consumer,
    all_passed,
    broker_channel,
    consume,
    declare_queue,
    relaying,
)
from tests.support.sessions import session
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Legs:
    """The connections, by who opens them and to whom."""

    coordinator_database: ToxicProxy
    coordinator_broker: ToxicProxy
    relay_database: ToxicProxy
    relay_broker: ToxicProxy
    executor_coordinator: ToxicProxy
    executor_broker: ToxicProxy
    executor_downstream: ToxicProxy

    @property
    def every(self) -> dict[str, ToxicProxy]:
        """By name."""
        return dict(vars(self))


@dataclass
class Stack:
    """What runs behind the proxies, and the books of the run, kept outside of them."""

    database: FreshDatabase
    receiver: Downstream
    legs: Legs
    api: Fleet
    relay: Parts
    pages: StatusPages
    audit: Consumer
    prefix: str
    ledger: Ledger = field(default_factory=Ledger)

    async def submit(self, count: int) -> list[str]:
        """Tasks; each request is repeated under its key until it is answered, as documented."""
        first = len(self.ledger.tasks)
        return await asyncio.gather(*(self._submit(str(n)) for n in range(first, first + count)))

    async def _submit(self, key: str) -> str:
        body = {"type": "write", "input": {"value": key}}
        while True:
            try:
                reply = await self.api.application.post(
                    "/v1/tasks", body, headers={"Idempotency-Key": key}
                )
            except httpx2.TransportError:
                continue
            if reply.status_code in (200, 201):
                task_id = str(reply.json()["task_id"])
                self.ledger.answered(key, task_id)
                return task_id
            assert reply.json()["code"] in ("unavailable", "overloaded"), reply.text

    async def complaints(self) -> set[str]:
        """What the three processes say is not ready, as ``process server``."""
        coordinator = await self.api.nobody.get("/readyz")
        executor = await self.pages.get("/readyz")
        said = {
            "coordinator database": "database: ok" not in coordinator.text,
            "coordinator broker": "broker: ok" not in coordinator.text,
            "relay database": "database" in self.relay.relay.not_ready,
            "relay broker": "broker" in self.relay.relay.not_ready,
            "executor coordinator": "the coordinator:" in executor.text,
            "executor broker": "the broker:" in executor.text,
        }
        return {what for what, complained in said.items() if complained}

    async def says(self, *complaints: str) -> None:
        """Wait until readiness is exactly this."""

        async def told() -> bool:
            return await self.complaints() == set(complaints)

        await eventually(told)

    async def settled(self) -> None:
        """All tasks that were promised are done, once each, and everything committed arrived."""
        ended = await asyncio.gather(
            *(result(self.api, task_id) for task_id in self.ledger.tasks.values())
        )
        assert {each["state"] for each in ended} == {"delivered"}
        for key, task_id in self.ledger.tasks.items():
            assert await self.receiver.effects(task_id) == [key]
        await all_passed(self.database.relay_url)
        async with session(self.database.owner_url) as owner:
            log = await read_log(owner, topology.events_exchange(self.prefix))
        wanted = {row.event_id for row in log}
        await eventually(lambda: wanted <= self.audit.event_ids)
        arrivals = [Arrival(message.event_id, message.body) for message in self.audit.messages]
        assert faults(committed=log, arrivals=arrivals, ledger=self.ledger) == []


@asynccontextmanager
async def poisonable(
    database: FreshDatabase, broker: BrokerSpace, receiver: Downstream, folder: Path
) -> AsyncIterator[Stack]:
    """All of it, ready, with the poison still in the bottle; it is put back at the end."""
    async with (
        toxic(database.coordinator_url) as coordinator_database,
        toxic(broker.url) as coordinator_broker,
        toxic(database.relay_url) as relay_database,
        # Without anything to publish only heartbeats tell a relay that the broker fell silent.
        toxic(f"{broker.url}?heartbeat=2") as relay_broker,
        toxic(broker.url) as executor_broker,
        toxic(receiver.writer_url) as executor_downstream,
        fleet(
            replace(database, coordinator_url=coordinator_database.url),
            replace(broker, url=coordinator_broker.url),
        ) as api,
        toxic(api.coordinator.url) as executor_coordinator,
        relaying(
            relay_database.url,
            relay_broker.url,
            broker.name_prefix,
            relay_confirm_timeout_seconds=1.0,
        ) as relay,
        broker_channel(broker.url) as channel,
        status_pages() as pages,
    ):
        legs = Legs(
            coordinator_database,
            coordinator_broker,
            relay_database,
            relay_broker,
            executor_coordinator,
            executor_broker,
            executor_downstream,
        )
        exchange = topology.events_exchange(broker.name_prefix)
        queue = await declare_queue(channel, f"{broker.name_prefix}.audit", exchange)
        audit = await consume(channel, queue)
        settings = settings_of(
            api,
            replace(broker, url=executor_broker.url),
            folder,
            url=executor_coordinator.url,
            executor_listen=pages.address,
        )
        async with executing(executor(executor_downstream.url), settings):
            await registered(api, "node-1")
            stack = Stack(database, receiver, legs, api, relay, pages, audit, broker.name_prefix)
            await stack.says()
            try:
                yield stack
            finally:
                for leg in legs.every.values():
                    leg.thaw()
