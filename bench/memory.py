"""What the processes of Tenure hold in memory: idle, under full load, and with a backlog.

Resident, in MiB. "most" is the kernel's high-water mark. The medians of the second and of the last
quarter of the time say whether it is flat.
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import figures, relay
from bench.machine import describe, most_resident_mebibytes, resident_mebibytes
from bench.records import Reader
from bench.sides import Side, all_handled
from bench.stack import BATCH, say, servers, tenure_stack

IDLE_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.25
PARTS: Final = 6
UNHANDLED: Final = 5_000
"""So many tasks wait at most: more than the executor's slots, so that it never starves."""


@dataclass(frozen=True)
class Held:
    """What one process had resident; ``when``: the situation."""

    process: str
    when: str
    most: float
    second_quarter: float
    last_quarter: float


async def measure(
    directory: Path, seconds: float, backlog_rows: int
) -> tuple[str, list[Held], list[float], relay.Drained]:
    """The machine, what was held, tasks/s in each part of the load, and the drained backlog."""
    async with tenure_stack(directory) as (stack, side):
        machine = describe(await servers(stack.connection().database_url))
        await asyncio.sleep(IDLE_SECONDS)
        held = [
            Held(name, "idle", most_resident_mebibytes(pid), now, now)
            for name, pid in side.own.items()
            for now in [resident_mebibytes(pid)]
        ]
        rates, loaded = await _loaded(side, seconds)
        held += loaded
    async with relay.private_servers(directory / "backlog") as both:
        drained, memory = await relay.drain(both, backlog_rows)
    say("bench", f"{drained}")
    when = f"backlog of {backlog_rows:,} rows"
    held.append(Held("relay", when, memory.most, memory.second_quarter, memory.last_quarter))
    return machine, held, rates, drained


async def _loaded(side: Side, seconds: float) -> tuple[list[float], list[Held]]:
    """Keep tasks waiting for that long; tasks/s in each part, and what each process held."""
    reader = Reader(side.file)
    found: dict[str, list[float]] = {name: [] for name in side.own}
    looks: list[tuple[float, int]] = []
    over = asyncio.Event()

    async def send() -> int:
        sent = 0
        while not over.is_set():
            if sent - reader.count() > UNHANDLED:
                await asyncio.sleep(LOOK_SECONDS / 10)
                continue
            await side.send_many(2 * BATCH)
            sent += 2 * BATCH
        return sent

    sending = asyncio.create_task(send())
    began = time.monotonic()
    try:
        while (now := time.monotonic()) - began < seconds and not sending.done():
            looks.append((now, reader.count()))
            for name, pid in side.own.items():
                found[name].append(resident_mebibytes(pid))
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        over.set()
    await all_handled(reader, await sending)
    await side.settled()
    return figures.rates(looks, PARTS), [
        Held(
            name,
            f"full load for {seconds:g} s",
            most_resident_mebibytes(pid),
            *figures.quarter_medians(found[name]),
        )
        for name, pid in side.own.items()
    ]
