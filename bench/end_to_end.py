"""Tenure beside FastStream on the same servers in the same run: ``make bench``.

Private servers with everything durable. A no-op task; both sides' handlers append one record
(``bench.records``). Rounds are interleaved, so compare figures of one run only.

handled/s   from the first submission until the last handler had control
settled/s   until, besides, every task is delivered and every event of it confirmed by the broker;
            FastStream keeps neither, so the two are the same for it
core-us     processor time a task, by process, over the time until settled
others      cores that programs outside the measurement used meanwhile: the noise
latency     from the call that submits one task to its handler, at a steady rate
memory      the most that each process of Tenure had resident (VmHWM), after all rounds
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg
import psutil
import uvloop

from bench.noop import Noop, Sent
from bench.peers.faststream import URL_VARIABLE, Sender
from bench.records import FILE_VARIABLE, Reader
from tenure.cli.local import processes
from tenure.cli.local.stack import ExecutorSpec, Stack
from tenure.client import AsyncClient

BATCH: Final = 500
SENDERS: Final = 2
SLOTS: Final = 256
RATE: Final = 100
LOOK_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 180.0


@dataclass(frozen=True)
class Run:
    """One measurement of throughput. ``core_microseconds`` a task, by process."""

    side: str
    tasks: int
    handled_per_second: float
    settled_per_second: float
    core_microseconds: Mapping[str, float]
    other_cores: float


@dataclass(frozen=True)
class Latency:
    """Milliseconds from the submitting call to the handler, at ``RATE`` a second."""

    side: str
    samples: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Side:
    """How to use one of the two. ``settled`` returns once nothing is left to do."""

    name: str
    file: Path
    send_one: Callable[[], Awaitable[object]]
    send_many: Callable[[int], Awaitable[object]]
    settled: Callable[[], Awaitable[None]]
    pids: Mapping[str, int]


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of all below it, ended children of its own included.

    Raises psutil.NoSuchProcess when it has ended.
    """
    top = psutil.Process(pid)
    times = top.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in top.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # its time goes to its parent, for the next look
            times = child.cpu_times()
            total += times.user + times.system
    return float(total)


def own_cpu_seconds() -> float:
    """Processor time of this process alone: the sender."""
    times = psutil.Process().cpu_times()
    return times.user + times.system


def busy_seconds() -> float:
    """Processor time of the whole machine that was not idle."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look until it holds. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():  # noqa: ASYNC110 - other processes make it hold
            await asyncio.sleep(LOOK_SECONDS)


async def all_handled(reader: Reader, tasks: int) -> None:
    """Wait for that many records; other processes write them. Raises TimeoutError."""

    async def there() -> bool:
        return reader.count() >= tasks

    await until(there)


async def throughput(side: Side, tasks: int) -> Run:
    """Send ``tasks``, wait until all are handled, then until all is settled."""
    reader = Reader(side.file)

    def spent() -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in side.pids.items()} | {
            "sender": own_cpu_seconds()
        }

    before, busy, began = spent(), busy_seconds(), time.monotonic()
    await side.send_many(tasks)
    await all_handled(reader, tasks)
    handled = max(at for _, at in reader.records()) / 1e9
    await side.settled()
    settled = time.monotonic()
    after = spent()
    used = {name: after[name] - before[name] for name in before}
    others = busy_seconds() - busy - sum(used.values())
    return Run(
        side.name,
        tasks,
        tasks / (handled - began),
        tasks / (max(settled, handled) - began),
        {name: seconds / tasks * 1e6 for name, seconds in used.items()},
        max(0.0, others / (settled - began)),
    )


async def latency(side: Side, seconds: float) -> Latency:
    """Send one task every hundredth of a second, whatever became of those before."""
    reader = Reader(side.file)
    count = round(seconds * RATE)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / RATE - loop.time()))
            group.create_task(_awaited(side.send_one()))
    await all_handled(reader, count)
    await side.settled()
    waits = sorted((at - sent) / 1e6 for sent, at in reader.records())
    return Latency(
        side.name,
        len(waits),
        waits[len(waits) // 2],
        waits[len(waits) * 95 // 100],
        waits[len(waits) * 99 // 100],
    )


async def _awaited(what: Awaitable[object]) -> None:
    await what


@asynccontextmanager
async def tenure_side(stack: Stack, file: Path) -> AsyncIterator[Side]:
    """Tenure through its client, over HTTP."""
    connection = stack.connection()
    database = await asyncpg.connect(connection.database_url, ssl=False)

    async def settled() -> None:
        async def nothing_left() -> bool:
            if await database.fetchval(OPEN_TASKS):
                return False
            return (await operator.outbox()).lag_rows == 0

        await until(nothing_left)

    async def send_one() -> None:
        await client.submit(Noop, Sent(sent=time.monotonic_ns()))

    async def send_batch(count: int) -> None:
        await client.submit_many(Noop, [Sent(sent=time.monotonic_ns()) for _ in range(count)])

    async def send_many(count: int) -> None:
        batches = iter([min(BATCH, count - start) for start in range(0, count, BATCH)])

        async def some() -> None:
            for size in batches:
                await send_batch(size)

        await asyncio.gather(*(some() for _ in range(SENDERS)))

    pids = {name: pid for name, program in stack.processes.items() if (pid := program.pid)}
    try:
        async with (
            AsyncClient(connection.url, connection.tokens["application"]) as client,
            AsyncClient(connection.url, connection.tokens["operator"]) as operator,
        ):
            yield Side(
                "Tenure",
                file,
                send_one,
                send_many,
                settled,
                {"postgres": stack.postgres.pid, "rabbitmq": stack.rabbitmq.pid, **pids},
            )
    finally:
        await database.close()


OPEN_TASKS: Final = "select exists (select from tenure.tasks where state = 'open')"


@asynccontextmanager
async def faststream_side(stack: Stack, directory: Path) -> AsyncIterator[Side]:
    """FastStream with one worker process, on the broker of the stack."""
    file = directory / "faststream.records"
    url = stack.connection().broker_url
    sender = Sender(url)
    await sender.start()
    worker = processes.spawn(
        [sys.executable, "-m", "bench.peers.faststream"],
        log=directory / "faststream.log",
        environment=dict(os.environ) | {URL_VARIABLE: url, FILE_VARIABLE: str(file)},
        directory=Path.cwd(),
    )

    async def settled() -> None:
        """Nothing is kept that could still change."""

    pids = {"rabbitmq": stack.rabbitmq.pid, "worker": worker.pid}
    try:
        yield Side("FastStream", file, sender.send, sender.send_many, settled, pids)
    finally:
        worker.terminate()
        await asyncio.to_thread(worker.wait)
        await sender.stop()


def resident_mebibytes(pid: int) -> float:
    """The most that a process has had resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def machine(postgres_version: str) -> str:
    """One line: what this ran on."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), Linux {platform.release()},"
        f" PostgreSQL {postgres_version}, Python {platform.python_version()}, everything durable;"
        f" load average before: {load}"
    )


def report(runs: list[Run], latencies: list[Latency], memory: Mapping[str, float]) -> str:
    """The figures as Markdown."""
    lines = [
        "| side | handled/s (each run) | settled/s (each run) | core-us a task | others' cores |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(run.side for run in runs):
        own = [run for run in runs if run.side == name]
        costs = {
            process: statistics.median(run.core_microseconds[process] for run in own)
            for process in own[0].core_microseconds
        }
        by_process = ", ".join(f"{process} {cost:.0f}" for process, cost in costs.items())
        lines.append(
            f"| {name} | {_each([run.handled_per_second for run in own])}"
            f" | {_each([run.settled_per_second for run in own])}"
            f" | {by_process}; all {sum(costs.values()):.0f}"
            f" | {_each([run.other_cores for run in own], '.1f')} |"
        )
    ours = [run.settled_per_second for run in runs if run.side == "Tenure"]
    theirs = [run.settled_per_second for run in runs if run.side == "FastStream"]
    ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
    lines += ["", f"settled/s of Tenure against FastStream, round by round: {_each(ratios, '.2f')}"]
    lines += [
        "",
        f"| latency at {RATE}/s | p50 ms | p95 | p99 | samples |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.side} | {one.p50:.1f} | {one.p95:.1f} | {one.p99:.1f} | {one.samples} |"
        for one in latencies
    ]
    lines += ["", "| most resident | MiB |", "|---|---|"]
    lines += [f"| {name} | {mebibytes:.0f} |" for name, mebibytes in memory.items()]
    return "\n".join(lines)


def _each(values: list[float], form: str = ",.0f") -> str:
    return f"**{statistics.median(values):{form}}** ({' '.join(f'{one:{form}}' for one in values)})"


def _say(name: str, words: str) -> None:
    print(f"{name}: {words}", file=sys.stderr, flush=True)


async def run(directory: Path, tasks: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure everything; prints the table and returns the figures."""
    file = directory / "tenure.records"
    spec = ExecutorSpec("executor", "bench.noop:app", SLOTS, lambda: {FILE_VARIABLE: str(file)})
    stack = Stack(directory / "stack", [spec], say=_say)
    try:
        await stack.start()
        idle = await _resident(stack)
        async with tenure_side(stack, file) as ours, faststream_side(stack, directory) as theirs:
            database = await asyncpg.connect(stack.connection().database_url, ssl=False)
            about = machine(str(await database.fetchval("show server_version")))
            await database.close()
            print(about, flush=True)
            for side in (ours, theirs):
                await throughput(side, min(tasks, 500))  # warm up
            runs: list[Run] = []
            for number in range(1, rounds + 1):
                for side in (ours, theirs):
                    runs.append(await throughput(side, tasks))
                    _say("bench", f"round {number}: {runs[-1]}")
            latencies = [await latency(side, seconds) for side in (ours, theirs)]
            memory = {f"{name} after the start": size for name, size in idle.items()}
            memory |= {f"{name} after all": size for name, size in (await _resident(stack)).items()}
    finally:
        await stack.stop()
    print(report(runs, latencies, memory))
    return {
        "machine": about,
        "runs": [asdict(one) for one in runs],
        "latencies": [asdict(one) for one in latencies],
        "resident_mebibytes": memory,
    }


async def _resident(stack: Stack) -> dict[str, float]:
    return {
        name: resident_mebibytes(pid)
        for name, program in stack.processes.items()
        if (pid := program.pid)
    }


def main() -> None:
    """``python -m bench.end_to_end``."""
    parser = argparse.ArgumentParser(description="Measure Tenure beside FastStream.")
    parser.add_argument("--tasks", type=int, default=5000, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each latency run")
    parser.add_argument("--json", type=Path, default=Path("build/bench/end_to_end.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory:
        Path(directory).chmod(0o711)  # the server may run under another account
        measured = run(Path(directory), arguments.tasks, arguments.rounds, arguments.seconds)
        figures = uvloop.run(measured)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()
