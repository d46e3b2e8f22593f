"""The processes of a chaos run: several of each kind, every wire between them and a server through
a proxy that can be poisoned, and the witness beside them."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from tenure.cli.chaos.wires import Wires, wires
from tenure.cli.local.ports import LOOPBACK, reserve_port
from tenure.cli.local.postgres import PrivatePostgres
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.contract import topology
from tests.support.coordinator import TOKENS
from tests.support.downstream import Downstream, downstream
from tests.support.isolation import FreshDatabase
from tests.trials.processes import COORDINATOR, EXECUTOR, Program
from tests.trials.program import DOWNSTREAM
from tests.trials.relay import READY, STRUCK
from tests.trials.stack import token
from tests.trials.witness import BOOK, BROKER, EXCHANGE, QUEUE, Book

COORDINATORS, RELAYS, EXECUTORS, SLOTS = 2, 3, 2, 64
LEASE_SECONDS: Final = 4.0
RELAY_ROWS: Final = 4_096
"""What one relay holds at most: no end of a relay makes more duplicates."""


@dataclass(frozen=True)
class Servers:
    """What everything stands on. ``receiver`` holds what executors write, and is left alone but for
    the wire to it."""

    postgres: PrivatePostgres
    rabbitmq: PrivateRabbitmq
    receiver: PrivatePostgres


@dataclass(frozen=True)
class Stack:
    """Everything that runs, and what looks at it. ``ready`` and ``struck``: what relays left that
    could be told to die, and that died."""

    servers: Servers
    database: FreshDatabase
    receiver: Downstream
    wires: Wires
    coordinators: Sequence[Program]
    relays: Sequence[Program]
    executors: Sequence[Program]
    witness: Program
    book: Book
    ready: Path
    struck: Path
    exchange: str

    @property
    def programs(self) -> list[Program]:
        """In the order in which they end."""
        return [*self.executors, *self.relays, self.witness, *self.coordinators]

    def in_flight_at_kills(self) -> list[int]:
        """Of each relay that died when told to: how many publishes had no answer."""
        return [int(line.split()[1]) for line in self.struck.read_text("utf-8").splitlines()]

    def relays_ready(self) -> list[int]:
        """Processes that could be told to die at some time, the oldest first."""
        return [int(line) for line in self.ready.read_text("utf-8").splitlines()]

    async def value(self, question: str) -> int:
        """What the authority's database says, on a connection of its own: it may have died."""
        connection = await asyncpg.connect(self.database.owner_url, timeout=10)
        try:
            return int(await connection.fetchval(question) or 0)
        finally:
            await connection.close()


@asynccontextmanager
async def stack(servers: Servers, database: FreshDatabase, folder: Path) -> AsyncIterator[Stack]:
    """All processes, started and kept."""
    prefix = topology.DEFAULT_PREFIX
    broker_url = servers.rabbitmq.url()
    async with AsyncExitStack() as around:
        reserved = [reserve_port() for _ in range(COORDINATORS)]
        for reservation in reserved:
            around.callback(reservation.release)
        ports = [reservation.port for reservation in reserved]
        receiver = await around.enter_async_context(downstream(servers.receiver.url()))
        http = [f"http://{LOOPBACK}:{port}" for port in ports]
        laid = await around.enter_async_context(
            wires(
                {
                    "coordinator to database": [database.coordinator_url],
                    "coordinator to broker": [broker_url],
                    "relay to database": [database.relay_url],
                    "relay to broker": [broker_url],
                    "executor to coordinator": http,
                    "executor to broker": [broker_url],
                    "executor to downstream": [receiver.writer_url],
                    "application to coordinator": http,
                }
            )
        )
        coordinators = [
            Program(
                f"coordinator-{number}",
                COORDINATOR,
                {
                    "TENURE_DATABASE_URL": laid.urls["coordinator to database"],
                    "TENURE_BROKER_URL": laid.urls["coordinator to broker"],
                    "TENURE_LISTEN": f"{LOOPBACK}:{port}",
                    "TENURE_TOKENS": json.dumps(TOKENS),
                    "TENURE_LEASE_SECONDS": str(LEASE_SECONDS),
                    "TENURE_CLOCK_TOLERANCE_SECONDS": "0.3",
                    "TENURE_NODE_SILENCE_SECONDS": "3",
                    "TENURE_RETRY_BASE_SECONDS": "0.2",
                    "TENURE_RETRY_CAP_SECONDS": "2",
                },
                folder / f"coordinator-{number}.log",
            )
            for number, port in enumerate(ports)
        ]
        ready, struck = folder / "ready", folder / "struck"
        ready.touch()
        struck.touch()
        relays = [
            Program(
                f"relay-{number}",
                ("-m", "tests.trials.relay"),
                {
                    "TENURE_DATABASE_URL": laid.urls["relay to database"],
                    "TENURE_BROKER_URL": laid.urls["relay to broker"],
                    "TENURE_RELAY_CLAIM_SECONDS": "2",
                    "TENURE_RELAY_CONFIRM_TIMEOUT_SECONDS": "3",
                    "TENURE_RELAY_WINDOW_ROWS": str(RELAY_ROWS),
                    READY: str(ready),
                    STRUCK: str(struck),
                },
                folder / f"relay-{number}.log",
            )
            for number in range(RELAYS)
        ]
        executors = [
            Program(
                f"node-{number}",
                EXECUTOR,
                {
                    "TENURE_BROKER_URL": laid.urls["executor to broker"],
                    "TENURE_URL": laid.urls["executor to coordinator"],
                    "TENURE_TOKEN": token("fleet"),
                    "TENURE_STATE_DIR": str(folder / f"node-{number}"),
                    "TENURE_NODE": f"node-{number}",
                    "TENURE_SLOTS": str(SLOTS),
                    "TENURE_COMPARISON_SECONDS": "1",
                    "TENURE_DRAIN_SECONDS": "5",
                    DOWNSTREAM: laid.urls["executor to downstream"],
                    # What aio-pika leaves behind where a loop has ended; nothing depends on it.
                    "PYTHONWARNINGS": "ignore:coroutine 'Connection.close':RuntimeWarning",
                },
                folder / f"node-{number}.log",
            )
            for number in range(EXECUTORS)
        ]
        book = Book(folder / "arrivals.sqlite")
        book.make()
        exchange = topology.events_exchange(prefix)
        witness = Program(
            "witness",
            ("-m", "tests.trials.witness"),
            {
                BROKER: broker_url,
                EXCHANGE: exchange,
                QUEUE: f"{prefix}.witness",
                BOOK: str(folder / "arrivals.sqlite"),
            },
            folder / "witness.log",
        )
        made = Stack(
            servers, database, receiver, laid, coordinators, relays, executors,
            witness, book, ready, struck, exchange,
        )  # fmt: skip
        keeping = [asyncio.create_task(program.keep()) for program in made.programs]
        try:
            yield made
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
