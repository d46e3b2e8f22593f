"""Every guard of the database functions: refused with it, wrong without it.

Each case sends, past the rules, a decision that no longer holds or never did. The function as it
is refuses it. Then the guard is taken out of the installed function's text, and the same call has
to do harm: otherwise the guard or the case is of no use.
"""

import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import asyncpg
import pytest

from tenure.coordinator.core.decisions import ItemOutcome
from tests.support import attacks, intake_attacks, limit_attacks, scheduling_attacks, steps
from tests.support.attacks import APPLIED, Attack, Ground
from tests.support.authority import replica
from tests.support.isolation import FreshDatabase, empty_state

STALE = ItemOutcome.STALE
CLAUSE = re.compile(r"when (?:(?!\bwhen\b).)*? then 1\b", re.DOTALL)


@dataclass(frozen=True)
class Guard:
    """One thing that refuses, and the call that it refuses.

    ``without`` is what comes of the call when the guard is missing: an outcome, or the exception of
    a constraint behind it, which ``net`` takes away for a last try that then has to be applied.
    """

    name: str
    attack: Attack
    text: str  # of the guard, or a part that only its clause has
    instead: str = ""
    refused: ItemOutcome = STALE
    without: ItemOutcome | type[Exception] = APPLIED
    net: str = ""
    function: str = "commit_batch"
    also: tuple[tuple[str, str], ...] = field(default=())

    def missing_from(self, source: str) -> str:
        """The function's text without the guard."""
        for text, instead in ((self.text, self.instead), *self.also):
            clauses = [found for found in CLAUSE.findall(source) if text in found]
            if clauses and not instead:
                (clause,) = clauses
                text, instead = clause, "when false then 1"
            assert source.count(text) == 1, f"{text!r} is not there once"
            source = source.replace(text, instead)
        return source


LOCKS = {
    "tasks": """where t.task_id = any (array(select i.task_id from unnest(p_items) i))
    order by t.task_id
    for no key update;""",
    "nodes": """order by n.tenant, n.node_id
        for no key update of n;""",
    "incarnations": """order by n.incarnation
    for no key update;""",
    "tenants": """order by e.tenant
        for key share;""",
    "accounts": """order by c.tenant
    for no key update;""",
    "limits": """order by x.tenant, x.scope, x.name
        for no key update;""",
    "intake": """order by q.intake_id
        for no key update;""",
}

GUARDS = [
    Guard("epoch", attacks.decided_in_an_older_epoch, "i.epoch is distinct from v_epoch"),
    Guard("confirmed", attacks.on_another_server, "if v_epoch is null then", "if false then",
          refused=ItemOutcome.AUTHORITY_UNCONFIRMED),
    Guard("system identifier", attacks.on_another_server,
          "and system_identifier = (select system_identifier from pg_control_system())",
          "and true", refused=ItemOutcome.AUTHORITY_UNCONFIRMED, without=STALE,
          function="confirmed_epoch"),
    Guard("history", attacks.after_history_was_lost, "where lost_at is null", "where true",
          refused=ItemOutcome.AUTHORITY_UNCONFIRMED, function="confirmed_epoch"),
    Guard("timeline", attacks.on_a_promoted_server,
          "and timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)", "and true",
          refused=ItemOutcome.AUTHORITY_UNCONFIRMED, without=STALE, function="confirmed_epoch"),
    Guard("command lookup", attacks.the_same_command_later, "when c.command_id is not null then",
          "when false then", refused=ItemOutcome.SEEN_BEFORE, without=STALE),
    Guard("command lookup and store", attacks.the_same_command_later,
          "when c.command_id is not null then", "when false then", refused=ItemOutcome.SEEN_BEFORE,
          also=(("outcomes[r.item] := 1;\n            end loop;",
                 "outcomes[r.item] := 0;\n            end loop;"),)),
    Guard("fingerprint", attacks.the_same_command_with_other_content,
          "c.fingerprint = i.fingerprint and", "true and", refused=ItemOutcome.CONFLICT,
          without=ItemOutcome.SEEN_BEFORE),
    Guard("command's tenant", attacks.the_same_command_of_another_tenant, "and c.tenant = i.tenant",
          "and true", refused=ItemOutcome.CONFLICT, without=ItemOutcome.SEEN_BEFORE),
    Guard("command once a call", attacks.the_same_command_in_one_call, "partition by i.command_id"),
    Guard("command store", attacks.the_same_command_at_once,
          "outcomes[r.item] := 1;\n            end loop;",
          "outcomes[r.item] := 0;\n            end loop;"),
    Guard("task once a call", attacks.the_same_task_in_one_call, "partition by i.task_id"),
    Guard("node once a call", attacks.the_same_node_in_one_call,
          "partition by i.tenant, i.node_id"),
    Guard("incarnation read after its change", attacks.an_incarnation_changed_before_in_one_call,
          "partition by i.incarnation"),
    Guard("look for repeated commands", attacks.the_same_command_in_one_call,
          "count(i.command_id) > count(distinct i.command_id)", "false"),
    Guard("look for repeated tasks", attacks.the_same_task_in_one_call,
          "count(i.task_id) > count(distinct i.task_id)", "false"),
    Guard("look for repeated rows of the intake", intake_attacks.a_row_twice_in_one_call,
          "count(i.intake_id) > count(distinct i.intake_id)", "false"),
    Guard("look at nodes that change", attacks.an_incarnation_changed_before_in_one_call,
          "count(i.node_id) > 0", "false"),
    Guard("task's tenant", attacks.another_tenants_task, "t.tenant <> i.tenant"),
    Guard("attempt's tenant", attacks.another_tenants_attempt, "a.tenant <> i.tenant", "false"),
    Guard("attempt's task", attacks.another_tasks_attempt, "a.task_id <> i.task_id", "false"),
    Guard("incarnation's tenant", attacks.another_tenants_node, "n.tenant <> i.tenant"),
    Guard("tenant of the row of the intake", intake_attacks.another_tenants_row,
          "q.tenant <> i.tenant"),
    Guard("task version", attacks.a_task_allocated_meanwhile,
          "t.version is distinct from i.task_version"),
    Guard("task lock", attacks.a_task_allocated_at_once, LOCKS["tasks"], ";"),
    Guard("attempt version", attacks.an_attempt_taken_meanwhile,
          "a.version is distinct from i.attempt_version"),
    Guard("incarnation version", attacks.a_node_drained_meanwhile,
          "n.version is distinct from i.incarnation_version"),
    Guard("incarnation lock", attacks.a_node_drained_at_once, LOCKS["incarnations"], ";"),
    Guard("current incarnation", attacks.a_node_registered_meanwhile,
          "o.incarnation is distinct from i.node_incarnation"),
    Guard("node lock", attacks.a_node_registered_at_once, LOCKS["nodes"], ";"),
    Guard("silence", attacks.a_review_of_a_node_that_was_heard_of_meanwhile, "i.silent_for"),
    Guard("quarantine", attacks.a_node_quarantined_meanwhile, "i.node_quarantined"),
    Guard("row of the intake", intake_attacks.a_row_refused_meanwhile,
          "q.state is distinct from 'waiting'"),
    Guard("row of the intake once a call", intake_attacks.a_row_twice_in_one_call,
          "partition by i.intake_id"),
    Guard("lock of the intake", intake_attacks.a_row_taken_at_once, LOCKS["intake"], ";"),
    Guard("content", attacks.evidence_kept_meanwhile, "i.content_digest is not null and exists",
          without=asyncpg.UniqueViolationError, net="drop index tenure.receipts_by_content"),
    Guard("fleet", attacks.a_fleet_that_grew_meanwhile, "i.fleet is not null"),
    Guard("policy", attacks.an_allocation_under_a_policy_that_was_replaced, "i.policy_version"),
    Guard("live lease", attacks.a_lease_that_ran_out_meanwhile, "i.lease_live"),
    Guard("clock after the locks", attacks.a_lease_that_ran_out_while_its_row_was_waited_for,
          "    clock := clock_timestamp();\n", "",
          also=(("    -- Locks, each", "    clock := clock_timestamp();\n    -- Locks, each"),)),
    Guard("time never runs back", attacks.a_lease_that_ran_out_before_the_clock_was_set_back,
          "select greatest(clock, t.decided_at, a.decided_at) as at", "select clock as at"),
    Guard("lease over", attacks.an_expiry_before_its_time, "i.lease_over"),
    Guard("not before", attacks.an_allocation_before_its_time, "i.not_before_passed"),
    Guard("deadline open", attacks.an_allocation_after_the_deadline, "i.deadline_open"),
    Guard("deadline passed", attacks.an_expiry_before_the_deadline, "i.deadline_passed"),
    Guard("deadline of a new task", attacks.a_submission_after_its_deadline, "i.new_deadline"),
    Guard("pause over", scheduling_attacks.a_pause_that_is_not_over, "i.pause_over > m.at"),
    Guard("heartbeat", attacks.an_allocation_to_a_silent_node, "i.seen_within"),
    Guard("tenant version", scheduling_attacks.a_tenant_suspended_meanwhile,
          "e.version is distinct from i.tenant_version"),
    Guard("tenant lock", scheduling_attacks.a_tenant_suspended_at_once, LOCKS["tenants"], ";"),
    Guard("tenant version of a pause", scheduling_attacks.a_type_paused_meanwhile,
          "e.version is distinct from i.tenant_version"),
    Guard("tenant lock of a pause", scheduling_attacks.everything_paused_at_once,
          LOCKS["tenants"], ";"),
    Guard("budget", scheduling_attacks.more_budget_than_there_is,
          "(r.cost_minor = 0 or r.budget_unlimited or coalesce(r.budget_left\n                >="
          " coalesce((v_held ->> r.tenant)::bigint, 0) + r.cost_minor, false))", "true"),
    Guard("running sum of the budget", scheduling_attacks.more_budget_than_there_is,
          "if r.cost_minor > 0 then", "if false then"),
    Guard("account lock", scheduling_attacks.more_budget_than_there_is_at_once,
          LOCKS["accounts"], ";"),
    Guard("tenant version of a limit", limit_attacks.a_type_limited_meanwhile,
          "e.version is distinct from i.tenant_version"),
    Guard("limit", limit_attacks.more_than_may_run, "v_running >= l.max_running", "false"),
    Guard("running sum of a limit", limit_attacks.more_in_one_call_than_may_run,
          "v_begun := v_with_it;", ""),
    Guard("limit lock", limit_attacks.more_at_once_than_may_run, LOCKS["limits"],
          "order by x.tenant;"),
    Guard("start rate", limit_attacks.more_than_may_start,
          "v_full_at - (l.burst - 1) * l.pace > clock", "false"),
    Guard("bucket of starts", limit_attacks.more_than_may_start,
          "(g.value ->> 'full_at')::timestamptz as full_at", "null::timestamptz as full_at"),
    Guard("running sum of starts", limit_attacks.more_in_one_call_than_may_start,
          "v_begun := v_with_it;", ""),
    Guard("concurrency", attacks.more_of_a_type_than_at_once, "v_running < r.at_once", "true"),
    Guard("concurrency as stored", attacks.more_of_a_type_than_at_once_one_after_the_other,
          "running_of_type(r.incarnation, r.type)", "0"),
    Guard("running sum of the concurrency", attacks.more_of_a_type_than_at_once,
          "v_types := v_types || jsonb_build_object(r.node_type, v_running + 1);", "null;"),
    Guard("slots", attacks.more_slots_than_there_are,
          "r.slots_free >= coalesce(v_slots[r.k], 0) + r.slots", "true",
          without=asyncpg.CheckViolationError,
          net="alter table tenure.incarnations drop constraint slots_are_not_oversold"),
    Guard("processors", attacks.more_processors_than_there_are,
          "coalesce(r.cpu_free >= coalesce(v_cpu[r.k], 0) + r.cpu_millis, true)", "true",
          without=asyncpg.CheckViolationError,
          net="alter table tenure.incarnations drop constraint cpu_is_not_oversold"),
    Guard("memory", attacks.more_memory_than_there_is,
          "coalesce(r.memory_free >= coalesce(v_memory[r.k], 0) + r.memory_bytes, true)", "true",
          without=asyncpg.CheckViolationError,
          net="alter table tenure.incarnations drop constraint memory_is_not_oversold"),
    Guard("running sum of slots", attacks.more_slots_than_there_are,
          "v_slots[r.k] := coalesce(v_slots[r.k], 0) + r.slots;", "v_slots[r.k] := 0;",
          without=asyncpg.CheckViolationError,
          net="alter table tenure.incarnations drop constraint slots_are_not_oversold"),
    Guard("running sum of processors", attacks.more_processors_than_there_are,
          "v_cpu[r.k] := coalesce(v_cpu[r.k], 0) + r.cpu_millis;", "v_cpu[r.k] := 0;",
          without=asyncpg.CheckViolationError,
          net="alter table tenure.incarnations drop constraint cpu_is_not_oversold"),
    Guard("running sum of memory", attacks.more_memory_than_there_is,
          "v_memory[r.k] := coalesce(v_memory[r.k], 0) + r.memory_bytes;", "v_memory[r.k] := 0;",
          without=asyncpg.CheckViolationError,
          net="alter table tenure.incarnations drop constraint memory_is_not_oversold"),
]  # fmt: skip


@pytest.fixture
async def ground(module_database: FreshDatabase) -> AsyncIterator[Ground]:
    async with replica(module_database) as bench:
        yield Ground(bench, module_database)


async def source_of(owner: asyncpg.Connection, function: str) -> str:
    text: str = await owner.fetchval(
        "select pg_get_functiondef(p.oid) from pg_proc p"
        " where p.proname = $1 and p.pronamespace = 'tenure'::regnamespace",
        function,
    )
    return text


@contextlib.asynccontextmanager
async def installed(ground: Ground, function: str, changed: str) -> AsyncIterator[None]:
    """The function with another text for the length of a block."""
    original = await source_of(ground.bench.owner, function)
    await ground.owner(changed)
    try:
        yield
    finally:
        await ground.owner(original)


async def attempt(ground: Ground, attack: Attack) -> ItemOutcome:
    """The outcome of an attack on an empty database; the authority's row is as before after it."""
    await empty_state(ground.database)
    row = await ground.bench.owner.fetchrow("select * from tenure.authority")
    assert row is not None
    try:
        return await attack(ground)
    finally:
        await ground.owner(
            "update tenure.authority set epoch = $1, system_identifier = $2, timeline = $3,"
            " lost_at = null, lost_proof = null",
            row["epoch"],
            row["system_identifier"],
            row["timeline"],
        )


@pytest.mark.requirement("STATE-01")
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
async def test_what_the_guard_refuses_is_wrong_without_it(ground: Ground, guard: Guard) -> None:
    assert await attempt(ground, guard.attack) is guard.refused
    weakened = guard.missing_from(await source_of(ground.bench.owner, guard.function))
    async with installed(ground, guard.function, weakened):
        if isinstance(guard.without, ItemOutcome):
            assert await attempt(ground, guard.attack) is guard.without
            return
        with pytest.raises(guard.without):
            await attempt(ground, guard.attack)
        definition = await net_definition(ground, guard.net)
        await ground.owner(guard.net)
        try:
            assert await attempt(ground, guard.attack) is APPLIED
        finally:
            await empty_state(ground.database)
            await ground.owner(definition)


async def net_definition(ground: Ground, drop: str) -> str:
    """The statement that brings back what ``drop`` takes away."""
    name = drop.rpartition(".")[2].split()[-1]
    definition: str = await ground.bench.owner.fetchval(
        """
        select 'alter table tenure.incarnations add constraint ' || conname || ' '
            || pg_get_constraintdef(oid) from pg_constraint where conname = $1
        union all
        select indexdef from pg_indexes where schemaname = 'tenure' and indexname = $1
        """,
        name,
    )
    return definition


async def test_every_condition_of_the_commit_has_a_case_here(ground: Ground) -> None:
    source = await source_of(ground.bench.owner, "commit_batch")
    clauses = CLAUSE.findall(source)
    assert len(clauses) >= 16
    without_case = [
        clause for clause in clauses if not any(guard.text in clause for guard in GUARDS)
    ]
    assert without_case == []


async def test_an_unconfirmed_authority_writes_nothing_at_all(ground: Ground) -> None:
    await empty_state(ground.database)
    bench = ground.bench
    register = bench.registration("new")
    items = [await ground.accept(register)]
    await bench.register()
    items += [await ground.accept(bench.submission())]
    before = await bench.everything()
    timeline = await bench.owner.fetchval("select timeline from tenure.authority")
    await ground.owner("update tenure.authority set timeline = '000000FF'")
    try:
        unconfirmed = [ItemOutcome.AUTHORITY_UNCONFIRMED] * 2
        assert await steps.commit(bench.pool, *items) == unconfirmed
        outcome = await bench.authority.register(register)
        assert outcome.refused is not None
        assert outcome.refused.code == "authority_unconfirmed"
        assert await bench.everything() == before
    finally:
        await ground.owner("update tenure.authority set timeline = $1", timeline)
