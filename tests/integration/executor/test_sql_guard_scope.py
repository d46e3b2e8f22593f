"""A downstream PostgreSQL refuses what the lease does not permit by itself (LEASE-11), and reads a
scope as the sender does."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tenure.contract.scope import UNLIMITED, Scope
from tenure.executor.errors import GuardNotInstalled, OutOfScope
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.guards.sql_inspection import inspect
from tenure.executor.guards.sql_install import install_statements
from tenure.executor.scope import GrantedScope
from tests.support.downstream import Downstream, attempt, downstream
from tests.support.isolation import DatabaseServer, FreshDatabase
from tests.support.scope_cases import SCOPE_CASES
from tests.support.sessions import session
from tests.support.sql_drivers import DRIVERS, Driver

EVERY_DRIVER = pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
ORDER_17 = Scope(operations=("write", "read"), objects=("orders/{order}",))


@pytest.fixture(scope="module")
async def receiver(database_server: DatabaseServer) -> AsyncIterator[Downstream]:
    async with database_server.fresh() as database, downstream(database.admin_url) as made:
        yield made


@pytest.fixture(scope="module")
def writer(receiver: Downstream) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(receiver.writer_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor's own check is switched off."""
    monkeypatch.setattr(GrantedScope, "check", lambda *_: None)


@pytest.mark.requirement("LEASE-11")
@pytest.mark.usefixtures("careless")
@EVERY_DRIVER
async def test_what_the_lease_does_not_permit_is_refused_by_the_receiver(
    receiver: Downstream, driver: Driver
) -> None:
    context = await attempt(receiver.owner, scope=ORDER_17, input={"order": 17})
    async with driver.open(receiver.writer_url) as guard:
        await guard.raise_fence(context)
        for operation, key in (("write", "orders/18"), ("write", ""), ("delete", "orders/17")):
            with pytest.raises(OutOfScope, match=f"no operation '{operation}' on '{key}'"):
                await driver.write(guard, context, "outside", operation, key=key)
        assert await driver.write(guard, context, "within", "write", key="orders/17")
        assert not await driver.write(guard, context, "again", "write", key="orders/17")
    assert await receiver.effects(context.task_id) == ["within"]


@pytest.mark.requirement("LEASE-11")
@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize("fenced", [True, False], ids=["by its fence", "by its first write"])
@EVERY_DRIVER
async def test_one_token_has_one_scope(receiver: Downstream, driver: Driver, fenced: bool) -> None:
    """Whoever goes on under it after the first word gets no other, not even a narrower one."""
    context = await attempt(receiver.owner, scope=ORDER_17, input={"order": 17})
    granted = context.scope
    successor = await attempt(receiver.owner, task=context.task_id, generation=2)
    async with driver.open(receiver.writer_url) as guard:
        if fenced:
            await guard.raise_fence(context)
        else:
            assert await driver.write(guard, context, "first", "read", key="orders/17")
        for other in (
            GrantedScope(UNLIMITED, {}),
            GrantedScope(ORDER_17, {"order": 18}),
            GrantedScope(ORDER_17, {"order": 17}, Scope(operations=("write",))),
        ):
            context.scope = other
            with pytest.raises(OutOfScope, match="another scope"):
                await driver.write(guard, context, "other", "write", key="orders/18")
            with pytest.raises(OutOfScope, match="another scope"):
                await guard.raise_fence(context)
        context.scope = granted
        assert await driver.write(guard, context, "as granted", "write", key="orders/17")
        assert await driver.write(guard, successor, "of its own", "write", key="orders/18")
    assert (await receiver.effects(context.task_id))[-2:] == ["as granted", "of its own"]


async def test_a_caller_that_says_nothing_of_a_scope_may_do_everything(
    receiver: Downstream,
) -> None:
    context = await attempt(receiver.owner)
    said = (context.task_id, context.fencing_token, context.expires_at)
    async with session(receiver.writer_url) as connection:
        await connection.execute("select tenure_raise_fence($1, $2, $3, '1 s')", *said)
        assert not await connection.fetchval(
            "select already_done from tenure_guard($1, $4, 'row', $2, $3, '1 s', 60000)",
            *said, context.attempt_id,
        )  # fmt: skip


@pytest.mark.requirement("LEASE-11")
@pytest.mark.parametrize(
    "said",
    [
        "null", "1", '"*"', "[]", "{}", '{"scopes":[],"input":{}}', '{"scopes":[{}]}',
        '{"scopes":[null],"input":{}}', '{"scopes":{},"input":{}}',
        '{"scopes":[{"operations":["*"],"objects":["*"]}]}',
        '{"scopes":[{"operations":["*"],"objects":["*"]}],"input":[]}',
        '{"scopes":[{"operations":["*"],"objects":["*"]}],"input":{"a":1}}',
        '{"scopes":[{"operations":["*"],"objects":["*"]}],"input":{"a":["b"]}}',
        '{"scopes":[{"operations":["*"],"objects":["*"]}],"input":{},"until":"noon"}',
        '{"scopes":[{"operations":["*"],"objects":["*"],"places":["a"]}],"input":{}}',
        '{"scopes":[{"operations":null}],"input":{}}', '{"scopes":[[]],"input":{}}',
        '{"scopes":[{"operations":["*"],"objects":[]}],"input":{}}',
        '{"scopes":[{"operations":["*"],"objects":"*"}],"input":{}}',
        '{"scopes":[{"operations":["*"],"objects":["*",["*"]]}],"input":{}}',
        '{"scopes":[{"operations":["*"],"objects":["*",1]}],"input":{}}',
        '{"scopes":[{"operations":["*"],"objects":["*",""]}],"input":{}}',
        '{"scopes":[{"operations":["*"],"objects":["*","{a b}"]}],"input":{}}',
        '{"scopes":[{"operations":["*"],"objects":["*","a}"]}],"input":{}}',
        '{"scopes":[{"operations":["*"],"objects":["*","a\\nb"]}],"input":{}}',
        json.dumps({"scopes": [{"operations": ["*"], "objects": ["x" * 301]}], "input": {}}),
        json.dumps({"scopes": [{"operations": ["*"], "objects": ["*"] * 101}], "input": {}}),
        json.dumps({"scopes": [{"operations": ["*"], "objects": ["*"]}] * 3, "input": {}}),
    ],
)  # fmt: skip
async def test_a_scope_that_is_not_understood_permits_nothing_to_either(
    receiver: Downstream, said: str
) -> None:
    with pytest.raises(ValidationError):
        GrantedScope.from_json(said).permits("row", "")
    context = await attempt(receiver.owner)
    async with session(receiver.writer_url) as connection:
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await connection.execute(
                "select tenure_guard($1, $2, 'row', $3, $4, '1 s', 60000, $5)",
                context.task_id, context.attempt_id, context.fencing_token, context.expires_at,
                said,
            )  # fmt: skip
    assert not await receiver.owner.fetchval(
        "select exists (select from tenure_inbox where task_id = $1)", context.task_id
    )


STRICT = """
create function judged() returns trigger language plpgsql
set search_path = pg_catalog, public, pg_temp as $$
begin
    perform tenure_require('write', 'orders/' || new.value);
    return new;
end
$$;
create trigger judged before insert or update on effects for each row execute function judged();
"""
"""As an application's owner writes it: the table says what its rows are."""


@pytest.fixture(scope="module")
async def strict(database_server: DatabaseServer) -> AsyncIterator[Downstream]:
    async with database_server.fresh() as database, downstream(database.admin_url) as made:
        await made.owner.execute(STRICT)
        yield made


@pytest.mark.requirement("LEASE-11")
@EVERY_DRIVER
async def test_a_table_that_asks_refuses_what_the_handler_did_not_name(
    strict: Downstream, driver: Driver
) -> None:
    """It names an order that it may touch, and writes to another."""
    context = await attempt(strict.owner, scope=ORDER_17, input={"order": 17})
    async with driver.open(strict.writer_url) as guard:
        with pytest.raises(OutOfScope, match="no operation 'write' on 'orders/18'"):
            await driver.write(guard, context, "18", "write", key="orders/17")
        with pytest.raises(OutOfScope):
            await driver.write(guard, context, "17", "write", key="orders/17",
                               statement="insert into effects (task_id, value)"
                               " values (cast({} as uuid), '17'), (null, {} || '8')")  # fmt: skip
        assert await driver.write(guard, context, "17", "write", key="orders/17")
        everything = await attempt(strict.owner)
        assert await driver.write(guard, everything, "18", "write")
    assert await strict.effects(context.task_id) == ["17"]


@pytest.mark.requirement("LEASE-11")
async def test_a_table_that_asks_takes_nothing_outside_of_a_guarded_transaction(
    strict: Downstream,
) -> None:
    context = await attempt(strict.owner, scope=ORDER_17, input={"order": 17})
    insert = f"insert into effects (task_id, value) values ('{context.task_id}', '17')"
    async with SqlGuard(strict.writer_url) as guard, session(strict.writer_url) as writer:
        async with guard.transaction(context, operation="write", key="orders/17") as effect:
            said = await effect.connection.fetchval("select current_setting('tenure.guarded')")
            await effect.connection.execute(insert)
        another = await attempt(strict.owner)
        for before in (
            "select 1",
            f"select set_config('tenure.guarded', '{said}', false)",
            "set tenure.guarded = 'nonsense'",
            # Its effect was done before: there is nothing to write.
            (
                f"select tenure_guard('{context.task_id}', '{context.attempt_id}',"
                f' \'["write", "orders/17"]\', {context.fencing_token},'
                f" '{context.expires_at}', '1 s', 60000,"
                f" '{context.scope.to_json()}', 'write', 'orders/17')"
            ),
            # Guarded for another task, it says that it is that one.
            (
                f"select tenure_guard('{another.task_id}', '{another.attempt_id}', 'row',"
                f" {another.fencing_token}, '{another.expires_at}', '1 s', 60000);"
                f" select set_config('tenure.guarded', '{said}', true)"
            ),
        ):
            await writer.execute(f"begin; {before}")
            with pytest.raises(asyncpg.PostgresError) as refused:
                await writer.execute(insert)
            await writer.execute("rollback")
            assert refused.value.sqlstate in ("TN003", "22P02"), before
    assert await strict.effects(context.task_id) == ["17"]


@pytest.mark.requirement("LEASE-11")
@pytest.mark.parametrize("operation", ["write", "*"])
async def test_an_operation_that_is_null_is_none_that_a_scope_permits(
    strict: Downstream, operation: str
) -> None:
    """As where a trigger takes it from a column."""
    scope = Scope(operations=(operation,), objects=("orders/*",))
    context = await attempt(strict.owner, scope=scope)
    driver = DRIVERS[0]

    async def asks(operation: str) -> bool:
        statement = (
            f"select tenure_require({operation}, 'orders/17')"
            " where cast({} as uuid) is not null and {} = ''"
        )
        return await driver.write(guard, context, "", "write", key="orders/17", statement=statement)

    async with driver.open(strict.writer_url) as guard:
        with pytest.raises(OutOfScope):
            await asks("null")
        assert await asks("'write'")


FEW = "ab%_!\\*{}.[é𝄞 "
texts = st.one_of(
    st.text(FEW, max_size=4),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4),
)
pieces = st.one_of(st.sampled_from(["*", "{x}", "{y}", "{_z9}"]), texts)
patterns = st.lists(pieces, min_size=1, max_size=4).map("".join)
values = st.one_of(
    texts, st.none(), st.booleans(), st.integers(), st.floats(), st.lists(texts, max_size=1),
    st.just("a\0b"),
)  # fmt: skip
inputs = st.fixed_dictionaries(
    {"x": texts}, optional={"y": values, "_z9": values, "secret": values}
)


def is_pattern(text: str) -> bool:
    """Whether a scope takes it."""
    try:
        Scope(objects=(text,))
    except ValidationError:
        return False
    return True


@st.composite
def near(draw: st.DrawFn, pattern: str, input: dict[str, Any]) -> str:
    """What the pattern fits, or almost."""
    text = pattern.replace("*", draw(texts))
    for name, value in input.items():
        text = text.replace("{" + name + "}", str(value))
    text = text.replace("\0", "")
    if text and draw(st.booleans()):
        place = draw(st.integers(0, len(text) - 1))
        text = text[:place] + draw(texts) + text[place + 1 :]
    return text


@st.composite
def cases(draw: st.DrawFn) -> tuple[GrantedScope, str, str]:
    """A scope, and an operation and an object that it may well permit."""
    input, pattern = draw(inputs), draw(patterns.filter(is_pattern))
    target = draw(near(pattern, input))
    found = draw(st.lists(patterns.filter(is_pattern), max_size=2))
    narrowed = draw(st.one_of(st.none(), st.just(Scope(operations=(pattern, "b")))))
    operation = target if narrowed else draw(texts)
    return GrantedScope(Scope(objects=(*found, pattern)), input, narrowed), operation, target


@pytest.mark.requirement("LEASE-11")
@settings(max_examples=100, deadline=None)
@given(drawn=st.lists(cases(), min_size=1, max_size=20))
def test_sender_and_receiver_read_one_scope_alike(
    writer: psycopg.Connection[Any], drawn: list[tuple[GrantedScope, str, str]]
) -> None:
    rows = writer.execute(
        "select tenure_permits(t.scope::jsonb, t.operation, t.object)"
        " from unnest(%s::text[], %s::text[], %s::text[]) with ordinality"
        " as t (scope, operation, object, place) order by place",
        (
            [scope.to_json() for scope, _, _ in drawn],
            [operation for _, operation, _ in drawn],
            [target for _, _, target in drawn],
        ),
    ).fetchall()
    for (scope, operation, target), (permitted,) in zip(drawn, rows, strict=True):
        said = (scope.to_json(), operation, target)
        assert permitted is scope.permits(operation, target), said


@pytest.mark.requirement("LEASE-11")
def test_the_receiver_reads_patterns_as_they_are_meant(writer: psycopg.Connection[Any]) -> None:
    for patterns, target, input, fits in SCOPE_CASES:
        if "\0" not in target:
            scope = GrantedScope(Scope(objects=patterns), input).to_json()
            row = writer.execute("select tenure_permits(%s, 'write', %s)", (scope, target))
            assert row.fetchone() == (fits,), (patterns, target, input)


def test_what_a_scope_leaves_out_is_everything_to_both(writer: psycopg.Connection[Any]) -> None:
    for said in ('{"scopes":[{}],"input":{}}', '{"scopes":[{"objects":["a"]}],"input":{}}'):
        assert GrantedScope.from_json(said).permits("write", "a")
        assert writer.execute("select tenure_permits(%s, 'write', 'a')", (said,)).fetchone() == (
            True,
        )


def test_many_stars_are_soon_tried_by_the_receiver(writer: psycopg.Connection[Any]) -> None:
    scope = GrantedScope(Scope(objects=("*a" * 100 + "*b",)), {}).to_json()
    for target, permitted in (("a" * 200, False), ("a" * 199 + "b", True)):
        row = writer.execute("select tenure_permits(%s, 'write', %s)", (scope, target)).fetchone()
        assert row == (permitted,)


EARLIER = """
create function tenure_raise_fence(uuid, bigint, timestamptz, interval) returns void
language sql as 'select';
create function tenure_guard(uuid, uuid, text, bigint, timestamptz, interval, bigint,
    out already_done boolean, out limit_milliseconds integer)
language sql as 'select false, 1';
revoke all on function
    tenure_raise_fence(uuid, bigint, timestamptz, interval),
    tenure_guard(uuid, uuid, text, bigint, timestamptz, interval, bigint)
from public;
create table tenure_fence (
    task_id uuid primary key, fencing_token bigint not null, raised_at timestamptz not null
);
"""


async def test_an_installation_without_scopes_is_told_and_renewed_with_its_grants(
    empty_database: FreshDatabase,
) -> None:
    async with downstream(empty_database.admin_url) as receiver:
        await receiver.owner.execute(
            "drop table tenure_fence;"
            "drop function tenure_raise_fence, tenure_guard, tenure_require;" + EARLIER
        )
        await receiver.owner.execute(
            f'grant execute on function tenure_raise_fence, tenure_guard to "{receiver.role}"'
        )
        context = await attempt(receiver.owner, scope=ORDER_17, input={"order": 17})
        async with SqlGuard(receiver.writer_url) as guard:
            with pytest.raises(GuardNotInstalled, match="earlier version"):
                await guard.raise_fence(context)
            facts = await inspect(receiver.writer_url)
            assert facts.lacking == ("tenure_raise_fence", "tenure_guard", "tenure_require")
            await receiver.owner.execute(install_statements())  # which names no account
            assert (await inspect(receiver.writer_url)).lacking == ()
            await guard.raise_fence(context)
            async with guard.transaction(context, operation="read", key="orders/17") as effect:
                assert not effect.already_done
        functions = await receiver.owner.fetch(
            "select proname from pg_proc where proname in ('tenure_guard', 'tenure_raise_fence')"
        )
        assert len(functions) == 2, "one of each is left"
        async with session(receiver.writer_url) as connection:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("select * from tenure_fence")
