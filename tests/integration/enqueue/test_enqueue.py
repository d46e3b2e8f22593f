"""What an application's own transaction can ask for, and what the database refuses it at once."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.contract.ids import TenantId
from tenure.coordinator.store import applications, migrate
from tenure.coordinator.store.errors import NotMigrated, RolesNeeded
from tenure.coordinator.submission import derived_id
from tests.support.enqueueing import Login, application, enqueue, login
from tests.support.isolation import FreshDatabase
from tests.support.sessions import blocked, session


@pytest.fixture
async def shop(emptied_database: FreshDatabase) -> AsyncIterator[Login]:
    async with application(emptied_database) as shop:
        yield shop


@pytest.fixture
async def connection(shop: Login) -> AsyncIterator[asyncpg.Connection]:
    async with session(shop.url) as connection:
        yield connection


@pytest.fixture
async def owner(emptied_database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    async with session(emptied_database.owner_url) as owner:
        yield owner


async def refusal(connection: asyncpg.Connection, *words: Any, **options: Any) -> tuple[str, str]:
    """SQLSTATE and message of a call that has to be refused, with a hint."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        await enqueue(connection, *words, **options)
    assert getattr(caught.value, "hint", None), caught.value
    return caught.value.sqlstate or "", str(caught.value.args[0])


async def rows(owner: asyncpg.Connection) -> list[asyncpg.Record]:
    return await owner.fetch("select * from tenure.intake order by intake_id")


@pytest.mark.requirement("OPS-01")
async def test_a_commit_leaves_one_row_and_a_rollback_none(
    connection: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    await enqueue(connection)
    await transaction.rollback()
    assert await rows(owner) == []
    async with connection.transaction():
        task_id = await enqueue(connection, input='{"path": "a"}')
        assert await rows(owner) == []
    (row,) = await rows(owner)
    assert (str(row["task_id"]), row["state"], row["tenant"]) == (task_id, "waiting", "default")
    assert json.loads(row["input"]) == {"path": "a"}


async def test_ids_are_of_version_7_and_grow(connection: asyncpg.Connection) -> None:
    ids = []
    for _ in range(5):
        ids.append(UUID(await enqueue(connection)))
        await connection.execute("select pg_sleep(0.002)")
    assert [one.version for one in ids] == [7] * 5
    assert ids == sorted(ids)


async def test_the_same_key_gives_the_same_id_in_one_transaction_and_later(
    connection: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    async with connection.transaction():
        first = await enqueue(connection, idempotency_key="order-1")
        assert await enqueue(connection, idempotency_key="order-1") == first
    assert await enqueue(connection, idempotency_key="order-1") == first
    assert await enqueue(connection, idempotency_key="order-2") != first
    assert await enqueue(connection) != await enqueue(connection)
    assert len(await rows(owner)) == 4


async def test_a_key_that_another_transaction_is_using_is_waited_for(
    shop: Login, owner: asyncpg.Connection
) -> None:
    async with session(shop.url) as one, session(shop.url) as other:
        for ending in ("commit", "rollback"):
            await one.execute("begin")
            first = await enqueue(one, idempotency_key=ending)
            second = asyncio.create_task(enqueue(other, idempotency_key=ending))
            await blocked(owner, other)
            await one.execute(ending)
            assert (await second == first) is (ending == "commit")
    assert len(await rows(owner)) == 2


IN_A_DAY = datetime.now(UTC) + timedelta(days=1)


@pytest.mark.parametrize(
    "change",
    [
        {"type_name": "other"},
        {"input": '{"b": 2, "a": 2}'},
        {"priority": 1},
        {"not_before": IN_A_DAY},
        {"deadline": IN_A_DAY},
        {"cpu_millis": 0},
        {"memory_bytes": 0},
        {"concurrency_key": "x"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_other_content_under_the_same_key_is_a_conflict(
    connection: asyncpg.Connection, change: dict[str, Any]
) -> None:
    first = await enqueue(connection, input='{"a": 1, "b": 2}', idempotency_key="k")
    again = await enqueue(connection, input='{"b":2,"a":1}', idempotency_key="k")
    assert again == first
    asked: dict[str, Any] = {"type_name": "sha256", "input": '{"a": 1, "b": 2}'} | change
    code, message = await refusal(
        connection, asked.pop("type_name"), asked.pop("input"), idempotency_key="k", **asked
    )
    assert code == "TN023"
    assert first in message


async def test_a_repetition_is_answered_after_the_deadline_too(
    connection: asyncpg.Connection,
) -> None:
    first, soon, seconds = "", None, 1
    while not first:  # a busy machine may come too late even for the first
        soon = await connection.fetchval(
            "select clock_timestamp() + $1 * interval '1 s'", seconds := 2 * seconds
        )
        with contextlib.suppress(asyncpg.PostgresError):
            first = await enqueue(connection, idempotency_key="k", deadline=soon)
    await connection.execute("select pg_sleep_until($1)", soon)
    assert await enqueue(connection, idempotency_key="k", deadline=soon) == first
    assert (await refusal(connection, deadline=soon))[0] == "TN026"


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ("TN020", {"type_name": "Upper"}),
        ("TN020", {"type_name": "a" * 129}),
        ("TN020", {"type_name": "a\nb"}),
        ("TN020", {"type_name": None}),
        ("TN020", {"idempotency_key": ""}),
        ("TN020", {"idempotency_key": "k" * 256}),
        ("TN020", {"concurrency_key": ""}),
        ("TN020", {"concurrency_key": "k" * 256}),
        ("TN020", {"priority": 101}),
        ("TN020", {"priority": -101}),
        ("TN020", {"priority": None}),
        ("TN020", {"cpu_millis": -1}),
        ("TN020", {"cpu_millis": 10**9 + 1}),
        ("TN020", {"memory_bytes": -1}),
        ("TN020", {"memory_bytes": 2**60 + 1}),
        ("TN020", {"not_before": IN_A_DAY, "deadline": IN_A_DAY}),
        ("TN020", {"not_before": datetime(9999, 1, 1, tzinfo=UTC)}),
        ("TN020", {"deadline": datetime.max.replace(tzinfo=UTC)}),
        ("TN026", {"deadline": datetime(2020, 1, 1, tzinfo=UTC)}),
        ("TN021", {"input": json.dumps("x" * 262_143)}),
        ("TN021", {"input": json.dumps("ü" * 131_072, ensure_ascii=False)}),
        ("TN022", {"input": '{"a": ["\\u0000"]}'}),
        ("TN022", {"input": '{"\\u0000": 1}'}),
        ("TN022", {"input": '"\\ud800"'}),
        ("TN025", {"input": "[" * 64 + "1" + "]" * 64}),
        ("TN025", {"input": '{"a":' * 64 + "1" + "}" * 64}),
        ("TN025", {"input": "1e999999"}),
        ("TN024", {"tenant": "other"}),
    ],
)
async def test_what_cannot_be_a_task_is_refused_before_it_is_written(
    connection: asyncpg.Connection, owner: asyncpg.Connection, code: str, asked: dict[str, Any]
) -> None:
    values: dict[str, Any] = {"type_name": "sha256", "input": "1"} | asked
    found, _ = await refusal(connection, values.pop("type_name"), values.pop("input"), **values)
    assert found == code
    assert await rows(owner) == []


@pytest.mark.parametrize(
    "asked",
    [
        {"type_name": "a" * 128},
        {"idempotency_key": "\U0001f980" * 255},
        {"priority": 100},
        {"priority": -100},
        {"cpu_millis": 10**9, "memory_bytes": 2**60},
        {"not_before": IN_A_DAY, "deadline": IN_A_DAY + timedelta(microseconds=1)},
        {"deadline": datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)},
        {"not_before": datetime(1, 1, 2, tzinfo=UTC)},
        {"input": json.dumps("x" * 262_142)},
        {"input": "[" * 63 + "1" + "]" * 63},
        {"input": '"\\ud83e\\udd80"'},
        {"input": None},
        {"tenant": "default"},
    ],
)
async def test_what_is_just_within_the_limits_is_written(
    connection: asyncpg.Connection, owner: asyncpg.Connection, asked: dict[str, Any]
) -> None:
    values: dict[str, Any] = {"type_name": "sha256", "input": "1"} | asked
    await enqueue(connection, values.pop("type_name"), values.pop("input"), **values)
    assert len(await rows(owner)) == 1


@pytest.mark.parametrize("bound", ["infinity", "-infinity", "0044-03-15 BC"])
async def test_instants_that_are_none_are_refused(
    connection: asyncpg.Connection, bound: str
) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await connection.execute(
            f"select tenure.enqueue('sha256', '1', not_before => '{bound}'::timestamptz)"
        )
    assert caught.value.sqlstate == "TN020"


async def test_a_refusal_can_be_caught_with_a_savepoint(
    connection: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    async with connection.transaction():
        with pytest.raises(asyncpg.PostgresError):
            async with connection.transaction():
                await enqueue(connection, "Upper")
        await enqueue(connection)
    assert len(await rows(owner)) == 1


@settings(max_examples=50, suppress_health_check=[*HealthCheck])
@given(
    tenant=st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,62}\Z"),
    key=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=255),
)
async def test_the_database_derives_ids_of_commands_as_the_coordinator_does(
    owner: asyncpg.Connection, tenant: str, key: str
) -> None:
    derived = await owner.fetchval("select tenure.command_id_of($1, 'submit', $2)", tenant, key)
    assert str(derived) == derived_id(TenantId(tenant), "submit", key)


# Who may ------------------------------------------------------------------------------------------


@pytest.mark.requirement("OPS-05")
async def test_the_login_may_enqueue_and_nothing_else(
    connection: asyncpg.Connection, owner: asyncpg.Connection, shop: Login
) -> None:
    await enqueue(connection)
    tables = await owner.fetch(
        "select c.oid::regclass::text as name from pg_class c"
        " where c.relnamespace = 'tenure'::regnamespace and c.relkind in ('r', 'p', 'S')"
    )
    assert len(tables) > 10
    for table in tables:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(f"select * from {table['name']}")
    may = await owner.fetch(
        "select p.oid::regproc::text as name from pg_proc p"
        " where p.pronamespace = 'tenure'::regnamespace"
        " and has_function_privilege($1, p.oid, 'execute')",
        shop.role,
    )
    assert [row["name"] for row in may] == ["tenure.enqueue"]


async def test_a_login_that_nobody_has_allowed_is_told_what_to_do(
    emptied_database: FreshDatabase,
) -> None:
    async with login(emptied_database) as stranger, session(stranger.url) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await enqueue(connection)
    async with session(emptied_database.owner_url) as owner:
        code, message = await refusal(owner)
    assert (code, message) == ("TN024", "the role tenure_test_owner may not enqueue")


async def test_the_login_counts_and_not_the_role_it_has_set(
    emptied_database: FreshDatabase, shop: Login
) -> None:
    async with (
        login(emptied_database) as stranger,
        session(emptied_database.admin_url) as admin,
        session(stranger.url) as connection,
    ):
        await admin.execute(f"grant {shop.role} to {stranger.role}")
        await connection.execute(f"set role {shop.role}")
        code, message = await refusal(connection)
        await connection.execute("reset role")
    assert (code, message) == ("TN024", f"the role {stranger.role} may not enqueue")


@pytest.mark.requirement("OPS-05")
async def test_a_login_of_several_tenants_names_one_and_keys_are_apart(
    emptied_database: FreshDatabase, owner: asyncpg.Connection
) -> None:
    async with (
        application(emptied_database, ("acme", "globex")) as shop,
        session(shop.url) as connection,
    ):
        code, message = await refusal(connection)
        assert (code, message) == ("TN020", f"tenant: the role {shop.role} has several")
        first = await enqueue(connection, idempotency_key="k", tenant="acme")
        second = await enqueue(connection, idempotency_key="k", tenant="globex")
        assert first != second
        assert (await refusal(connection, tenant="default"))[0] == "TN024"
    assert [row["tenant"] for row in await rows(owner)] == ["acme", "globex"]


async def test_what_was_allowed_can_be_taken_back_tenant_by_tenant(
    emptied_database: FreshDatabase,
) -> None:
    owner_url = emptied_database.owner_url
    async with (
        application(emptied_database, ("acme", "globex")) as shop,
        session(shop.url) as connection,
    ):
        await applications.forbid(owner_url, shop.role, TenantId("acme"))
        await enqueue(connection)  # one tenant is left, so it need not be named
        await applications.forbid(owner_url, shop.role, TenantId("globex"))
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await enqueue(connection)
        await applications.allow(owner_url, shop.role, TenantId("acme"))
        await enqueue(connection)


async def test_migrating_gives_the_grants_again(
    emptied_database: FreshDatabase, shop: Login, connection: asyncpg.Connection
) -> None:
    async with session(emptied_database.owner_url) as owner:
        await owner.execute(f"revoke all on schema tenure from {shop.role}")
        await owner.execute(f"revoke all on function tenure.enqueue from {shop.role}")
        await owner.execute("insert into tenure.intake_roles values ('no such role', 'default')")
    await migrate.up(emptied_database.owner_url)
    await enqueue(connection)


async def test_allowing_says_what_is_missing(
    emptied_database: FreshDatabase, empty_database: FreshDatabase
) -> None:
    with pytest.raises(RolesNeeded, match="no role nobody_at_all"):
        await applications.allow(emptied_database.owner_url, "nobody_at_all", TenantId("default"))
    with pytest.raises(ValueError, match="no tenant"):
        await applications.allow(emptied_database.owner_url, "x", TenantId("No Tenant"))
    with pytest.raises(NotMigrated):
        await applications.allow(empty_database.owner_url, "postgres", TenantId("default"))
    async with session(emptied_database.owner_url) as owner:
        assert await owner.fetchval("select count(*) from tenure.intake_roles") == 0


@pytest.mark.requirement("LEASE-11")
@pytest.mark.parametrize(
    "scope",
    [
        "[]",
        '{"operations": "read"}',
        '{"operations": []}',
        '{"operations": [1]}',
        '{"operations": [""]}',
        '{"operations": ["a\\u0000"]}',
        '{"operation": ["read"]}',
        f'{{"objects": ["{"a" * 301}"]}}',
    ],
)
async def test_what_is_no_scope_is_refused_at_once(
    connection: asyncpg.Connection, scope: str
) -> None:
    code, message = await refusal(connection, scope=scope)
    assert (code, message.partition(":")[0]) == ("TN020", "scope")


@pytest.mark.parametrize(
    "trace", ["", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "00-" + "1" * 32 + "-01"]
)
async def test_what_is_no_trace_is_refused_at_once(
    connection: asyncpg.Connection, trace: str
) -> None:
    code, message = await refusal(connection, traceparent=trace)
    assert (code, message.partition(":")[0]) == ("TN020", "traceparent")


@pytest.mark.requirement("LEASE-11")
async def test_the_same_key_with_another_scope_is_a_conflict_and_with_another_trace_is_not(
    connection: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    first = await enqueue(connection, idempotency_key="k", scope='{"operations": ["read"]}')
    again = await enqueue(
        connection,
        idempotency_key="k",
        scope='{"operations":  ["read"]}',
        traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
    )
    assert again == first
    for scope in ('{"operations": ["write"]}', None):
        code, _ = await refusal(connection, idempotency_key="k", scope=scope)
        assert code == "TN023"
