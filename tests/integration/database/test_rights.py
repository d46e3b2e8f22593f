"""What the services' roles can do in the database: read, and call their own functions."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tenure.coordinator.core.decisions import ItemOutcome
from tenure.coordinator.store.roles import Roles
from tests.support import steps
from tests.support.authority import replica
from tests.support.isolation import FreshDatabase
from tests.support.sessions import session

COORDINATOR, RELAY = Roles().names()


@pytest.fixture
async def owner(database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    async with session(database.owner_url) as connection:
        yield connection


async def functions(owner: asyncpg.Connection, condition: str, *arguments: object) -> set[str]:
    rows = await owner.fetch(
        "select p.proname from pg_proc p where p.pronamespace = 'tenure'::regnamespace"
        f" and {condition}",
        *arguments,
    )
    return {row["proname"] for row in rows}


async def test_what_a_service_may_call_runs_as_the_owner_and_by_no_other_path(
    owner: asyncpg.Connection,
) -> None:
    for role in (COORDINATOR, RELAY):
        callable_by = await functions(owner, "has_function_privilege($1, p.oid, 'execute')", role)
        loose = await functions(
            owner,
            "has_function_privilege($1, p.oid, 'execute')"
            " and not (p.prosecdef and 'search_path=tenure, pg_temp' = any (p.proconfig))",
            role,
        )
        assert callable_by
        assert loose == set()
    shared = "has_function_privilege($1, p.oid, 'execute')"
    both = await functions(owner, f"{shared} and {shared.replace('$1', '$2')}", COORDINATOR, RELAY)
    assert both == set()


async def test_functions_that_write_are_volatile(owner: asyncpg.Connection) -> None:
    """A stable function reads by the snapshot of the statement that calls it, and would not see
    what was committed while it waited for its locks."""
    writing = await functions(
        owner, "p.prosrc ~* '\\m(insert into|update|delete from|lock table)\\M'"
    )
    volatile = await functions(owner, "p.provolatile = 'v'")
    assert "commit_batch" in writing
    assert writing <= volatile


async def test_nothing_is_owned_by_a_superuser_or_a_service(owner: asyncpg.Connection) -> None:
    owners = await owner.fetch(
        """
        select distinct r.rolname, r.rolsuper from pg_roles r join (
            select relowner as who from pg_class where relnamespace = 'tenure'::regnamespace
            union select proowner from pg_proc where pronamespace = 'tenure'::regnamespace
            union select nspowner from pg_namespace where nspname = 'tenure'
        ) owned on owned.who = r.oid
        """
    )
    assert [row["rolsuper"] for row in owners] == [False]
    assert owners[0]["rolname"] not in (COORDINATOR, RELAY)


async def test_a_service_has_no_right_to_a_column_a_sequence_or_another_role(
    owner: asyncpg.Connection, database: FreshDatabase
) -> None:
    for role in (COORDINATOR, RELAY):
        columns = await owner.fetch(
            """
            select c.relname from pg_class c, unnest(array['insert', 'update', 'references']) what
            where c.relnamespace = 'tenure'::regnamespace and c.relkind in ('r', 'p')
              and has_any_column_privilege($1, c.oid, what)
            """,
            role,
        )
        sequences = await owner.fetch(
            """
            select c.relname from pg_class c, unnest(array['usage', 'update']) what
            where c.relnamespace = 'tenure'::regnamespace and c.relkind = 'S'
              and has_sequence_privilege($1, c.oid, what)
            """,
            role,
        )
        assert [*columns, *sequences] == []
    owner_name = await owner.fetchval("select current_user")
    for url in (database.coordinator_url, database.relay_url):
        async with session(url) as service:
            for forbidden in (
                f"set role {owner_name}",
                "set session_replication_role = replica",
                "alter table tenure.attempts disable trigger all",
                "drop trigger attempts_move_as_permitted on tenure.attempts",
                "create or replace function tenure.f() returns int language sql as 'select 1'",
                "create schema mine",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await service.execute(forbidden)


async def test_no_table_of_a_session_stands_in_for_one_of_the_schema(
    database: FreshDatabase,
) -> None:
    async with replica(database) as bench, steps.patient(database.coordinator_url) as service:
        await bench.register()
        await service.execute("set search_path = pg_temp, public")
        for table in ("tasks", "commands", "log", "authority", "append_lock"):
            await service.execute(f"create temporary table {table} (task_id uuid)")
        item = await steps.accept(service, bench.submission())
        assert await steps.commit(service, item) == [ItemOutcome.APPLIED]
        assert await bench.owner.fetchval("select count(*) from tenure.tasks") == 1
