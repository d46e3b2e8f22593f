"""``tenure migrate …``: the database of the coordinator."""

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tenure.cli.connection import CONNECTION_FILE, read_connection_file, state_directory
from tenure.cli.exits import SetupError, UsageError, needs
from tenure.cli.output import Output, print_json, print_table

if TYPE_CHECKING:
    from tenure.coordinator.store.migrate import Applied, Status
    from tenure.coordinator.store.roles import Roles

app = App(name="migrate", help="Bring the database up to date.")


@Parameter(name="*")
@dataclass(frozen=True)
class RoleNames:
    """Names of the services' roles. New passwords for them come from TENURE_COORDINATOR_PASSWORD
    and TENURE_RELAY_PASSWORD, or the files that ..._FILE names."""

    coordinator_role: Annotated[str, Parameter(help="Role of the coordinators.")] = (
        "tenure_coordinator"
    )
    relay_role: Annotated[str, Parameter(help="Role of the relays.")] = "tenure_relay"


DEFAULT_ROLES = RoleNames()


@app.command
def up(*, roles: RoleNames = DEFAULT_ROLES) -> None:
    """Apply what is missing, create the services' roles where allowed, and grant them their rights.

    TENURE_DATABASE_URL must be the login that owns the schema. Migrations only go forward.
    """
    with needs("coordinator"):
        from tenure.coordinator.store import migrate

    def say(applied: "Applied") -> None:
        print(f"applied {applied.version:04}_{applied.name}")

    done = asyncio.run(migrate.up(_database_url(), say, roles=_roles(roles)))
    if not done:
        print("nothing to apply; roles and grants are in place")


@app.command
def status(*, output: Output = "table") -> None:
    """Show which migrations are applied."""
    with needs("coordinator"):
        from tenure.coordinator.store import migrate

    _print_status(asyncio.run(migrate.status(_database_url())), output)


@app.command
def verify(*, roles: RoleNames = DEFAULT_ROLES, output: Output = "table") -> None:
    """Succeed when this release can use the database as it is."""
    with needs("coordinator"):
        from tenure.coordinator.store import migrate

    found = asyncio.run(migrate.verify(_database_url(), roles=_roles(roles)))
    _print_status(found, output)


@app.command(name="roles")
def print_roles(
    *,
    print_: Annotated[
        bool, Parameter(name="--print", negative="", help="Print the SQL; nothing else is done.")
    ] = False,
    roles: RoleNames = DEFAULT_ROLES,
) -> None:
    """Print what an administrator runs once where the schema's owner may not create roles."""
    if not print_:
        raise UsageError("`tenure migrate roles` only prints: say --print.")
    with needs("coordinator"):
        from tenure.coordinator.store.roles import roles_sql

    print(roles_sql(_roles(roles)))


def _roles(names: RoleNames) -> "Roles":
    from tenure.client.settings import read_secret
    from tenure.coordinator.store.roles import Roles

    return Roles(
        coordinator=names.coordinator_role,
        relay=names.relay_role,
        coordinator_password=read_secret("TENURE_COORDINATOR_PASSWORD", os.environ),
        relay_password=read_secret("TENURE_RELAY_PASSWORD", os.environ),
    )


def _database_url() -> str:
    """``TENURE_DATABASE_URL`` (or ``_FILE``), else the local stack's. Raises SetupError."""
    from tenure.client.settings import read_secret

    given = read_secret("TENURE_DATABASE_URL", os.environ)
    if given is not None:
        return given
    file = state_directory() / CONNECTION_FILE
    if file.exists():
        url = read_connection_file(file).get("database_url")
        if isinstance(url, str):
            return url
    raise SetupError(
        f"no database is known: TENURE_DATABASE_URL is not set and there is no {file}.",
        next_step="Set TENURE_DATABASE_URL to the login that owns the schema.",
        code="not_configured",
    )


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
