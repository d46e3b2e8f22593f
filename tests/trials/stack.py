"""The processes of a trial, between servers and a balancer."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from tenure.cli.local.ports import LOOPBACK, reserve_port
from tests.support.coordinator import TOKENS
from tests.support.downstream import Downstream, downstream
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.trials.balancer import Balancer, balancing
from tests.trials.processes import COORDINATOR, EXECUTOR, RELAY, Program
from tests.trials.program import DOWNSTREAM

COORDINATORS, EXECUTORS, SLOTS = 3, 6, 12
LEASE_SECONDS: Final = 4.0


@dataclass(frozen=True)
class Stack:
    """Everything that runs, and what looks at it."""

    database: FreshDatabase
    owner: asyncpg.Pool
    receiver: Downstream
    balancer: Balancer
    coordinators: Sequence[Program]
    executors: Sequence[Program]
    relay: Program

    @property
    def programs(self) -> list[Program]:
        """In the order in which they end."""
        return [*self.executors, self.relay, *self.coordinators]


@asynccontextmanager
async def stack(
    database: FreshDatabase, broker: BrokerSpace, folder: Path, chance: random.Random
) -> AsyncIterator[Stack]:
    """All processes, started and kept."""
    async with AsyncExitStack() as around:
        reserved = [reserve_port() for _ in range(COORDINATORS)]
        for reservation in reserved:
            around.callback(reservation.release)
        ports = [reservation.port for reservation in reserved]
        balancer = await around.enter_async_context(balancing(ports, chance))
        receiver = await around.enter_async_context(downstream(database.admin_url))
        owner = await around.enter_async_context(
            asyncpg.create_pool(database.owner_url, min_size=1, max_size=4)
        )
        shared = {"TENURE_BROKER_URL": broker.url, "TENURE_NAME_PREFIX": broker.name_prefix}
        coordinators = [
            Program(
                f"coordinator-{number}",
                COORDINATOR,
                {
                    **shared,
                    "TENURE_DATABASE_URL": database.coordinator_url,
                    "TENURE_LISTEN": f"{LOOPBACK}:{port}",
                    "TENURE_TOKENS": json.dumps(TOKENS),
                    "TENURE_LEASE_SECONDS": str(LEASE_SECONDS),
                    "TENURE_CLOCK_TOLERANCE_SECONDS": "0.4",
                    "TENURE_NODE_SILENCE_SECONDS": "2",
                    "TENURE_RETRY_BASE_SECONDS": "0.2",
                    "TENURE_RETRY_CAP_SECONDS": "2",
                    "TENURE_COMMIT_CONNECTIONS": "6",
                },
                folder / f"coordinator-{number}.log",
            )
            for number, port in enumerate(ports)
        ]
        relay = Program(
            "relay",
            RELAY,
            {
                **shared,
                "TENURE_DATABASE_URL": database.relay_url,
                "TENURE_RELAY_LISTEN": f"{LOOPBACK}:0",
                "TENURE_RELAY_CLAIM_SECONDS": "1",
            },
            folder / "relay.log",
        )
        executors = [
            Program(
                f"node-{number}",
                EXECUTOR,
                {
                    "TENURE_BROKER_URL": broker.url,
                    "TENURE_URL": balancer.url,
                    "TENURE_TOKEN": token("fleet"),
                    "TENURE_STATE_DIR": str(folder / f"node-{number}"),
                    "TENURE_NODE": f"node-{number}",
                    "TENURE_SLOTS": str(SLOTS),
                    "TENURE_COMPARISON_SECONDS": "1",
                    "TENURE_DRAIN_SECONDS": "5",
                    DOWNSTREAM: receiver.writer_url,
                },
                folder / f"node-{number}.log",
            )
            for number in range(EXECUTORS)
        ]
        made = Stack(database, owner, receiver, balancer, coordinators, executors, relay)
        keeping = [asyncio.create_task(program.keep()) for program in made.programs]
        try:
            yield made
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)


def token(name: str) -> str:
    """The bearer token of that name."""
    (found,) = [str(one["token"]) for one in TOKENS if one["name"] == name]
    return found
