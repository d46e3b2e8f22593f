"""``tenure migrate …``: the database of the coordinator."""

import asyncio
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tenure.cli.exits import UsageError, needs
from tenure.cli.output import Output, print_json, print_table
from tenure.cli.settings import Config, completed, given
from tenure.contract.ids import DEFAULT_TENANT, TENANT_PATTERN, TenantId

if TYPE_CHECKING:
    from tenure.coordinator.config import MigrateSettings
    from tenure.coordinator.store.migrate import Applied, Status

app = App(name="migrate", help="Bring the database up to date.")


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """Where the settings come from, and names of the services' roles. New passwords for them come
    from TENURE_COORDINATOR_PASSWORD and TENURE_RELAY_PASSWORD, or the files that ..._FILE names."""

    config: Config = None
    coordinator_role: Annotated[
        str | None, Parameter(help="Role of the coordinators. [default: tenure_coordinator]")
    ] = None
    relay_role: Annotated[
        str | None, Parameter(help="Role of the relays. [default: tenure_relay]")
    ] = None


NO_OPTIONS = Options()


@app.command
def up(*, options: Options = NO_OPTIONS) -> None:
    """Apply what is missing, create the services' roles where allowed, and grant them their rights.

    TENURE_DATABASE_URL must be the login that owns the schema. Migrations only go forward.
    """
    with needs("coordinator"):
        from tenure.coordinator.store import migrate

    def say(applied: "Applied") -> None:
        print(f"applied {applied.version:04}_{applied.name}")

    settings = _settings(options)
    done = asyncio.run(migrate.up(settings.database_url.current(), say, roles=settings.roles()))
    if not done:
        print("nothing to apply; roles and grants are in place")


@app.command
def status(*, options: Options = NO_OPTIONS, output: Output = "table") -> None:
    """Show which migrations are applied."""
    with needs("coordinator"):
        from tenure.coordinator.store import migrate

    url = _settings(options).database_url.current()
    _print_status(asyncio.run(migrate.status(url)), output)


@app.command
def verify(*, options: Options = NO_OPTIONS, output: Output = "table") -> None:
    """Succeed when this release can use the database as it is."""
    with needs("coordinator"):
        from tenure.coordinator.store import migrate

    settings = _settings(options)
    found = asyncio.run(migrate.verify(settings.database_url.current(), roles=settings.roles()))
    _print_status(found, output)


@app.command(name="roles")
def print_roles(
    *,
    print_: Annotated[
        bool, Parameter(name="--print", negative="", help="Print the SQL; nothing else is done.")
    ] = False,
    options: Options = NO_OPTIONS,
) -> None:
    """Print what an administrator runs once where the schema's owner may not create roles."""
    if not print_:
        raise UsageError("`tenure migrate roles` only prints: say --print.")
    with needs("coordinator"):
        from tenure.coordinator.store.roles import roles_sql

    # No database is asked, so none has to be known.
    print(roles_sql(_settings(options, database_url="postgresql:///").roles()), end="")


@app.command
def application(
    role: str,
    /,
    *,
    tenant: Annotated[str, Parameter(help="For which tenant.")] = DEFAULT_TENANT,
    revoke: Annotated[
        bool, Parameter(negative="", help="Take it back; what is enqueued already stays.")
    ] = False,
    print_: Annotated[
        bool, Parameter(name="--print", negative="", help="Print the SQL; nothing else is done.")
    ] = False,
    options: Options = NO_OPTIONS,
) -> None:
    """Let an application's login enqueue tasks in its own transactions, and nothing else.

    TENURE_DATABASE_URL must be the login that owns the schema. Any number of logins, each for any
    number of tenants.
    """
    with needs("coordinator"):
        from tenure.coordinator.store import applications

    if not re.fullmatch(TENANT_PATTERN, tenant):
        raise UsageError("--tenant: a tenant has lower case letters, digits and '-'.")
    name = TenantId(tenant)
    if print_:
        make = applications.forbid_sql if revoke else applications.allow_sql
        print(make(role, name), end="")
        return
    change = applications.forbid if revoke else applications.allow
    asyncio.run(change(_settings(options).database_url.current(), role, name))
    print(f"{role} may {'no longer ' if revoke else ''}enqueue for tenant {tenant}")


def _settings(options: Options, database_url: str | None = None) -> "MigrateSettings":
    """The settings; the database of the local stack where none is told.

    Raises SettingsInvalid, SetupError.
    """
    from tenure.coordinator.config import MigrateSettings
    from tenure.settings.process import load

    values = given(
        config=options.config,
        coordinator_role=options.coordinator_role,
        relay_role=options.relay_role,
        database_url=database_url,
    )
    return load(MigrateSettings, completed("migrate", values)[0])


def _print_status(found: "Status", output: str) -> None:
    edited = {row.version for row in found.edited}
    unknown = {row.version for row in found.unknown}
    rows: list[tuple[int, str, str, object]] = []
    for row in found.applied:
        state = "applied"
        if row.version in unknown:
            state = "unknown to this release"
        elif row.version in edited:
            state = "applied with other content"
        rows.append((row.version, row.name, state, row.applied_at))
    rows.extend((pending.version, pending.name, "missing", None) for pending in found.pending)
    rows.sort(key=lambda row: row[0])
    if output == "json":
        print_json(
            [
                {
                    "version": version,
                    "name": name,
                    "state": state,
                    "applied_at": at.isoformat() if hasattr(at, "isoformat") else None,
                }
                for version, name, state, at in rows
            ]
        )
        return
    print_table(
        ["migration", "state", "applied"],
        [(f"{version:04}_{name}", state, at) for version, name, state, at in rows],
    )
    if found.pending:
        print("Run `tenure migrate up`.", file=sys.stderr)
