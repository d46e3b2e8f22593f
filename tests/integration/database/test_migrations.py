"""Migrations, roles and grants on a real server."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest

from tenure.coordinator.store import migrate
from tenure.coordinator.store.errors import (
    DatabaseRefused,
    DatabaseUnreachable,
    MigrationBusy,
    MigrationEdited,
    MigrationFailed,
    NotMigrated,
    RolesNeeded,
    SchemaTooNew,
    ServerTooOld,
)
from tenure.coordinator.store.migrate import Migration
from tenure.coordinator.store.roles import LIMITS, Roles, quote_identifier, roles_sql
from tests.support.isolation import DatabaseServer, FreshDatabase, with_login
from tests.support.sessions import session


@pytest.fixture
async def roles(database_server: DatabaseServer) -> AsyncIterator[Roles]:
    """Names that no other test uses; the roles are dropped with everything they were granted."""
    suffix = secrets.token_hex(4)
    roles = Roles(coordinator=f"test_coordinator_{suffix}", relay=f"test_relay_{suffix}")
    yield roles
    async with session(database_server.url) as admin:
        for name in roles.names():
            await admin.execute(f"drop role if exists {name}")


@pytest.fixture
async def migrated(database_server: DatabaseServer, roles: Roles) -> AsyncIterator[FreshDatabase]:
    """A database migrated with those roles, dropped before they are."""
    async with database_server.fresh() as database:
        await migrate.up(database.owner_url, roles=roles)
        yield database


def extra(sql: str, version: int = 9999, *, transactional: bool = True) -> tuple[Migration, ...]:
    """The files of this program and one more."""
    added = Migration(version, "extra", "0" * 64, sql, transactional)
    return (*migrate.migrations(), added)


async def test_up_applies_every_file_once_in_order_and_records_who_and_when(
    empty_database: FreshDatabase,
) -> None:
    seen: list[migrate.Applied] = []
    done = await migrate.up(empty_database.owner_url, seen.append)
    assert done == seen
    assert [row.version for row in done] == [file.version for file in migrate.migrations()]
    assert {row.applied_by for row in done} == {"tenure_test_owner"}
    assert await migrate.up(empty_database.owner_url) == []
    status = await migrate.verify(empty_database.owner_url)
    assert list(status.applied) == done
    assert status.pending == ()


async def test_of_several_migrations_at_once_one_applies_each_file(
    empty_database: FreshDatabase,
) -> None:
    runs = await asyncio.gather(*(migrate.up(empty_database.owner_url) for _ in range(4)))
    applied = sorted(row.version for run in runs for row in run)
    assert applied == [file.version for file in migrate.migrations()]


async def test_an_index_built_without_transaction_does_not_hang_behind_a_waiting_migration(
    migrated: FreshDatabase, roles: Roles
) -> None:
    files = extra(
        "-- no-transaction\ncreate index concurrently if not exists an_extra_index"
        " on tenure.receipts (task_id);\n",
        transactional=False,
    )
    runs = await asyncio.gather(
        *(migrate.up(migrated.owner_url, roles=roles, files=files) for _ in range(3))
    )
    assert sorted(len(run) for run in runs) == [0, 0, 1]


async def test_an_empty_database_is_not_migrated(empty_database: FreshDatabase) -> None:
    with pytest.raises(NotMigrated) as caught:
        await migrate.verify(empty_database.owner_url)
    assert caught.value.code == "not_migrated"
    assert (await migrate.status(empty_database.owner_url)).applied == ()


async def test_a_database_newer_than_the_program_is_refused_and_left_alone(
    migrated: FreshDatabase, roles: Roles
) -> None:
    await migrate.up(migrated.owner_url, roles=roles, files=extra("select 1"))
    for refused in (
        migrate.verify(migrated.owner_url, roles=roles),
        migrate.up(migrated.owner_url, roles=roles),
    ):
        with pytest.raises(SchemaTooNew) as caught:
            await refused
        assert "9999_extra" in caught.value.message


async def test_a_file_edited_after_it_was_applied_is_noticed(
    migrated: FreshDatabase, roles: Roles
) -> None:
    first, *others = migrate.migrations()
    files = (replace(first, sha256="0" * 64), *others)
    with pytest.raises(MigrationEdited) as caught:
        await migrate.up(migrated.owner_url, roles=roles, files=files)
    assert "0001_schema" in caught.value.message


async def test_a_file_that_fails_changes_nothing_and_names_the_line(
    migrated: FreshDatabase, roles: Roles
) -> None:
    files = extra("create table tenure.half ();\n\nselect nonsense")
    with pytest.raises(MigrationFailed) as caught:
        await migrate.up(migrated.owner_url, roles=roles, files=files)
    assert "9999_extra was refused (line 3)" in caught.value.message
    async with session(migrated.owner_url) as owner:
        assert await owner.fetchval("select to_regclass('tenure.half')") is None
        assert not await owner.fetchval(
            "select exists (select from tenure.schema_migrations where version = 9999)"
        )


async def test_a_held_lock_ends_in_a_coded_refusal(migrated: FreshDatabase, roles: Roles) -> None:
    async with session(migrated.owner_url) as other:
        key = int.from_bytes(b"tenure", "big")
        assert await other.fetchval("select pg_try_advisory_lock($1)", key)
        with pytest.raises(MigrationBusy):
            await migrate.up(migrated.owner_url, roles=roles, lock_wait_seconds=0)
    await migrate.up(migrated.owner_url, roles=roles)


async def test_a_server_before_the_minimum_is_refused(
    migrated: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "MINIMUM_SERVER_MAJOR", 1000)
    with pytest.raises(ServerTooOld) as caught:
        await migrate.status(migrated.owner_url)
    assert caught.value.code == "server_too_old"


async def test_wrong_password_and_absent_server_are_told_apart(migrated: FreshDatabase) -> None:
    with pytest.raises(DatabaseRefused):
        await migrate.status(with_login(migrated.owner_url, "tenure_test_owner", "wrong"))
    with pytest.raises(DatabaseUnreachable):
        await migrate.status("postgresql://somebody:secret@127.0.0.1:1/nowhere")


async def test_roles_are_asked_for_before_anything_is_changed(
    database_server: DatabaseServer, roles: Roles
) -> None:
    owner = f"test_plain_owner_{secrets.token_hex(4)}"
    async with session(database_server.url) as admin:
        await admin.execute(f"create role {owner} login password 'plain'")
        try:
            async with database_server.fresh() as database:
                await admin.execute(f'alter database "{database.name}" owner to {owner}')
                url = with_login(database.owner_url, owner, "plain")
                with pytest.raises(RolesNeeded) as caught:
                    await migrate.up(url, roles=roles)
                assert caught.value.code == "roles_needed"
                async with session(url) as connection:
                    assert not await connection.fetchval(
                        "select exists (select from pg_namespace where nspname = 'tenure')"
                    )
                await admin.execute(roles_sql(roles))
                await admin.execute(roles_sql(roles))  # bears repetition
                assert await migrate.up(url, roles=roles) != []
                await migrate.verify(url, roles=roles)
        finally:
            await admin.execute(f"drop role {owner}")


async def test_databases_migrated_at_once_can_share_their_roles(
    database_server: DatabaseServer, roles: Roles
) -> None:
    with_passwords = replace(roles, coordinator_password="one", relay_password="t'wo")
    async with (
        database_server.fresh() as a,
        database_server.fresh() as b,
        database_server.fresh() as c,
    ):
        urls = [database.owner_url for database in (a, b, c)]
        await asyncio.gather(*(migrate.up(url, roles=with_passwords) for url in urls))
        for url in urls:
            await migrate.verify(url, roles=roles)
            async with session(with_login(url, roles.relay, "t'wo")) as relay:
                assert await relay.fetchval("select count(*) from tenure.relay_shards") == 64


async def test_a_role_that_lost_a_limit_is_noticed_and_mended(
    migrated: FreshDatabase, roles: Roles, database_server: DatabaseServer
) -> None:
    async with session(database_server.url) as admin:
        await admin.execute(f"alter role {roles.relay} reset transaction_timeout")
    with pytest.raises(RolesNeeded) as caught:
        await migrate.verify(migrated.owner_url, roles=roles)
    assert "transaction_timeout" in caught.value.message
    await migrate.up(migrated.owner_url, roles=roles)
    await migrate.verify(migrated.owner_url, roles=roles)


async def test_a_lock_is_given_up_before_a_statement_and_a_statement_before_its_transaction(
    database: FreshDatabase,
) -> None:
    for url in (database.coordinator_url, database.relay_url):
        async with session(url) as service:
            lock, statement, transaction = [
                await service.fetchval(
                    "select setting::integer from pg_settings where name = $1", name
                )
                for name in ("lock_timeout", "statement_timeout", "transaction_timeout")
            ]
            assert 0 < lock < statement < transaction == 2000
            for name, value in LIMITS.items():
                if not name.startswith("tcp"):  # these are shown as they are in effect
                    assert await service.fetchval("select current_setting($1)", name) == value


async def test_nothing_that_a_service_asks_is_compiled(database: FreshDatabase) -> None:
    """Where the server can: plans without sequential scans look as if that were worth it."""
    for url in (database.coordinator_url, database.relay_url):
        async with session(url) as service:
            assert await service.fetchval("select current_setting('jit')") == "off"


async def test_services_may_change_no_table_and_lock_nothing(database: FreshDatabase) -> None:
    async with session(database.owner_url) as owner:
        found = await owner.fetch(
            """
            select c.relname, role, privilege
            from pg_class c join pg_namespace n on n.oid = c.relnamespace,
                unnest($1::text[]) role,
                unnest(array['insert', 'update', 'delete', 'truncate', 'references', 'trigger',
                    'maintain']) privilege
            where n.nspname = 'tenure' and c.relkind in ('r', 'p')
                and has_table_privilege(role, c.oid, privilege)
            """,
            list(Roles().names()),
        )
        assert [tuple(row) for row in found] == []
    for url in (database.coordinator_url, database.relay_url):
        async with session(url) as service:
            for forbidden in (
                "insert into tenure.log default values",
                "insert into tenure.log_p000001 default values",
                "update tenure.relay_shards set position = 1",
                "delete from tenure.log",
                "lock table tenure.append_lock in share row exclusive mode",
                "select nextval('tenure.log_position')",
                "create table tenure.mine ()",
                "select tenure.take_append_lock()",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    async with service.transaction():
                        await service.execute(forbidden)


async def test_the_public_may_use_nothing(database: FreshDatabase) -> None:
    async with session(database.owner_url) as owner:
        open_functions = await owner.fetch(
            """
            select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
            where n.nspname = 'tenure' and has_function_privilege('public', p.oid, 'execute')
            """
        )
        assert open_functions == []
        assert not await owner.fetchval("select has_schema_privilege('public', 'tenure', 'usage')")


async def test_every_function_that_runs_as_its_owner_has_a_fixed_search_path(
    database: FreshDatabase,
) -> None:
    async with session(database.owner_url) as owner:
        loose = await owner.fetch(
            """
            select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
            where n.nspname = 'tenure' and p.prosecdef
                and not coalesce('search_path=tenure, pg_temp' = any(p.proconfig), false)
            """
        )
        assert [row["proname"] for row in loose] == []


def test_printed_roles_sql_quotes_names_and_sets_every_setting() -> None:
    printed = roles_sql(Roles(coordinator='odd"name', relay="other"))
    assert 'create role "odd""name" login;' in printed
    for name, value in Roles(relay="other").settings("other").items():
        assert f"alter role \"other\" set {name} = '{value}';" in printed
    assert quote_identifier('a"b') == '"a""b"'


def test_one_name_for_both_roles_is_refused() -> None:
    with pytest.raises(ValueError, match="a role each"):
        roles_sql(Roles(coordinator="same", relay="same"))
