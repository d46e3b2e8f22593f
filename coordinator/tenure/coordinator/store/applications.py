"""Which logins of applications may enqueue tasks in their own transactions, and for which tenants.

Such a login needs the one function and nothing else here: it reads nothing and writes nothing but
what the function writes for it (OPS-05).
"""

import re

import asyncpg

from tenure.contract.ids import TENANT_PATTERN, TenantId
from tenure.coordinator.store.errors import DatabaseRefused, NotMigrated, RolesNeeded
from tenure.coordinator.store.migrate import connected
from tenure.coordinator.store.roles import quote_identifier


def allow_sql(role: str, tenant: TenantId) -> str:
    """What lets ``role`` enqueue for ``tenant``, to be run by the owner of the schema. May be run
    again. Raises ValueError for a name that no tenant can have.
    """
    name = quote_identifier(role)
    return (
        "insert into tenure.intake_roles (role_name, tenant)"
        f" values ({_literal(role)}, {_literal(_checked(tenant))}) on conflict do nothing;\n"
        f"grant usage on schema tenure to {name};\n"
        f"grant execute on function tenure.enqueue to {name};\n"
    )


def forbid_sql(role: str, tenant: TenantId) -> str:
    """What takes that from ``role``; with its last tenant the grants go too. Raises ValueError."""
    name, text = quote_identifier(role), _literal(role)
    return (
        f"delete from tenure.intake_roles where role_name = {text}"
        f" and tenant = {_literal(_checked(tenant))};\n"
        "do $do$ begin\n"
        f"    if exists (select from pg_roles where rolname = {text}) and not exists (\n"
        f"        select from tenure.intake_roles where role_name = {text})\n"
        "    then\n"
        f"        revoke all on function tenure.enqueue from {name};\n"
        f"        revoke all on schema tenure from {name};\n"
        "    end if;\n"
        "end $do$;\n"
    )


async def allow(url: str, role: str, tenant: TenantId) -> None:
    """Let ``role`` enqueue for ``tenant``. ``url`` is the login that owns the schema.

    Raises ValueError, RolesNeeded when there is no such role, NotMigrated, DatabaseRefused,
    DatabaseUnreachable.
    """
    await _run(url, allow_sql(role, tenant), role)


async def forbid(url: str, role: str, tenant: TenantId) -> None:
    """Take that from ``role``. What it has enqueued already stays. Raises as ``allow``."""
    await _run(url, forbid_sql(role, tenant), role)


async def _run(url: str, script: str, role: str) -> None:
    async with connected(url) as connection:
        try:
            async with connection.transaction():
                await connection.execute(script)
        except asyncpg.UndefinedObjectError as error:
            raise RolesNeeded(
                f"There is no role {role}.",
                next_step=f"Create the application's login first: create role"
                f" {quote_identifier(role)} login; and give it a password.",
            ) from error
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
            raise NotMigrated(
                f"The database lacks the intake: {error}.",
                next_step="Run `tenure migrate up` with the login that owns the schema.",
            ) from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise DatabaseRefused(
                f"This login may not say who enqueues: {error}.",
                next_step="Use the login that owns the schema.",
            ) from error


def _checked(tenant: TenantId) -> TenantId:
    if not re.fullmatch(TENANT_PATTERN, tenant):
        raise ValueError(f"{tenant!r} is no tenant: use lower case letters, digits and '-'")
    return tenant


def _literal(text: str) -> str:
    """``text`` as an SQL string, for scripts that people read; backslashes are plain."""
    return "'" + text.replace("'", "''") + "'"
