"""The relay alone: how fast it drains a log that is there already, and what it holds in memory.

Confirmed publishes a second from the first time that a cursor is seen beyond its start, and every
relay holds shards, until all have passed the last row: so reading the log and moving the cursors
are in it, the start of the processes is not. Each row goes to one quorum queue that nobody reads.
Beside it, in turn, a C client that publishes as many messages of the same size to such a queue, and
does nothing else.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aio_pika
import asyncpg

from bench import backlog
from bench.figures import passed, quarter_medians, spent_between
from bench.machine import (
    all_cpu_seconds,
    busy_seconds,
    describe,
    most_resident_mebibytes,
    resident_mebibytes,
)
from bench.peers import librabbitmq
from bench.stack import say, servers
from tenure.cli.local.given import with_login
from tenure.cli.local.ports import LOOPBACK, reserve_port
from tenure.cli.local.postgres import PrivatePostgres
from tenure.cli.local.programs import Program, ProgramSpec
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.cli.local.stack import inherited_environment
from tenure.coordinator.store import migrate
from tenure.coordinator.store.roles import Roles

PUBLISHER: Final = "publisher"
RELAY: Final = "Tenure's relay"
C_CLIENT: Final = "C client"
QUEUE: Final = "bench.relay"
DATABASE: Final = "tenure"
PASSWORD: Final = "bench"
LOOK_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 1800.0
READY_SECONDS: Final = 60.0
DRAIN_SECONDS: Final = 15.0
# A backlog of a million rows becomes a queue of a million messages, and the private broker's usual
# limit would stop the publishers on the way.
BROKER_SETTINGS: Final = {"vm_memory_high_watermark.absolute": "4GB"}


@dataclass(frozen=True)
class Drained:
    """One measurement. ``core_microseconds`` a message, by process."""

    side: str
    messages: int
    per_second: float
    core_microseconds: Mapping[str, float]
    other_cores: float

    @property
    def cores(self) -> float:
        """How much of a processor the publisher itself used."""
        return self.core_microseconds[PUBLISHER] * self.per_second / 1e6


@dataclass(frozen=True)
class Memory:
    """What the relay had resident while it drained, MiB: at most, and the medians of the second and
    of the last quarter of the time."""

    rows: int
    most: float
    second_quarter: float
    last_quarter: float


class Servers:
    """PostgreSQL with Tenure's schema and RabbitMQ, without any process of Tenure."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.postgres = PrivatePostgres(directory / "postgres")
        self.rabbitmq = PrivateRabbitmq(directory / "rabbitmq", settings=BROKER_SETTINGS)

    @property
    def database_url(self) -> str:
        """The owner's login."""
        return self.postgres.url(DATABASE)

    @property
    def pids(self) -> dict[str, int]:
        """Of both servers."""
        return {"postgres": self.postgres.pid, "rabbitmq": self.rabbitmq.pid}

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[Program]:
        """A started relay, not necessarily ready; then it drains."""
        port = reserve_port()
        program = Program(self._spec(f"{LOOPBACK}:{port.port}"))
        try:
            await program.start()
            yield program
        finally:
            await program.stop(asyncio.Event())
            port.release()

    def _spec(self, address: str) -> ProgramSpec:
        roles = Roles()
        return ProgramSpec(
            name="relay",
            command=(sys.executable, "-m", "tenure.cli", "relay"),
            environment={
                **inherited_environment(),
                "TENURE_DATABASE_URL": with_login(self.database_url, roles.relay, PASSWORD),
                "TENURE_BROKER_URL": self.rabbitmq.url(),
                "TENURE_RELAY_LISTEN": address,
            },
            directory=Path.cwd(),
            log=self.directory / "relay.log",
            ready_url=f"http://{address}/readyz",
            drain_seconds=DRAIN_SECONDS,
        )


@asynccontextmanager
async def private_servers(directory: Path) -> AsyncIterator[Servers]:
    """Both servers, migrated, for the length of a block."""
    both = Servers(directory)
    try:
        say("bench", "starting postgres and rabbitmq")
        await both.postgres.start()
        await both.rabbitmq.start()
        await both.postgres.ensure_database(DATABASE)
        roles = Roles(coordinator_password=PASSWORD, relay_password=PASSWORD)
        await migrate.up(both.database_url, lambda applied: None, roles=roles)
        yield both
    finally:
        await both.rabbitmq.stop()
        await both.postgres.stop()


async def empty_queue(broker_url: str) -> None:
    """Make the queue, anew where it is there."""
    connection = await aio_pika.connect(broker_url)
    async with connection:
        channel = await connection.channel()
        await channel.queue_delete(QUEUE)
        await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})


async def check_queue(broker_url: str, messages: int) -> None:
    """Raises RuntimeError when the queue has fewer messages: then nothing was measured."""
    connection = await aio_pika.connect(broker_url)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(QUEUE, passive=True)
        found = queue.declaration_result.message_count or 0
    if found < messages:
        raise RuntimeError(f"{found} messages reached the queue, not {messages}")


async def drain(both: Servers, rows: int, relays: int = 1) -> tuple[Drained, Memory]:
    """Append at least ``rows``, then start relays and wait until they have published all of them.
    The memory is that of the first one.

    Raises TimeoutError, and RuntimeError when some of them are not in the queue.
    """
    await empty_queue(both.rabbitmq.url())
    owner = await asyncpg.connect(both.database_url, ssl=False)
    try:
        say("bench", f"preparing {rows:,} rows")
        positions = await backlog.append(owner, -(-rows // backlog.EVENTS), QUEUE)
        async with AsyncExitStack() as stack:
            programs = [await stack.enter_async_context(both.relay()) for _ in range(relays)]
            found = await _watched(both, owner, programs, positions)
        await check_queue(both.rabbitmq.url(), found[0].messages)
        return found
    finally:
        await owner.close()


async def _watched(
    both: Servers,
    owner: asyncpg.Connection,
    programs: Sequence[Program],
    positions: Mapping[int, list[int]],
) -> tuple[Drained, Memory]:
    publishers = {
        f"{PUBLISHER} {number}": program.pid
        for number, program in enumerate(programs, 1)
        if program.pid is not None  # they were started just now
    }
    pids = {**publishers, **both.pids}
    first_pid = next(iter(publishers.values()))
    rows = sum(len(some) for some in positions.values())
    resident: list[float] = []
    before, busy, began, first = all_cpu_seconds(pids), busy_seconds(), time.monotonic(), 0
    together = False
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (done := passed(positions, await _cursors(owner))) < rows:
            if first == 0 or not together:
                # Until each holds shards and publishes, every look is the latest beginning: the
                # start of a process costs more than many rows.
                together = await _taking_part(owner) == len(programs)
                before, busy, began = all_cpu_seconds(pids), busy_seconds(), time.monotonic()
                first = done
            resident.append(resident_mebibytes(first_pid))
            await asyncio.sleep(LOOK_SECONDS)
    if not together:
        raise RuntimeError(
            f"{rows:,} rows were published before all relays had begun: ask for more"
        )
    seconds = time.monotonic() - began
    used, others = spent_between(before, all_cpu_seconds(pids), busy_seconds() - busy)
    used = {PUBLISHER: sum(used.pop(name) for name in publishers), **used}
    second, last = quarter_medians(resident)
    return (
        Drained(
            RELAY if len(programs) == 1 else f"{len(programs)} relays",
            rows,
            (rows - first) / seconds,
            {name: spent / (rows - first) * 1e6 for name, spent in used.items()},
            others / seconds,
        ),
        Memory(rows, most_resident_mebibytes(first_pid), second, last),
    )


async def _cursors(owner: asyncpg.Connection) -> dict[int, int]:
    rows = await owner.fetch('select shard, "position" from tenure.relay_shards')
    return {row["shard"]: row["position"] for row in rows}


async def _taking_part(owner: asyncpg.Connection) -> int:
    """How many relays hold shards."""
    number: int = await owner.fetchval(
        "select count(distinct relay_id) from tenure.relay_shards where claimed_until > now()"
    )
    return number


async def c_client(both: Servers, program: Path, messages: int) -> Drained:
    """As many messages of the same size from the C client. Raises RuntimeError when it fails."""
    await empty_queue(both.rabbitmq.url())
    pids = {"rabbitmq": both.rabbitmq.pid}
    before, busy = all_cpu_seconds(pids), busy_seconds()
    size = len(backlog.template())
    found = await librabbitmq.publish(program, both.rabbitmq.url(), QUEUE, messages, size)
    used, others = spent_between(before, all_cpu_seconds(pids), busy_seconds() - busy)
    await check_queue(both.rabbitmq.url(), messages)
    return Drained(
        C_CLIENT,
        messages,
        messages / found.seconds,
        {
            PUBLISHER: found.cpu_seconds / messages * 1e6,
            "rabbitmq": used["rabbitmq"] / messages * 1e6,
        },
        max(0.0, others - found.cpu_seconds) / found.seconds,
    )


async def measure(
    directory: Path, rows: int, rounds: int, relays: int = 1
) -> tuple[str, list[Drained]]:
    """The machine, and all rounds; without the C client where it cannot be built. With several
    ``relays`` these as well, after one alone."""
    runs: list[Drained] = []
    async with private_servers(directory) as both:
        machine = describe(await servers(both.database_url))
        try:
            program = await librabbitmq.build(directory)
        except librabbitmq.CannotBeBuilt as error:
            say("bench", f"the relay is measured without the C client: {error}")
            program = None
        for number in range(1, rounds + 1):
            drained, _ = await drain(both, rows)
            runs.append(drained)
            say("bench", f"round {number}: {drained}")
            if relays > 1:
                drained, _ = await drain(both, rows, relays)
                runs.append(drained)
                say("bench", f"round {number}: {drained}")
            if program is not None:
                runs.append(await c_client(both, program, rows))
                say("bench", f"round {number}: {runs[-1]}")
    return machine, runs
