"""``make trial-retention``: millions of ended rows removed by three replicas under live traffic.

A database that was used for more than a year is made: two million rows that the policy lets go, a
log of a million published rows, and tasks as old that go on. Three replicas take 500 events a
second, in turn alone and while each of them removes what is due: without the rest that their loops
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
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
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


@dataclass(frozen=True)
class Asked:
    """What a run is to be."""

    rows: int
    events_per_second: float
    slice_seconds: float
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
            alone, beside = await _in_turn(admin, made, asked)
            size_after = await _log_bytes(admin)
            rows = await admin.fetch("select kind, removed_rows from tenure.retention")
            removed = {row["kind"]: row["removed_rows"] for row in rows if row["removed_rows"]}
        faults = [
            *_lane_faults(made, alone, beside),
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
        "removed": removed,
        "seconds": round(beside.seconds, 1),
        "rows_per_second": round(old.ended / beside.seconds),
        "events_per_second": {
            "offered": asked.events_per_second,
            "alone": round(alone.per_second * EVENTS_OF_A_TASK, 1),
            "beside": round(beside.per_second * EVENTS_OF_A_TASK, 1),
        },
        "submit_milliseconds": {
            name: {"p50": one.milliseconds(50), "p99": one.milliseconds(99), "of": len(one.waits)}
            for name, one in (("alone", alone), ("beside", beside))
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


async def _in_turn(
    admin: asyncpg.Connection, made: Traffic, asked: Asked
) -> tuple[Counted, Counted]:
    """Slices of traffic alone and of traffic beside the removal, in turn, so that what else the
    machine does befalls both, until nothing is due. What submissions took alone and beside it."""
    alone, beside = Counted(), Counted()
    removers = [Retention(bench.pool, lambda kind, rows: None) for bench in made.benches]
    while await admin.fetch(DUE):
        async with _submitting(made, asked, alone):
            await asyncio.sleep(asked.slice_seconds)
        purge = _purged_gently if asked.gently else _purged
        async with _submitting(made, asked, beside):
            removing = [asyncio.create_task(purge(remover)) for remover in removers]
            due = await _nothing_due(admin, asked.slice_seconds)
            for one in removing:
                one.cancel()
            await asyncio.gather(*removing, return_exceptions=True)
        _say(
            f"due: {', '.join(due) or 'nothing'}; p99 of submissions {alone.milliseconds(99)} ms"
            f" alone, {beside.milliseconds(99)} ms beside"
        )
    return alone, beside


@asynccontextmanager
async def _submitting(made: Traffic, asked: Asked, into: Counted) -> AsyncIterator[None]:
    """For the length of a block, and until what was submitted is done."""
    stop = asyncio.Event()
    submitting = asyncio.create_task(made.submit(asked.events_per_second, into, stop))
    try:
        yield
    finally:
        stop.set()
        await submitting
    await made.all_done()


async def _purged(remover: Retention) -> None:
    """Until cancelled, without rest."""
    while True:
        done, _ = await remover.run_now(tuple(RetentionKind))
        if not any(done.values()):
            await asyncio.sleep(LOOK_SECONDS)


async def _purged_gently(remover: Retention) -> None:
    """Until cancelled, as the coordinators' loops do."""
    await remover.run()


async def _nothing_due(admin: asyncpg.Connection, seconds: float) -> list[str]:
    """Wait until nothing is due, at most so long; the kinds of which something is."""
    end = time.monotonic() + seconds
    while True:
        due = [row["kind"] for row in await admin.fetch(DUE)]
        if not due or time.monotonic() > end:
            return due
        await asyncio.sleep(LOOK_SECONDS)


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
    removed: Mapping[str, int],
    going_on: set[TaskId],
) -> list[str]:
    """What was removed and should not have been, or the other way round."""
    faults = [
        f"{removed.get(kind, 0):,} rows of {kind} were removed, {rows:,} were due"
        for kind, rows in old.by_kind.items()
        if kind != "log" and removed.get(kind) != rows
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
    parser.add_argument("--slice-seconds", type=float, default=15.0, help="of each, in turn")
    return parser.parse_args(words)


async def main(arguments: argparse.Namespace) -> int:
    """Run it on a server of its own; 0 when nothing is wrong."""
    asked = Asked(arguments.rows, arguments.events, arguments.slice_seconds, arguments.gently)
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
