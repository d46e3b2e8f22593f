"""Each guard of the receiver is needed: taken out, the attack that it stops succeeds.

Every attack is played twice on a real server: against the guard as shipped, which must refuse it,
and against a copy without the one rule, which must not. Attacks about time also run on an older
server, which has no transaction_timeout.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from tenure.cli.local.errors import LocalServerMissingError
from tenure.contract.scope import Scope
from tenure.executor.context import Context
from tenure.executor.errors import AuthorityOver, EffectNotWritten, OutOfScope, StaleToken
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.guards.sql_install import install_statements
from tenure.executor.scope import GrantedScope
from tests.support.downstream import Downstream, attempt, downstream, server_says, write
from tests.support.isolation import DatabaseServer, FreshDatabase
from tests.support.services import local_postgres

OLDER_MAJOR = 15
BRIEF = 1.5
"""Seconds until the end of a lease that an attack begins under, also on a busy machine."""

Attack = Callable[[Downstream, SqlGuard], Awaitable[bool]]
"""Plays the attack, the guard has its connection; gives back whether the receiver refused it."""


async def refused(action: Awaitable[object]) -> bool:
    try:
        await action
    except (StaleToken, AuthorityOver, EffectNotWritten, OutOfScope):
        return True
    return False


async def old_token_writes(receiver: Downstream, guard: SqlGuard) -> bool:
    old = await attempt(receiver.owner)
    await write(guard, await attempt(receiver.owner, task=old.task_id, generation=2), "new")
    return await refused(write(guard, old, "old", operation="another row"))


async def old_token_writes_after_successors_fence(receiver: Downstream, guard: SqlGuard) -> bool:
    old = await attempt(receiver.owner)
    await guard.raise_fence(old)
    await guard.raise_fence(await attempt(receiver.owner, task=old.task_id, generation=2))
    return await refused(write(guard, old, "old"))


async def equal_token_writes_after_its_end(receiver: Downstream, guard: SqlGuard) -> bool:
    late = await attempt(receiver.owner, expires_in_seconds=-1.0)
    return await refused(guard.raise_fence(late))


async def effect_is_repeated(receiver: Downstream, guard: SqlGuard) -> bool:
    context = await attempt(receiver.owner)
    await write(guard, context, "first")
    return not await write(guard, context, "again")


async def fence_is_awaited_past_the_end(receiver: Downstream, guard: SqlGuard) -> bool:
    blocker = await asyncpg.connect(receiver.writer_url)
    await receiver.owner.execute(f"grant select, update on tenure_fence to {receiver.role}")
    try:
        context = await attempt(receiver.owner, expires_in_seconds=BRIEF, tolerance_seconds=0.0)
        await guard.raise_fence(context)
        async with blocker.transaction():
            await blocker.execute("select from tenure_fence for update")
            waiting = asyncio.create_task(refused(guard.raise_fence(context)))
            await server_says(
                receiver.owner, "select exists (select from pg_locks where not granted)"
            )
            await server_says(receiver.owner, "select clock_timestamp() > $1", context.expires_at)
        return await waiting
    finally:
        await blocker.close()


async def paused_holder_keeps_its_successor_out(receiver: Downstream, guard: SqlGuard) -> bool:
    """Refused: the server ends the paused transaction, so that its successor has the fence."""
    context = await attempt(receiver.owner, expires_in_seconds=BRIEF)
    ended = await _paused_until(receiver, guard, context)
    return ended and await receiver.effects(context.task_id) == []


async def busy_holder_commits_past_its_end(receiver: Downstream, guard: SqlGuard) -> bool:
    """No statement and no pause is long, the transaction as a whole is."""
    context = await attempt(receiver.owner, expires_in_seconds=BRIEF)

    async def holder() -> None:
        async with guard.transaction(context, operation="row") as effect:
            over = context.expires_at + timedelta(seconds=context.clock_tolerance_seconds)
            while not await effect.connection.fetchval("select clock_timestamp() > $1", over):
                await effect.connection.execute("select pg_sleep(0.02)")
            await effect.connection.execute(
                "insert into effects (task_id, value) values ($1, 'late')", context.task_id
            )

    return await refused(holder()) and await receiver.effects(context.task_id) == []


async def busy_holder_is_judged_early(receiver: Downstream, guard: SqlGuard) -> bool:
    """As applications do that want their own deferred constraints checked before the commit."""
    context = await attempt(receiver.owner, expires_in_seconds=BRIEF)

    async def holder() -> None:
        async with guard.transaction(context, operation="row") as effect:
            await effect.connection.execute("set constraints all immediate")
            if receiver.owner.get_server_version().major >= 17:  # takes the other limit off, too
                await effect.connection.execute("set local transaction_timeout = 0")
            over = context.expires_at + timedelta(seconds=context.clock_tolerance_seconds)
            while not await effect.connection.fetchval("select clock_timestamp() > $1", over):
                await effect.connection.execute("select pg_sleep(0.02)")
            await effect.connection.execute(
                "insert into effects (task_id, value) values ($1, 'late')", context.task_id
            )

    return await refused(holder()) and await receiver.effects(context.task_id) == []


async def what_the_lease_does_not_permit(receiver: Downstream, guard: SqlGuard) -> bool:
    """Asked for by a sender that does not look at the scope itself."""
    context = await attempt(receiver.owner, scope=Scope(objects=("orders/17",)))
    return await refused(_unasked(guard, context, "orders/18"))


async def token_gets_a_wider_scope(receiver: Downstream, guard: SqlGuard) -> bool:
    """Than the one under which its fence was raised before the handler began."""
    context = await attempt(receiver.owner, scope=Scope(objects=("orders/17",)))
    await guard.raise_fence(context)
    context.scope = GrantedScope(Scope(objects=("orders/*",)), {})
    return await refused(_unasked(guard, context, "orders/18"))


async def _unasked(guard: SqlGuard, context: Context[None], key: str) -> None:
    async with guard.step(context, "row", context.side_effect("write", key=key)):
        pass


async def _paused_until(receiver: Downstream, guard: SqlGuard, context: Context[None]) -> bool:
    """Hold a transaction open and do nothing. Whether the server ended it soon after the end of
    its authority (a while after which a server without the rule has not)."""

    async def holder() -> None:
        async with guard.transaction(context, operation="row") as effect:
            pid = effect.connection.get_server_pid()
            await server_says(
                receiver.owner,
                "select not exists (select from pg_stat_activity where pid = $1)"
                " or clock_timestamp() > $2",
                pid,
                context.expires_at + timedelta(seconds=3.0),
            )
            alive.append(
                await receiver.owner.fetchval(
                    "select exists (select from pg_stat_activity where pid = $1)", pid
                )
            )

    alive: list[bool] = []
    await refused(holder())
    return alive == [False]


@dataclass(frozen=True)
class Rule:
    """A rule of the receiver: its text in the shipped statements, and what stands there without."""

    name: str
    attack: Attack
    text: str
    without: str = ""


RULES = (
    Rule("token", old_token_writes, "if p_fencing_token < v_stored then", "if false then"),
    Rule(
        "raised fence",
        old_token_writes_after_successors_fence,
        "if p_fencing_token > v_stored or p_scope is distinct from v_scope then",
        "if false then",
    ),
    Rule(
        "end of authority",
        equal_token_writes_after_its_end,
        "if clock_timestamp() >= p_expires_at + p_tolerance then",
        "if false then",
    ),
    Rule(
        "clock read after the lock",
        fence_is_awaited_past_the_end,
        "if clock_timestamp() >= p_expires_at + p_tolerance then",
        "if statement_timestamp() >= p_expires_at + p_tolerance then",
    ),
    Rule("scope", what_the_lease_does_not_permit, "return v_permits;", "return true;"),
    Rule(
        "one scope for a token",
        token_gets_a_wider_scope,
        "and v_scope is not null and p_scope is distinct from v_scope then",
        "and false then",
    ),
    Rule("inbox", effect_is_repeated, "already_done := not found;", "already_done := false;"),
    Rule(
        "transaction timeout",
        paused_holder_keeps_its_successor_out,
        "perform @schema@.tenure_limit('transaction_timeout', limit_milliseconds);",
        "null;",
    ),
    Rule(
        "judged again at the commit",
        busy_holder_is_judged_early,
        "if found and (v_limit = interval '0' or v_limit > v_until - now()) then",
        "if false then",
    ),
)
OLDER_RULES = (
    Rule(
        "idle timeout",
        paused_holder_keeps_its_successor_out,
        "perform @schema@.tenure_limit('idle_in_transaction_session_timeout', limit_milliseconds);",
    ),
    Rule(
        "clock at the commit",
        busy_holder_commits_past_its_end,
        "if clock_timestamp() >= new.authority_until then",
        "if false then",
    ),
    Rule(
        "judged again at the commit",
        busy_holder_is_judged_early,
        "if found and (v_limit = interval '0' or v_limit > v_until - now()) then",
        "if false then",
    ),
)


def statements_without(rule: Rule) -> str:
    """The receiver's half with one rule taken out."""
    text, without = (each.replace("@schema@", '"public"') for each in (rule.text, rule.without))
    shipped = install_statements()
    assert shipped.count(text) == 1
    return shipped.replace(text, without)


@pytest.fixture(scope="module")
async def older_server(server_directory: Path) -> AsyncIterator[DatabaseServer]:
    """A server of the oldest supported major version."""
    try:
        async with local_postgres(server_directory, major=OLDER_MAJOR) as server:
            databases = DatabaseServer(server.url())
            await databases.prepare()
            yield databases
    except LocalServerMissingError:
        pytest.skip(f"no PostgreSQL {OLDER_MAJOR} is installed here")


@pytest.mark.requirement("LEASE-10")
@pytest.mark.parametrize("shipped", [True, False], ids=["shipped", "taken out"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
async def test_each_rule_stops_its_attack(
    rule: Rule, shipped: bool, empty_database: FreshDatabase
) -> None:
    install = None if shipped else statements_without(rule)
    async with (
        downstream(empty_database.admin_url, install=install) as receiver,
        SqlGuard(receiver.writer_url) as guard,
    ):
        await guard.raise_fence(await attempt(receiver.owner))
        assert await rule.attack(receiver, guard) == shipped


@pytest.mark.requirement("LEASE-10")
@pytest.mark.parametrize("shipped", [True, False], ids=["shipped", "taken out"])
@pytest.mark.parametrize("rule", OLDER_RULES, ids=lambda rule: rule.name)
async def test_each_rule_stops_its_attack_on_an_older_server(
    rule: Rule, shipped: bool, older_server: DatabaseServer
) -> None:
    install = None if shipped else statements_without(rule)
    async with (
        older_server.fresh() as database,
        downstream(database.admin_url, install=install) as receiver,
        SqlGuard(receiver.writer_url) as guard,
    ):
        await guard.raise_fence(await attempt(receiver.owner))
        assert await rule.attack(receiver, guard) == shipped
