"""Tasks a second and processor time a task, of Tenure beside its peers.

A no-op task; all handlers append one record (``bench.records``). Rounds are interleaved, so compare
figures of one run only.

handled/s   from the first submission until the last handler had control
settled/s   until, besides, every task is delivered and every event of it confirmed by the broker;
            the peers keep neither, so the two are the same for them
core-us     processor time a task, by process, over the time until settled
idle sides  cores that the processes of the sides whose turn it was not used meanwhile
others      cores that programs outside the measurement used meanwhile: the noise
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.figures import spent_between
from bench.machine import all_cpu_seconds, busy_seconds, describe, own_cpu_seconds
from bench.records import Reader
from bench.sides import Side, all_handled
from bench.stack import all_sides, say, servers

WARM_UP_TASKS: Final = 500


@dataclass(frozen=True)
class Run:
    """One measurement of throughput. ``core_microseconds`` a task, by process."""

    side: str
    tasks: int
    handled_per_second: float
    settled_per_second: float
    core_microseconds: Mapping[str, float]
    idle_sides_cores: float
    other_cores: float


async def throughput(side: Side, tasks: int, bystanders: Sequence[Side] = ()) -> Run:
    """Send ``tasks``, wait until all are handled, then until all is settled."""
    reader = Reader(side.file)
    idle = {f"{one.name} {name}": pid for one in bystanders for name, pid in one.own.items()}

    def spent() -> dict[str, float]:
        return all_cpu_seconds(side.pids | idle) | {"sender": own_cpu_seconds()}

    before, busy, began = spent(), busy_seconds(), time.monotonic()
    await side.send_many(tasks)
    await all_handled(reader, tasks)
    handled = max(at for _, at in reader.records()) / 1e9
    await side.settled()
    settled = time.monotonic()
    used, others = spent_between(before, spent(), busy_seconds() - busy)
    return Run(
        side.name,
        tasks,
        tasks / (handled - began),
        tasks / (max(settled, handled) - began),
        {name: seconds / tasks * 1e6 for name, seconds in used.items() if name not in idle},
        sum(used[name] for name in idle) / (settled - began),
        others / (settled - began),
    )


async def measure(
    directory: Path, peers: Sequence[str], tasks: int, rounds: int
) -> tuple[str, list[Run]]:
    """The machine, and the runs of all rounds. Raises TimeoutError when a side does not finish."""
    runs: list[Run] = []
    async with all_sides(directory, peers) as (stack, sides):
        machine = describe(await servers(stack.connection().database_url))
        for side in sides:
            await throughput(side, min(tasks, WARM_UP_TASKS))
        for number in range(1, rounds + 1):
            for side in sides:
                runs.append(await throughput(side, tasks, [one for one in sides if one != side]))
                say("bench", f"round {number}: {runs[-1]}")
    return machine, runs
