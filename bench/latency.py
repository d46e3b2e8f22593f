"""How long a task is on its way at a steady rate, in Tenure and in its peers.

From the call that submits one task to its handler. A task is sent every hundredth of a second,
whatever became of those before.
"""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import stages
from bench.figures import percentile, spent_between
from bench.machine import all_cpu_seconds, busy_seconds, describe, own_cpu_seconds
from bench.records import Reader
from bench.sides import Side, all_handled
from bench.stack import all_sides, say, servers

RATE: Final = 100
WARM_UP_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Latency:
    """Milliseconds from the submitting call to the handler, at ``RATE`` a second.

    ``core_microseconds`` a task, by process; ``other_cores`` includes the idle sides.
    """

    side: str
    samples: int
    p50: float
    p95: float
    p99: float
    core_microseconds: Mapping[str, float]
    other_cores: float


async def latency(side: Side, seconds: float) -> Latency:
    """Send at the steady rate for that long."""
    reader = Reader(side.file)
    count = round(seconds * RATE)
    loop = asyncio.get_running_loop()

    def spent() -> dict[str, float]:
        return all_cpu_seconds(side.pids) | {"sender": own_cpu_seconds()}

    before, busy, started = spent(), busy_seconds(), time.monotonic()
    began = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / RATE - loop.time()))
            group.create_task(_awaited(side.send_one()))
    await all_handled(reader, count)
    used, others = spent_between(before, spent(), busy_seconds() - busy)
    lasted = time.monotonic() - started
    await side.settled()
    waits = [(at - sent) / 1e6 for sent, at in reader.records()]
    return Latency(
        side.name,
        len(waits),
        percentile(waits, 50),
        percentile(waits, 95),
        percentile(waits, 99),
        {name: seconds / count * 1e6 for name, seconds in used.items()},
        others / lasted,
    )


async def _awaited(what: Awaitable[object]) -> None:
    await what


async def measure(
    directory: Path, peers: Sequence[str], seconds: float, rounds: int
) -> tuple[str, list[Latency], list[stages.Stage]]:
    """The machine, the latencies of all rounds, and Tenure's stages. Raises TimeoutError."""
    found: list[Latency] = []
    async with all_sides(directory, peers) as (stack, sides):
        database_url = stack.connection().database_url
        machine = describe(await servers(database_url))
        for side in sides:
            await latency(side, WARM_UP_SECONDS)
        reader = Reader(sides[0].file)
        for number in range(1, rounds + 1):
            for side in sides:
                found.append(await latency(side, seconds))
                say("bench", f"round {number}: {found[-1]}")
        on_the_way = await stages.measure(database_url, reader.records())
    return machine, found, on_the_way
