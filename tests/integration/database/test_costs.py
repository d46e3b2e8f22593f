"""What one task costs: statements, round trips, rows, WAL and message bytes. Counted, never timed.

Bounds lie a little above what was counted, so that waste that creeps in is noticed. A bound that a
change has to raise says in its commit what the bytes are for.
"""

import dataclasses
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from tenure.contract.ids import AttemptId, FencingToken, IncarnationId, NodeId, TaskId
from tenure.coordinator.core.commands import Deliver, Take
from tests.support.authority import Bench, Held, replica
from tests.support.isolation import FreshDatabase
from tests.support.wire_traffic import Traffic, counted

BATCH = 100
ROUNDS = 3
"""Of which the smallest figure counts: others may write to the same server meanwhile."""

STATEMENTS_OF_A_BATCH = 9
"""Submit, take and deliver: one that loads and one that commits. Allocate: free nodes, waiting
tasks, commit."""

ROWS_OF_A_TASK = {  # inserted, updated, deleted
    "tasks": (1, 2, 0),  # allocated; delivered
    "task_inputs": (1, 0, 0),
    "attempts": (1, 2, 0),  # taken; delivered
    "reservations": (1, 0, 1),
    "commands": (3, 0, 0),  # submit, take, deliver
    "receipts": (1, 0, 0),
    "log": (7, 0, 0),  # six events, and the assignment to the node's queue
}
ROWS_OF_A_BATCH = {"incarnations": (0, 2, 0)}  # slots taken and given back
WAL_BYTES_OF_A_TASK = 14_500  # 13,000 counted, in batches and alone
BODY_BYTES = {
    ("task", "open"): 510,  # 467 counted
    ("attempt", "submitted"): 700,  # 643
    ("attempt", "accepted"): 700,  # 647
    ("attempt", "running"): 700,  # 644
    ("attempt", "delivered"): 760,  # 699
    ("task", "delivered"): 570,  # 527
}


def show(figure: str) -> None:
    """Seen with -s, and when the test fails."""
    print(f"\n{figure}")  # noqa: T201 - its figures are what these tests are about


class Counts(NamedTuple):
    """Rows written to a table; ``in_place``: updates that touched no index, among ``updated``."""

    inserted: int
    updated: int
    deleted: int
    in_place: int


@dataclasses.dataclass
class Meter:
    """A replica whose traffic with its database is counted."""

    bench: Bench
    traffic: Traffic

    async def wal_position(self) -> int:
        """Bytes of WAL written so far on the whole server."""
        position: int = await self.bench.owner.fetchval(
            "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
        )
        return position


@asynccontextmanager
async def metered(database: FreshDatabase) -> AsyncIterator[Meter]:
    """A running replica behind a counting proxy, one node with free slots, connections warm."""
    async with (
        counted(database.coordinator_url) as (url, traffic),
        replica(dataclasses.replace(database, coordinator_url=url)) as bench,
    ):
        await bench.register(slots=2 * BATCH)
        await live(bench, BATCH)
        traffic.clear()
        yield Meter(bench, traffic)


async def live(bench: Bench, tasks: int) -> list[TaskId]:
    """So many whole lives, each step of all of them in one batch."""
    submissions = [bench.submission() for _ in range(tasks)]
    task_ids = [command.task_id for command in submissions]
    await bench.authority.submit(submissions)
    assert await bench.scheduler.step() == tasks
    held = await holdings(bench, task_ids)
    text = json.dumps({"sha256": "0" * 64, "bytes": 12345})
    digest = hashlib.sha256(text.encode()).digest()
    outcomes = [
        *await bench.authority.report([bench.command(Take, one) for one in held]),
        *await bench.authority.report(
            [bench.command(Deliver, one, output_text=text, content_digest=digest) for one in held]
        ),
    ]
    assert [o.reply.outcome for o in outcomes if o.reply is not None] == ["applied"] * 2 * tasks
    return task_ids


async def holdings(bench: Bench, task_ids: Sequence[TaskId]) -> list[Held]:
    """Current attempts, read over the owner's connection, which is not counted."""
    rows = await bench.owner.fetch(
        "select a.* from tenure.attempts a join tenure.tasks t"
        " on t.current_attempt_id = a.attempt_id where t.task_id = any ($1::uuid[])",
        task_ids,
    )
    return [
        Held(
            TaskId(str(row["task_id"])),
            AttemptId(str(row["attempt_id"])),
            NodeId(row["node_id"]),
            IncarnationId(str(row["incarnation"])),
            FencingToken(row["fencing_token"]),
        )
        for row in rows
    ]


async def rows_written(bench: Bench) -> dict[str, Counts]:
    """Rows inserted, updated and deleted so far, and updated without touching an index, by table;
    partitions of the log together."""
    connections = [await bench.pool.acquire() for _ in range(bench.pool.get_max_size())]
    for connection in connections:  # sessions report what they did when they please, unless asked
        await connection.execute("select pg_stat_force_next_flush()")
        await bench.pool.release(connection)
    records = await bench.owner.fetch(
        "select case when relname like 'log%' then 'log' else relname end as name,"
        " sum(n_tup_ins)::bigint as inserted, sum(n_tup_upd)::bigint as updated,"
        " sum(n_tup_del)::bigint as deleted, sum(n_tup_hot_upd)::bigint as in_place"
        " from pg_stat_user_tables where schemaname = 'tenure' group by 1"
    )
    return {
        record["name"]: Counts(
            record["inserted"], record["updated"], record["deleted"], record["in_place"]
        )
        for record in records
    }


@pytest.mark.parametrize("tasks", [BATCH, 1])
async def test_a_batch_of_any_size_takes_nine_statements_and_a_round_trip_each(
    database: FreshDatabase, tasks: int
) -> None:
    async with metered(database) as meter:
        await live(meter.bench, tasks)
        counts = (meter.traffic.statements, meter.traffic.round_trips)
    show(f"{tasks} tasks: statements and round trips {counts}")
    assert counts == (STATEMENTS_OF_A_BATCH, STATEMENTS_OF_A_BATCH)


@pytest.mark.parametrize("tasks", [BATCH, 1])
async def test_a_task_writes_twenty_rows_and_a_batch_two_of_its_node(
    database: FreshDatabase, tasks: int
) -> None:
    async with metered(database) as meter:
        before = await rows_written(meter.bench)
        await live(meter.bench, tasks)
        after = await rows_written(meter.bench)
    written = {
        name: Counts(*(new - old for new, old in zip(counts, before[name], strict=True)))
        for name, counts in after.items()
        if counts != before[name]
    }
    show(f"{tasks} tasks: rows {written}")
    assert {name: counts[:3] for name, counts in written.items()} == ROWS_OF_A_BATCH | {
        name: tuple(count * tasks for count in counts) for name, counts in ROWS_OF_A_TASK.items()
    }
    # Taking an attempt changes nothing that is indexed, and its page has room for the new version.
    assert written["attempts"].in_place == tasks


@pytest.mark.parametrize("tasks", [BATCH, 1])
async def test_the_wal_of_a_task_stays_within_its_bound(
    database: FreshDatabase, tasks: int
) -> None:
    async with metered(database) as meter:
        # Every page that a life touches is touched once before, so that it is not logged whole.
        await live(meter.bench, tasks)
        found = []
        for _ in range(ROUNDS):
            before = await meter.wal_position()
            await live(meter.bench, tasks)
            found.append((await meter.wal_position() - before) / tasks)
    show(f"{tasks} tasks: {min(found):,.0f} bytes of WAL each")
    assert min(found) < WAL_BYTES_OF_A_TASK


async def test_the_messages_of_a_task_stay_within_their_bounds(database: FreshDatabase) -> None:
    async with replica(database) as bench:
        await bench.register(slots=1)
        (task_id,) = await live(bench, 1)
        sizes = {
            (event["entity_type"], event["next_state"]): len(event["body"])
            for event in await bench.events(task_id)
        }
    show(f"bytes of a message: {sizes}")
    assert sizes.keys() == BODY_BYTES.keys()
    assert {kind: size for kind, size in sizes.items() if size > BODY_BYTES[kind]} == {}
