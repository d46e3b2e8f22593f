"""No statement of the authority reads a large table from end to end, whatever the planner knows.

Plans are made while the tables are empty and kept by the connections; then the tables grow, and
nothing has analysed them.
"""

import json
from collections.abc import AsyncIterator, Iterator
from importlib import resources
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tenure.coordinator.core.commands import Reject, Renew
from tenure.coordinator.intake import Intake
from tenure.coordinator.reconciler import Reconciler
from tenure.coordinator.store import named_queries
from tenure.coordinator.sweeper import Sweeper
from tests.support.authority import Bench, replica
from tests.support.isolation import FreshDatabase
from tests.support.sessions import session

LARGE = (
    "tasks",
    "task_inputs",
    "attempts",
    "commands",
    "receipts",
    "renewals",
    "log_p000001",
    "intake",
)
ROWS = 20_000
GROWTH = f"""
    create temporary table grown as
        select n, gen_random_uuid() as id from generate_series(1, {ROWS}) n;
    insert into tenure.tasks (task_id, tenant, type, state, version, sequence, generation, priority,
        effects, max_attempts, cpu_millis, memory_bytes, profile_digest, created_at,
        queued_as_of, ripe, decided_at, ended_at, not_before, deadline)
    select id, 'default', case when n % 2 = 0 then 'other' else 'sha256' end,
        case when n % 2 = 0 then 'open' else 'delivered' end, 1, 1, 1, -10, 'idempotent', 5, 0,
        0, sha256('any'), now(), now(), true, now(), case when n % 2 = 1 then now() end, null,
        now() + interval '2 hours'
    from grown;
    insert into tenure.task_inputs select id, 'default', '{{}}' from grown;
    insert into tenure.commands
    select id, 'default', '', 'applied', '{{"outcome":"applied"}}', now() from grown;
    insert into tenure.attempts (attempt_id, task_id, tenant, ordinal, state, reason, version,
        sequence, node_id, incarnation, lease_id, fencing_token, policy_version,
        lease_microseconds, expires_at, scope, dispatch_event_id, dispatched_at, submitted_at,
        ended_at, decided_at)
    select id, id, 'default', 1, 'failed', 'any', 1, 1, 'node', gen_random_uuid(), id, 1, 1, 1,
        now(), '{{}}', id, now(), now(), now(), now()
    from grown;
    insert into tenure.receipts
    select id, 'default', id, id, 'node', id, true, null, now(), 1, 1, 1, '', '1' from grown;
    insert into tenure.renewals select id, id, 'default', now(), now(), 'any', now() from grown;
    insert into tenure.intake (tenant, command_id, task_id, type, input, priority, fingerprint,
        enqueued_by, state, code, decided_at)
    select 'default', id, id, 'sha256', case when n % 2 = 0 then '1'::json end, 0, '', 'any',
        case when n % 2 = 0 then 'refused' else 'taken' end, case when n % 2 = 0 then 'any' end,
        now()
    from grown;
    insert into tenure.log (shard, order_key, tenant, entity_type, entity_id, epoch, sequence,
        event_id, next_state, copy, exchange, routing_key, required, recorded_at, body)
    select n % 64, id, 'default', 'task', id, 1, 1, gen_random_uuid(), 'open', false, 'e', 'k',
        false, now(), '' from grown;
"""


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        for table in LARGE:
            await bench.owner.execute(
                f"alter table tenure.{table} set (autovacuum_enabled = false)"
            )
        await bench.owner.execute(
            "insert into tenure.intake_roles values (session_user, 'default')"
        )
        yield bench


async def live(bench: Bench) -> None:
    """Everything that the authority does, once or more."""
    delivered = await bench.running()
    await bench.authority.renew([bench.command(Renew, delivered)], delivered.incarnation)
    await bench.deliver(delivered, 1)
    failed = await bench.running()
    await bench.fail(failed, retryable=False)
    rejected = await bench.assigned(await bench.submit())
    await bench.report(Reject, rejected, reason="node_draining", message="")
    await bench.cancel(rejected.task_id)
    cancelled = await bench.running()
    await bench.cancel(cancelled.task_id)
    await bench.confirm_cancel(cancelled)
    late = await bench.running()
    await bench.end_lease(late)
    await bench.deliver(late, 1)
    await Sweeper(bench.pool, bench.authority).step()
    await bench.cancel(late.task_id)
    await Reconciler(bench.pool).step()
    key = str(uuid4())
    for type_name in ("sha256", "sha256", "nobody_has"):
        await bench.owner.execute("select tenure.enqueue($1, '1', $2)", type_name, key + type_name)
        await Intake(bench.pool, bench.authority, payload_limit_bytes=1000).step()


async def rows_read(bench: Bench) -> dict[str, int]:
    """How many rows of each large table were read so far, by whatever way."""
    connections = [await bench.pool.acquire() for _ in range(bench.pool.get_max_size())]
    for connection in reversed(connections):  # the one last used is the next again, with its plans
        await connection.execute("select pg_stat_force_next_flush()")
        await bench.pool.release(connection)
    await bench.owner.execute("select pg_stat_force_next_flush()")
    records: list[asyncpg.Record] = await bench.owner.fetch(
        "select relname, seq_tup_read + idx_tup_fetch as read from pg_stat_user_tables"
        " where schemaname = 'tenure' and relname = any ($1)",
        LARGE,
    )
    return {record["relname"]: record["read"] for record in records}


async def assert_little_is_read(bench: Bench, lives: int) -> None:
    before = await rows_read(bench)
    for _ in range(lives):
        await live(bench)
    after = await rows_read(bench)
    assert max(after[table] - before[table] for table in LARGE) < ROWS / 10


async def test_plans_made_on_empty_tables_read_no_large_table_whole(bench: Bench) -> None:
    await bench.register(slots=100)
    for _ in range(7):  # so that every connection has settled on its plans
        await live(bench)
    await bench.owner.execute(GROWTH)
    await assert_little_is_read(bench, 3)


async def test_plans_made_on_large_unknown_tables_read_none_whole(bench: Bench) -> None:
    await bench.register(slots=100)
    await bench.owner.execute(GROWTH)
    await assert_little_is_read(bench, 7)


FOR_PEOPLE = {"plan_intake"}
"""May read a large table from end to end: asked by hand, and rarely."""
FILES = sorted(
    entry.name
    for entry in (resources.files("tenure.coordinator.store") / "queries").iterdir()
    if entry.name.endswith(".sql") and not entry.name.startswith("verify_")
)
PLANNED = {
    "once": "set plan_cache_mode = force_generic_plan; set enable_seqscan = off;"
    " set enable_hashjoin = off; set enable_mergejoin = off; set jit = off",
    "each time": "set jit = off",
}
"""How connections are prepared that come again and again, and how those that people look with."""


def read_whole(plan: dict[str, Any]) -> Iterator[str]:
    """The tables that a plan reads from end to end."""
    if plan["Node Type"] in ("Seq Scan", "Parallel Seq Scan"):
        yield plan["Relation Name"]
    for part in plan.get("Plans", ()):
        yield from read_whole(part)


@pytest.mark.parametrize("planned", PLANNED)
async def test_no_query_is_planned_to_read_a_large_table_whole(
    bench: Bench, database: FreshDatabase, planned: str
) -> None:
    """Every one there is; on large tables that nobody has analysed, whatever its arguments."""
    await bench.owner.execute(GROWTH)
    asked, whole = 0, {}
    async with session(database.coordinator_url) as connection:
        await connection.execute(PLANNED[planned])
        for file_name in FILES:
            for name, query in named_queries.load(file_name).items():
                arguments = [None] * len((await connection.prepare(query)).get_parameters())
                text = await connection.fetchval(
                    f"explain (generic_plan, format json) {query}", *arguments
                )
                asked += 1
                tables = {*read_whole(json.loads(text)[0]["Plan"])} & {*LARGE}
                if tables and name not in FOR_PEOPLE:
                    whole[file_name, name] = tables
    assert whole == {}
    assert asked > 60
