"""``make trial-retention``: millions of ended rows removed by three replicas under live traffic.

A database that was used for more than a year is made: two million rows that the policy lets go, a
log of a million published rows, and tasks as old that go on. Three replicas take 500 events a
second, first alone, then while each of them removes what is due, without the rest that their loops
take (as ``tenure retention run`` does at three places at once) or, with ``--gently``, with it. It
passes when no commit failed
or met a deadlock, everything due is gone, nothing else is, and ``tenure verify`` finds nothing.
Figures of time are printed and not judged: the machine may have other work. The last line of the
output is JSON.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg

from tenure.contract.ids import TaskId
from tenure.contract.states import RetentionKind
from tenure.coordinator.retention import Retention
from tenure.coordinator.store.verify import verify
from tests.support.isolation import DatabaseServer, FreshDatabase
from tests.support.services import local_postgres
from tests.trials.old_rows import Old, fill
from tests.trials.traffic import EVENTS_OF_A_TASK, Counted, Traffic, traffic

REPLICAS: Final = 3
GOING_ON: Final = 200
"""Tasks as old as all others that wait for their time."""
PARTITION: Final = 10_000_000
DUE: Final = "select kind from tenure.retention_due()"
LOOK_SECONDS: Final = 0.2
PROGRESS_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Asked:
    """What a run is to be."""

    rows: int
    events_per_second: float
    quiet_seconds: float
    gently: bool


async def run(asked: Asked, database: FreshDatabase) -> dict[str, Any]:
    """One run; its figures, with ``faults``: what is wrong."""
    admin = await asyncpg.connect(database.admin_url)
    try:
        # What will be copied is recorded in the log's second partition; the first is all old, and
        # as if it were published.
        await admin.execute(
            f"""
            select setval('tenure.log_position', {PARTITION - 1});
            select tenure.ensure_log_partitions(2);
            update tenure.relay_shards set position = {PARTITION - 1};
            """
        )
        async with traffic(database, REPLICAS) as made:
            old, going_on = await _past(admin, made, asked.rows)
            size_before = await _log_bytes(admin)
            _say(f"{old.ended:,} ended rows are due, and {old.by_kind['log']:,} of the log")
            alone = await _alone(made, asked)
            meanwhile, removed, seconds = await _while_removing(admin, made, asked)
            await made.all_done()
            size_after = await _log_bytes(admin)
        faults = [
            *_lane_faults(made, alone, meanwhile),
            *await _faults(admin, database, made, old, removed, going_on),
        ]
        if size_after >= size_before:
            faults.append(f"the log has {size_after:,} bytes, before it had {size_before:,}")
    finally:
        await admin.close()
    return {
        "trial": "retention",
        "replicas": REPLICAS,
        "gently": asked.gently,
        "due": {"rows": old.ended, **old.by_kind},
        "removed": dict(removed),
        "seconds": round(seconds, 1),
        "rows_per_second": round(old.ended / seconds),
        "events_per_second": {
            "offered": asked.events_per_second,
            "alone": round(alone.per_second * EVENTS_OF_A_TASK, 1),
            "meanwhile": round(meanwhile.per_second * EVENTS_OF_A_TASK, 1),
        },
        "submit_milliseconds": {
            name: {"p50": one.milliseconds(50), "p99": one.milliseconds(99), "of": len(one.waits)}
            for name, one in (("alone", alone), ("meanwhile", meanwhile))
        },
        "log_bytes": {"before": size_before, "after": size_after},
        "load_average": [round(one, 1) for one in os.getloadavg()],
        "faults": faults,
    }


async def _past(admin: asyncpg.Connection, made: Traffic, rows: int) -> tuple[Old, set[TaskId]]:
    """Make what is due and what is as old and goes on; the tasks that do."""
    bench = made.benches[0]
    far = datetime.now(UTC) + timedelta(days=3650)
    going_on = {
        await bench.submit(not_before=int(far.timestamp() * 1_000_000)) for _ in range(GOING_ON)
    }
    made.submitted.add(await bench.submit())
    await made.all_done()
    await admin.execute(
        """
        set session_replication_role = replica;
        update tenure.tasks set created_at = created_at - interval '400 days',
            queued_as_of = queued_as_of - interval '400 days',
            decided_at = decided_at - interval '400 days' where ended_at is null;
        set session_replication_role = default;
        insert into tenure.renewals
        select lease_id, attempt_id, tenant, expires_at, expires_at, node_id, submitted_at
        from tenure.attempts
        """
    )
    old = await fill(admin, rows)
    await admin.execute("checkpoint")
    return old, going_on


async def _alone(made: Traffic, asked: Asked) -> Counted:
    """What submissions take while nothing is removed."""
    found, stop = Counted(), asyncio.Event()
    submitting = asyncio.create_task(made.submit(asked.events_per_second, found, stop))
    await asyncio.sleep(asked.quiet_seconds)
    stop.set()
    await submitting
    await made.all_done()
    return found


async def _while_removing(
    admin: asyncpg.Connection, made: Traffic, asked: Asked
) -> tuple[Counted, Counter[str], float]:
    """The same while every replica removes, until nothing is due; what they removed, by kind, of
    the log partitions, and in how many seconds."""
    found, stop = Counted(), asyncio.Event()
    removed: Counter[str] = Counter()

    def note(kind: str, rows: int) -> None:
        removed[kind] += rows

    async def purge(remover: Retention) -> None:
        while not stop.is_set():
            if asked.gently:
                running = asyncio.create_task(remover.run())
                await stop.wait()
                running.cancel()
                return
            done, _ = await remover.run_now(tuple(RetentionKind))
            if not any(done.values()):
                await asyncio.sleep(LOOK_SECONDS)

    clock = time.monotonic
    began = told = clock()
    async with asyncio.TaskGroup() as group:
        group.create_task(made.submit(asked.events_per_second, found, stop))
        for bench in made.benches:
            group.create_task(purge(Retention(bench.pool, note)))
        while due := [row["kind"] for row in await admin.fetch(DUE)]:
            if clock() > told + PROGRESS_SECONDS:
                told = clock()
                _say(f"{sum(removed.values()):,} removed; due: {', '.join(due)}")
            await asyncio.sleep(LOOK_SECONDS)
        seconds = clock() - began
        stop.set()
    return found, removed, seconds


def _lane_faults(made: Traffic, *phases: Counted) -> list[str]:
    """What the lanes met, and what became of submissions."""
    errors = Counter(error for bench in made.benches for error in bench.observer.errors)
    refused = Counter(code for phase in phases for code in phase.refused)
    return [f"lanes: {name} {number} times" for name, number in (errors + refused).items()]


async def _faults(
    admin: asyncpg.Connection,
    database: FreshDatabase,
    made: Traffic,
    old: Old,
    removed: Counter[str],
    going_on: set[TaskId],
) -> list[str]:
    """What was removed and should not have been, or the other way round."""
    faults = [
        f"{removed[kind]:,} rows of {kind} were removed, {rows:,} were due"
        for kind, rows in old.by_kind.items()
        if kind != "log" and removed[kind] != rows
    ]
    expected = made.submitted | going_on
    for table, tasks in {
        "tasks": expected,
        "task_inputs": expected,
        "attempts": made.submitted,
        "receipts": made.submitted,
    }.items():
        rows = await admin.fetch(f"select task_id from tenure.{table}")
        found = Counter(str(row["task_id"]) for row in rows)
        if found != Counter(map(str, tasks)):
            faults.append(
                f"{table}: {len(found.keys() - tasks)} tasks too many,"
                f" {len(tasks - found.keys())} missing"
            )
    first = await admin.fetchval("select min(position) from tenure.log")
    if first < PARTITION:
        faults.append(f"the log begins at {first:,}")
    deadlocks = await admin.fetchval(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    if deadlocks:
        faults.append(f"{deadlocks} deadlocks")
    findings = await verify(database.owner_url)
    return faults + [f"verify: {name}: {found}" for name, found in findings.broken.items()]


async def _log_bytes(admin: asyncpg.Connection) -> int:
    size: int = await admin.fetchval(
        "select sum(pg_total_relation_size(c.oid))::bigint from pg_class c"
        " where c.relnamespace = 'tenure'::regnamespace and c.relkind = 'r'"
        " and c.relname ~ '^log_(p[0-9]+|default)$'"
    )
    return size


def _say(text: str) -> None:
    print(text, flush=True)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(prog="make trial-retention", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="that have ended")
    parser.add_argument("--events", type=float, default=500.0, help="offered a second")
    parser.add_argument("--gently", action="store_true", help="as the coordinators' loops do")
    parser.add_argument("--quiet-seconds", type=float, default=30.0, help="before the removal")
    return parser.parse_args(words)


async def main(arguments: argparse.Namespace) -> int:
    """Run it on a server of its own; 0 when nothing is wrong."""
    asked = Asked(arguments.rows, arguments.events, arguments.quiet_seconds, arguments.gently)
    with tempfile.TemporaryDirectory(prefix="tenure-trial-") as temporary:
        directory = Path(temporary)
        os.chmod(directory, 0o711)
        async with local_postgres(directory) as postgres:
            server = DatabaseServer(postgres.url())
            await server.prepare()
            found = await run(asked, await server.create_migrated("trial"))
    for fault in found["faults"]:
        _say(f"WRONG: {fault}")
    print(json.dumps(found))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parsed())))
