"""``tenure verify`` finds nothing in a lived-in database, and names whatever somebody damages."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tenure.cli.exits import Exit
from tenure.cli.local import processes
from tenure.coordinator.store.verify import INVARIANTS, verify
from tests.support.authority import replica
from tests.support.history import live
from tests.support.isolation import DatabaseServer, FreshDatabase
from tests.support.repository import REPOSITORY

TASK = "(select task_id from tenure.tasks where state = '{}' order by task_id limit 1)"
DELIVERED, OPEN = TASK.format("delivered"), TASK.format("open")
UNDER_WAY = (
    "(select attempt_id from tenure.attempts where ended_at is null order by attempt_id limit 1)"
)
DONE = "(select attempt_id from tenure.attempts where state = 'delivered' limit 1)"
ADMITTED = "(select receipt_id from tenure.receipts where admitted limit 1)"
LIVE = (
    "(select incarnation from tenure.incarnations where state = 'active'"
    " order by slots_used desc limit 1)"
)
EVENT = f"(select max(position) from tenure.log where order_key = {DELIVERED} and not copy)"


def parking(due_at: str, of_shard: str) -> str:
    """A row of the log parked, due as given, and its shard changed as given."""
    return (
        "with p as (insert into tenure.parked (position, shard, tenant, stream_type, stream_id,"
        " event_id, exchange, routing_key, required, recorded_at, body, state, reason, detail,"
        " holds, due_at, parked_at) select position, shard, tenant, entity_type, entity_id,"
        " event_id, exchange, routing_key, required, recorded_at, body, 'failed', 'returned', '',"
        f" true, {due_at}, now() from tenure.log where position = {EVENT}"
        " returning shard, position)"
        f" update tenure.relay_shards s set {of_shard} from p where p.shard = s.shard"
    )


DAMAGE = {
    "streams-count-without-gaps": f"delete from tenure.log where position ="
    f" (select min(position) from tenure.log where order_key = {DELIVERED} and not copy)",
    "streams-keep-their-shard": "update tenure.log set shard = 63 - shard"
    f" where position = {EVENT}",
    "every-state-has-its-event": f"update tenure.tasks set state = 'held', reason = 'any'"
    f" where task_id = {OPEN}",
    "ended-records-are-unchanged": "update tenure.tasks set reason = 'any'"
    f" where task_id = {DELIVERED}",
    "attempts-move-as-permitted": f"update tenure.log set next_state = 'rejected'"
    f" where entity_id = {DONE} and next_state = 'accepted'",
    "tasks-move-as-permitted": "update tenure.log set next_state = 'delivered' where position = ("
    " select min(position) from tenure.log where entity_type = 'task' and entity_id = ("
    "  select entity_id from tenure.log where entity_type = 'task' and sequence = 2 limit 1))",
    "one-open-attempt-per-task": f"update tenure.tasks set current_attempt_id = null"
    f" where current_attempt_id = {UNDER_WAY}",
    "one-active-delivery-per-task": "drop index tenure.receipts_one_active;"
    " update tenure.receipts set admitted = true, code = null where not admitted",
    "tokens-grow-per-task": "update tenure.attempts set fencing_token = 1"
    " where attempt_id = (select attempt_id from tenure.attempts where ordinal = 2 limit 1)",
    "leases-end-by-the-deadline": "update tenure.tasks set deadline = ("
    " select min(expires_at) - interval '1 s' from tenure.attempts)"
    f" where task_id = {DELIVERED}",
    "deliveries-are-under-authority": f"update tenure.attempts set expires_at = submitted_at"
    f" where attempt_id = {DONE}",
    "limits-of-tasks-are-kept": f"update tenure.tasks set failures = max_attempts + 1"
    f" where task_id = {OPEN}",
    "times-run-forward": f"update tenure.tasks set created_at = now() + interval '1 h'"
    f" where task_id = {DELIVERED}",
    "tenants-are-kept-apart": f"update tenure.task_inputs set tenant = 'other'"
    f" where task_id = {OPEN}",
    "tasks-have-their-profile": "delete from tenure.profiles",
    "erased-tasks-keep-nothing": "insert into tenure.erasures"
    f" values ({DELIVERED}, 'default', now(), 'any', 'any')",
    "repetitions-are-of-ended-tasks": "update tenure.tasks set retry_of = task_id"
    f" where task_id = {OPEN}",
    "attempts-are-of-a-task": f"delete from tenure.tasks where task_id = {DELIVERED}",
    "attempts-are-at-a-node": f"update tenure.attempts set node_id = 'other'"
    f" where attempt_id = {DONE}",
    "open-attempts-have-reservations": f"delete from tenure.reservations"
    f" where attempt_id = {UNDER_WAY}",
    "leases-are-under-a-policy": f"update tenure.attempts set policy_version = 99"
    f" where attempt_id = {UNDER_WAY}",
    "streams-of-nodes-count-without-gaps": f"delete from tenure.log where order_key = {LIVE}"
    " and sequence = 1; "
    f"update tenure.log set sequence = 3 where order_key = {LIVE}; "
    "update tenure.log set sequence = 9 where entity_type = 'node' and sequence = 2",
    "every-state-of-a-node-has-its-event": f"update tenure.incarnations set state = 'draining'"
    f" where incarnation = {LIVE}",
    "counters-equal-reservations": f"update tenure.incarnations set slots_used = 0"
    f" where incarnation = {LIVE}",
    "nodes-are-not-oversold": "alter table tenure.incarnations"
    " drop constraint slots_are_not_oversold;"
    f" update tenure.incarnations set slots = slots_used - 1 where incarnation = {LIVE}",
    "types-are-within-their-concurrency": f"update tenure.incarnations set type_concurrency ="
    f" array_fill(0, array[cardinality(task_types)]) where incarnation = {LIVE}",
    "one-live-incarnation-per-node": "update tenure.incarnations set state = 'active'"
    " where state = 'gone'; update tenure.nodes set incarnation = null",
    "receipts-are-of-attempts": f"update tenure.receipts set fencing_token = 1"
    f" where receipt_id = {ADMITTED}",
    "commands-are-consistent": "update tenure.commands set outcome = 'other'"
    " where command_id = (select command_id from tenure.commands limit 1)",
    "taken-rows-have-a-task": "delete from tenure.tasks where task_id ="
    " (select task_id from tenure.intake where state = 'taken' limit 1)",
    "renewals-lengthen-live-leases": "update tenure.renewals"
    " set new_expires_at = prior_expires_at - interval '1 s'",
    "events-are-of-known-streams": "update tenure.tasks set sequence = sequence - 1"
    f" where task_id = {DELIVERED}",
    "events-say-what-the-log-says": "update tenure.log"
    " set body = convert_to(replace(convert_from(body, 'UTF8'), 'delivered', 'cancelled'), 'UTF8')"
    f" where position = {EVENT}",
    "copies-have-an-original": "update tenure.log set event_id = gen_random_uuid()"
    " where position = (select min(position) from tenure.log where copy)",
    "log-has-its-partitions": "alter table tenure.log detach partition tenure.log_p000001;"
    " insert into tenure.log select * from tenure.log_p000001",
    "authority-has-its-epoch": "update tenure.authority set epoch = epoch + 1",
    "policies-are-counted": "update tenure.policies set version = 2",
    "accounts-equal-reservations": "update tenure.accounts set held_minor = held_minor + 1",
    "accounts-equal-deliveries": "update tenure.accounts set spent_minor = spent_minor + 1",
    "reservations-are-of-open-attempts": "insert into tenure.reservations"
    f" select {DONE}, 'default', 'any', null, gen_random_uuid(), 0, 0, 0, 0, now()",
    "reservations-count-with-their-task": "update tenure.reservations set concurrency_key = 'any'",
    "limits-are-kept": "update tenure.limits set max_running = 1, set_at = '2026-01-01';"
    " insert into tenure.reservations select gen_random_uuid(), tenant, type, concurrency_key,"
    " incarnation, 0, 0, 0, 0, now() from tenure.reservations",
    "tenants-carry-their-flow": "delete from tenure.limits",
    "nodes-point-to-live-incarnations": "update tenure.nodes set incarnation = gen_random_uuid()"
    " where incarnation is not null",
    "cursors-are-within-the-log": "update tenure.relay_shards set position = 1000000"
    " where shard = 7",
    "parked-rows-are-passed": parking("'infinity'", "parked = 1"),
    "parked-rows-are-counted": "update tenure.relay_shards set parked = 1 where shard = 7",
    "held-streams-go-on": parking("null", "parked = 1, position = p.position"),
    "replays-find-their-rows": "update tenure.replays set to_position = 1000000"
    " where state = 'running'",
    "replays-say-who-said-what": "delete from tenure.replay_changes where change = 'cancelled'",
    "guards-are-in-place": "alter table tenure.tasks disable trigger user",
}
"""For each invariant, what somebody who may do anything does to the database."""


@pytest.fixture(scope="module")
async def lived_in(
    database_server: DatabaseServer, database_template: str
) -> AsyncIterator[FreshDatabase]:
    """A database with a history, which nobody uses any more."""
    async with database_server.fresh(template=database_template) as database:
        async with replica(database) as bench:
            await live(bench)
        yield database


@pytest.fixture
async def copy(
    database_server: DatabaseServer, lived_in: FreshDatabase
) -> AsyncIterator[FreshDatabase]:
    """A copy to damage."""
    async with database_server.fresh(template=lived_in.name) as database:
        yield database


async def damage(database: FreshDatabase, statement: str) -> None:
    """Past every trigger, as only a superuser can."""
    connection = await asyncpg.connect(database.admin_url)
    try:
        await connection.execute(f"set session_replication_role = replica; {statement}")
    finally:
        await connection.close()


async def test_a_lived_in_database_keeps_every_invariant(lived_in: FreshDatabase) -> None:
    findings = await verify(lived_in.owner_url)
    assert findings.broken == {}
    assert min(findings.rows.values()) > 0, findings.rows


def test_every_invariant_is_damaged() -> None:
    assert list(DAMAGE) == list(INVARIANTS)


def test_the_page_lists_every_invariant() -> None:
    page = (REPOSITORY / "docs" / "operations.md").read_text("utf-8")
    section = page[page.index("## Invariants") :]
    section = section[: section.find("\n## ", 1)] if "\n## " in section[1:] else section
    assert re.findall(r"^\| `([a-z-]+)`", section, re.MULTILINE) == list(INVARIANTS)


@pytest.mark.parametrize("invariant", INVARIANTS)
async def test_what_is_damaged_is_named(copy: FreshDatabase, invariant: str) -> None:
    await damage(copy, DAMAGE[invariant])
    findings = await verify(copy.owner_url)
    assert invariant in findings.broken
    assert findings.broken[invariant].examples[0].detail


async def test_pages_as_small_as_they_come_find_the_same(
    copy: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stream and every table is longer than a page."""
    monkeypatch.setattr("tenure.coordinator.store.verify.FIRST_PAGE_ROWS", 1)
    monkeypatch.setattr("tenure.coordinator.store.verify.LARGEST_PAGE_ROWS", 1)
    clean = await verify(copy.owner_url)
    assert clean.broken == {}
    connection = await asyncpg.connect(copy.owner_url)
    try:
        assert clean.rows["tasks"] == await connection.fetchval("select count(*) from tenure.tasks")
    finally:
        await connection.close()
    await damage(copy, DAMAGE["renewals-lengthen-live-leases"])
    assert set((await verify(copy.owner_url)).broken) == {"renewals-lengthen-live-leases"}


async def test_commits_that_go_on_meanwhile_break_nothing(database: FreshDatabase) -> None:
    async with replica(database) as bench:
        await bench.register(slots=50)
        looked = asyncio.Event()
        delivered = 0

        async def work() -> None:
            nonlocal delivered
            while not looked.is_set():
                held = await bench.running()
                await bench.renew(held)
                await bench.deliver(held, 1)
                delivered += 1

        async with asyncio.TaskGroup() as group:
            group.create_task(work())
            for _ in range(5):
                assert (await verify(database.owner_url)).broken == {}
            looked.set()
        assert delivered > 0
        assert (await verify(database.owner_url)).rows["receipts"] == delivered


async def test_the_coordinators_own_login_may_verify(lived_in: FreshDatabase) -> None:
    """For who is on call: reading is all that it takes."""
    assert (await verify(lived_in.coordinator_url)).broken == {}


async def test_the_command_exits_by_what_it_found(copy: FreshDatabase, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if "TENURE" not in name}

    async def run(*words: str) -> tuple[int, str]:
        return await processes.run(
            [sys.executable, "-m", "tenure.cli", "verify", *words],
            environment=kept | {"TENURE_DATABASE_URL": copy.owner_url},
            directory=tmp_path,
        )

    code, output = await run()
    assert (code, f"{len(INVARIANTS)} invariants hold" in output) == (Exit.DONE, True)
    code, output = await run("-o", "json")
    assert code == Exit.DONE
    assert json.loads(output)["clean"] is True
    await damage(copy, DAMAGE["tokens-grow-per-task"])
    code, output = await run()
    assert code == Exit.REFUSED
    assert "error: invariants_broken:" in output
    assert "tokens-grow-per-task" in output
    code, output = await run("-o", "json")
    found = json.loads(output[: output.rindex("}") + 1])
    assert found["clean"] is False
    assert found["broken"]["tokens-grow-per-task"]["count"] >= 1
