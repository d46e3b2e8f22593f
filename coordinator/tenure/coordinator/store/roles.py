"""The two roles the services log in with, and their limits.

Limits are set on the role and not at connect, so that they hold behind a connection pooler too.
``lock_timeout < statement_timeout < transaction_timeout``: a service that waits for a lock says so
before anything is cut off, and one that was stopped in the middle blocks others for at most
``transaction_timeout``. The keepalive settings end the session of a machine that vanished.

Roles belong to the whole cluster, and two databases may be migrated at once: what exists already
is left alone, and a collision is repeated.
"""

import asyncio
import base64
import hashlib
import hmac
import os
import random
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from tenure.coordinator.store.errors import RolesNeeded

LIMITS: Final[dict[str, str]] = {
    "lock_timeout": "750ms",
    "statement_timeout": "1500ms",
    "transaction_timeout": "2s",
    "idle_in_transaction_session_timeout": "1s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}
PLANS: Final[dict[str, str]] = {
    # A plan that may not scan sequentially, and does where nothing else is possible, counts as so
    # costly that it would be compiled at each execution: for hundreds of milliseconds.
    "jit": "off",
}
RELAY_SETTINGS: Final[dict[str, str]] = {
    # A statement prepared while the log was empty would keep its sequential scans for ever.
    "enable_seqscan": "off",
}
_ATTEMPTS: Final = 20
_SCRAM_ITERATIONS: Final = 4096


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of the services' roles, and the passwords they shall have (None: left as they are)."""

    coordinator: str = "tenure_coordinator"
    relay: str = "tenure_relay"
    coordinator_password: str | None = field(default=None, repr=False)
    relay_password: str | None = field(default=None, repr=False)

    def names(self) -> tuple[str, str]:
        """Both names; raises ValueError when they are one."""
        if self.coordinator == self.relay:
            raise ValueError("the coordinator and the relay need a role each")
        return self.coordinator, self.relay

    def settings(self, name: str) -> dict[str, str]:
        """What is set on the role of this name."""
        shared = LIMITS | PLANS
        return shared | RELAY_SETTINGS if name == self.relay else shared


def quote_identifier(name: str) -> str:
    """``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def roles_sql(roles: Roles | None = None) -> str:
    """What an administrator runs once where the owner of the schema may not create roles.

    May be run again. Passwords are not part of it: the administrator chooses them.
    """
    lines = [
        "-- Roles of Tenure's services, with their limits. Run as an administrator of the server."
    ]
    roles = roles or Roles()
    for name in roles.names():
        role = quote_identifier(name)
        lines.append("do $$ begin")
        lines.append(f"    create role {role} login;")
        lines.append("exception when duplicate_object or unique_violation then null;")
        lines.append("end $$;")
        lines += [
            f"alter role {role} set {key} = '{value}';"
            for key, value in roles.settings(name).items()
        ]
        lines.append(f"-- then, in psql:  \\password {role}")
    return "\n".join(lines) + "\n"


async def ensure_roles(connection: asyncpg.Connection, roles: Roles) -> None:
    """Create the roles where they are missing, set the limits they lack and the given passwords.

    Raises RolesNeeded when this login may not do that, ValueError for a password that is not plain
    ASCII.
    """
    names = roles.names()
    passwords = (roles.coordinator_password, roles.relay_password)
    for name, password in zip(names, passwords, strict=True):
        verifier = None if password is None else _scram_verifier(password)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await _ensure_role(connection, name, roles.settings(name), verifier)
                break
            except asyncpg.InsufficientPrivilegeError as error:
                raise RolesNeeded(
                    f"The role {name} is missing or lacks its limits, and this login may not"
                    f" change it: {error}.",
                    next_step="Let an administrator run what `tenure migrate roles --print`"
                    " prints.",
                ) from error
            except (asyncpg.UniqueViolationError, asyncpg.DuplicateObjectError):
                continue  # another database's migration made it meanwhile
            except asyncpg.InternalServerError:
                # "tuple concurrently updated": another database's migration changes the same role
                if attempt == _ATTEMPTS:
                    raise
                await asyncio.sleep(random.uniform(0, 0.05 * attempt))


async def existing_roles(connection: asyncpg.Connection, names: tuple[str, ...]) -> frozenset[str]:
    """Which of the names are roles of the server."""
    rows = await connection.fetch(
        "select rolname::text as name from pg_roles where rolname = any($1::text[])", list(names)
    )
    return frozenset(row["name"] for row in rows)


async def missing_roles(connection: asyncpg.Connection, roles: Roles) -> list[str]:
    """What the roles lack, in words; empty when all is well."""
    faults = []
    for name in roles.names():
        settings = roles.settings(name)
        state = await _state(connection, name, settings)
        if state is None:
            faults.append(f"role {name} does not exist")
            continue
        if state.superuser:
            faults.append(f"role {name} is a superuser")
        faults += [f"role {name} has no {key} = {settings[key]}" for key in state.lacking]
    return faults


@dataclass(frozen=True, slots=True)
class _RoleState:
    superuser: bool
    lacking: tuple[str, ...]


async def _state(
    connection: asyncpg.Connection, name: str, settings: dict[str, str]
) -> _RoleState | None:
    row = await connection.fetchrow(
        """
        select r.rolsuper, coalesce((
            select array_agg(setting)
            from pg_db_role_setting s, unnest(s.setconfig) setting
            where s.setrole = r.oid
                and s.setdatabase in (0, (select oid from pg_database
                                          where datname = current_database()))
        ), '{}') as settings
        from pg_roles r where r.rolname = $1
        """,
        name,
    )
    if row is None:
        return None
    present = set(row["settings"])
    return _RoleState(
        superuser=row["rolsuper"],
        lacking=tuple(key for key, value in settings.items() if f"{key}={value}" not in present),
    )


async def _ensure_role(
    connection: asyncpg.Connection, name: str, settings: dict[str, str], verifier: str | None
) -> None:
    role = quote_identifier(name)
    state = await _state(connection, name, settings)
    if state is None:
        await connection.execute(f"create role {role} login")
        state = _RoleState(superuser=False, lacking=tuple(settings))
    if state.superuser:
        raise RolesNeeded(
            f"The role {name} is a superuser, which no limit binds.",
            next_step="Choose another name, or take that attribute from it.",
        )
    for key in state.lacking:
        await connection.execute(f"alter role {role} set {key} = '{settings[key]}'")
    if verifier is not None:
        await connection.execute(f"alter role {role} login password '{verifier}'")


def _scram_verifier(password: str) -> str:
    """The stored form of a password (RFC 5803): the server's log never sees the password."""
    if not password or not password.isascii() or not password.isprintable():
        raise ValueError("a role's password must be printable ASCII and not empty")
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _SCRAM_ITERATIONS)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    parts = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${_SCRAM_ITERATIONS}:{parts[0]}${parts[1]}:{parts[2]}"
