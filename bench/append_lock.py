"""How much one append lock costs, against 4 and 8 of them by shard: one table.

Lanes commit batches through the real ``commit_batch`` of a private PostgreSQL, at several commit
latencies (``commit_delay`` with ``commit_siblings = 0``; the flush stays real, and commits that
wait for it together share it, as on a slow disk). A lane takes whatever has arrived while its last
commit was in flight, at most ``MAX_ITEMS``: natural batching, as in ``tenure.coordinator.lanes``.

Two loads: ``saturated`` (every batch is full) gives commands per second; ``offered`` (a fixed
number of commands per second, arriving evenly) gives the time from arrival to commit.

Compare figures of one run only. Variants of one round run side by side; a ratio is the median of
the rounds' ratios, and its spread says how noisy the machine was.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from tenure.cli.local.postgres import PrivatePostgres
from tenure.coordinator.store import migrate
from tenure.coordinator.store.commit import MAX_ITEMS
from tenure.coordinator.store.roles import Roles

LATENCIES_MILLISECONDS = (0.3, 2.0, 5.0, 10.0)
"""The first stands for the flush as it is, without a delay."""
LANES = (1, 2, 4, 8)
LOCKS = (1, 4, 8)
OFFERED_PER_SECOND = 2000
WARM_UP_SECONDS = 0.15
SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}
PASSWORD = "bench"
WRITTEN = "tenure.tasks, tenure.task_inputs, tenure.commands, tenure.log, bench.probe"
ADDED = Path(__file__).with_suffix(".sql").read_text()


@dataclass(frozen=True)
class Cell:
    """One measurement. ``commands_per_second`` over the measured time; waits in milliseconds from
    arrival to commit, for the offered load only."""

    round: int
    load: str
    latency: float
    lanes: int
    locks: int
    commands_per_second: float
    batch_mean: float
    wait_p50: float | None = None
    wait_p99: float | None = None


@dataclass(frozen=True)
class Batch:
    """A committed batch: when it committed, and the numbers of its first and last command."""

    committed_at: float
    first: int
    count: int


class Lane:
    """One committing loop on a connection of its own."""

    def __init__(self, connection: asyncpg.Connection, number: int, of: int) -> None:
        self._connection = connection
        self._number = number
        self._of = of
        self.batches: list[Batch] = []

    async def run(self, begin: float, until: float, arrivals_per_second: float | None) -> None:
        """Commit from ``begin`` to ``until``; without a rate every batch is full.

        Command ``k`` of the lane arrives at ``begin + k / arrivals_per_second``, the lanes out of
        step with each other.
        """
        self.batches = []
        done = 0
        offset = self._number / self._of
        while (now := time.perf_counter()) < until:
            count = MAX_ITEMS
            if arrivals_per_second is not None:
                arrived = int((now - begin) * arrivals_per_second - offset) + 1
                if arrived <= done:
                    due = begin + (done + offset) / arrivals_per_second
                    await asyncio.sleep(max(0.0, min(due, until) - now))
                    continue
                count = min(MAX_ITEMS, arrived - done)
            applied = await self._connection.fetchval(
                "select bench.submit($1, $2, $3)", count, self._number, self._of
            )
            assert applied == count
            self.batches.append(Batch(time.perf_counter(), done, count))
            done += count


class Bench:
    """The server, and what changes between measurements."""

    def __init__(self, admin: asyncpg.Connection, url: str) -> None:
        self._admin = admin
        self._url = url
        self._one_lock = ""

    async def prepare(self) -> None:
        """Keep the real trigger's function, to put it back for the variant with one lock; and be
        allowed to empty tables between measurements."""
        await self._admin.execute("set session_replication_role = replica")
        self._one_lock = await self._admin.fetchval(
            "select pg_get_functiondef('tenure.take_append_lock()'::regprocedure)"
        )

    async def use_delay(self, milliseconds: float) -> None:
        """Let commits of new connections take so much longer."""
        await self._admin.execute(
            f"alter role tenure_coordinator set commit_delay = {round(milliseconds * 1000)};"
            " alter role tenure_coordinator set commit_siblings = 0"
        )

    async def use_locks(self, locks: int, lanes: int) -> None:
        """Install the trigger's function of a variant: the real one, or its part of ``locks``.

        A lane takes the locks of all its shards, in order: with fewer lanes than locks several.
        """
        if locks == 1:
            await self._admin.execute(self._one_lock)
            return
        branches = "".join(
            f" when {lane} then "
            + "".join(
                f"lock table bench.append_lock_{lock} in share row exclusive mode; "
                for lock in range(locks)
                if lock % lanes == lane % locks
            )
            for lane in range(lanes)
        )
        await self._admin.execute(
            "create or replace function tenure.take_append_lock() returns trigger"
            " language plpgsql security definer set search_path = tenure, pg_temp as $$ begin"
            f" case current_setting('bench.lane')::integer{branches} end case;"
            " return null; end $$"
        )

    @asynccontextmanager
    async def lanes(self, count: int) -> AsyncIterator[list[Lane]]:
        """Lanes on fresh connections, each having committed once."""
        connections = [
            await asyncpg.connect(self._url, server_settings={"bench.lane": str(number)})
            for number in range(count)
        ]
        try:
            lanes = [Lane(c, number, count) for number, c in enumerate(connections)]
            yield lanes
        finally:
            for connection in connections:
                await connection.close()

    async def commit_milliseconds(self, commits: int = 30) -> float:
        """Median time of a commit of one row."""
        connection = await asyncpg.connect(self._url)
        try:
            times = []
            for _ in range(commits):
                begin = time.perf_counter()
                await connection.execute("insert into bench.probe default values")
                times.append((time.perf_counter() - begin) * 1000)
            return statistics.median(times)
        finally:
            await connection.close()

    async def empty(self) -> None:
        """So that no measurement pays for what an earlier one wrote."""
        await self._admin.execute(f"truncate {WRITTEN}")


async def measure(
    bench: Bench,
    seconds: float,
    number: int,
    load: str,
    latency: float,
    count: int,
    locks: int,
) -> Cell:
    """One cell of the grid."""
    await bench.empty()
    await bench.use_locks(locks, count)
    rate = OFFERED_PER_SECOND / count if load == "offered" else None
    async with bench.lanes(count) as lanes:
        await asyncio.gather(*(lane.run(0, time.perf_counter() + 0.05, None) for lane in lanes))
        begin = time.perf_counter()
        counted_from, until = begin + WARM_UP_SECONDS, begin + WARM_UP_SECONDS + seconds
        await asyncio.gather(*(lane.run(begin, until, rate) for lane in lanes))
        counted = [
            (lane_number, batch)
            for lane_number, lane in enumerate(lanes)
            for batch in lane.batches
            if counted_from <= batch.committed_at < until
        ]
    commands = sum(batch.count for _, batch in counted)
    waits = sorted(
        (batch.committed_at - begin - (batch.first + k + lane_number / count) / rate) * 1000
        for lane_number, batch in counted
        for k in range(batch.count)
        if rate is not None
    )
    return Cell(
        round=number,
        load=load,
        latency=latency,
        lanes=count,
        locks=locks,
        commands_per_second=commands / seconds,
        batch_mean=commands / max(1, len(counted)),
        wait_p50=waits[len(waits) // 2] if waits else None,
        wait_p99=waits[len(waits) * 99 // 100] if waits else None,
    )


def variants(lanes: int) -> tuple[int, ...]:
    """Numbers of locks that differ: one lane waits for nobody."""
    return (1,) if lanes == 1 else LOCKS


Figures = dict[tuple[str, float, int, int], list[Cell]]


def grouped(cells: Iterable[Cell]) -> Figures:
    """Cells by (load, latency, lanes, locks), in the order of the rounds."""
    groups: Figures = {}
    for cell in cells:
        groups.setdefault((cell.load, cell.latency, cell.lanes, cell.locks), []).append(cell)
    return groups


def rate_against_one(figures: Figures, latency: float, lanes: int, locks: int) -> str:
    """Median of the rounds' ratios and their spread."""
    ratios = [
        several.commands_per_second / one.commands_per_second
        for several, one in zip(
            figures["saturated", latency, lanes, locks],
            figures["saturated", latency, lanes, 1],
            strict=True,
        )
    ]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def wait(figures: Figures, latency: float, lanes: int, locks: int) -> str:
    """Medians over the rounds of p50 and p99."""
    found = figures["offered", latency, lanes, locks]
    middle = statistics.median(cell.wait_p50 or 0.0 for cell in found)
    high = statistics.median(cell.wait_p99 or 0.0 for cell in found)
    return f"{middle:.0f} / {high:.0f}"


def table(cells: Sequence[Cell], measured: dict[float, float]) -> str:
    """The figures as Markdown: rates with full batches, waits under the offered load."""
    several = LOCKS[1:]
    heads = [
        "commit ms",
        "lanes",
        "one lock: commands/s",
        *(f"{locks} locks: x that (spread)" for locks in several),
        f"one lock: wait p50 / p99 ms at {OFFERED_PER_SECOND}/s",
        "mean batch",
        *(f"{locks} locks: wait" for locks in several),
    ]
    lines = [f"| {' | '.join(heads)} |", "|---:" * len(heads) + "|"]
    figures = grouped(cells)
    for latency in LATENCIES_MILLISECONDS:
        for lanes in LANES:
            full = figures["saturated", latency, lanes, 1]
            offered = figures["offered", latency, lanes, 1]
            others = several if lanes > 1 else ()
            row = [
                f"{measured[latency]:.1f}",
                f"{lanes}",
                f"{statistics.median(cell.commands_per_second for cell in full):,.0f}",
                *(rate_against_one(figures, latency, lanes, locks) for locks in others),
                *("" for _ in several if not others),
                wait(figures, latency, lanes, 1),
                f"{statistics.median(cell.batch_mean for cell in offered):.1f}",
                *(wait(figures, latency, lanes, locks) for locks in others),
                *("" for _ in several if not others),
            ]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


async def machine(admin: asyncpg.Connection) -> str:
    """One line: what this ran on."""
    version = await admin.fetchval("show server_version")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), Linux {platform.release()}, PostgreSQL"
        f" {version}, Python {platform.python_version()}, fsync on; load average before: {load}"
    )


@asynccontextmanager
async def prepared(directory: Path) -> AsyncIterator[tuple[Bench, asyncpg.Connection]]:
    """A private server with a migrated database and what the measurement adds."""
    server = PrivatePostgres(directory / "postgres", settings=SETTINGS)
    await server.start()
    try:
        await server.ensure_database("bench")
        address = urlsplit(server.url("bench"))
        host = address.netloc.rpartition("@")[2]
        roles = Roles(coordinator_password=PASSWORD)

        def login(user: str) -> str:
            return address._replace(netloc=f"{user}:{PASSWORD}@{host}").geturl()

        admin = await asyncpg.connect(server.url("bench"))
        try:
            await admin.execute(
                f"create role owner login createrole password '{PASSWORD}';"
                " grant create on database bench to owner"
            )
            await migrate.up(login("owner"), roles=roles)
            owner = await asyncpg.connect(login("owner"))
            try:
                await owner.execute(ADDED)
            finally:
                await owner.close()
            bench = Bench(admin, login(roles.coordinator))
            await bench.prepare()
            yield bench, admin
        finally:
            await admin.close()
    finally:
        await server.stop()


async def run(directory: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure the grid and print the table; returns everything that was measured."""
    async with prepared(directory) as (bench, admin):
        about = await machine(admin)
        print(about, flush=True)
        await bench.use_delay(0)
        flush = await bench.commit_milliseconds()
        cells: list[Cell] = []
        latencies: dict[float, list[float]] = {one: [] for one in LATENCIES_MILLISECONDS}
        for number in range(1, rounds + 1):
            for latency in LATENCIES_MILLISECONDS:
                await bench.use_delay(max(0.0, latency - flush) if latency > 1 else 0)
                latencies[latency].append(await bench.commit_milliseconds())
                grid = [
                    (load, lanes, locks)
                    for load in ("saturated", "offered")
                    for lanes in LANES
                    for locks in variants(lanes)
                ]
                for load, lanes, locks in grid:
                    cell = await measure(bench, seconds, number, load, latency, lanes, locks)
                    cells.append(cell)
            print(f"round {number} of {rounds} done", flush=True)
    measured = {latency: statistics.median(found) for latency, found in latencies.items()}
    print(table(cells, measured))
    return {
        "machine": about,
        "seconds_per_cell": seconds,
        "offered_per_second": OFFERED_PER_SECOND,
        "commit_milliseconds": measured,
        "cells": [asdict(cell) for cell in cells],
    }


def main() -> None:
    """``python bench/append_lock.py``."""
    parser = argparse.ArgumentParser(description="Measure what one append lock costs.")
    parser.add_argument("--seconds", type=float, default=0.6, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("build/bench/append_lock.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory:
        Path(directory).chmod(0o711)  # the server may run under another account
        figures = asyncio.run(run(Path(directory), arguments.seconds, arguments.rounds))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()
