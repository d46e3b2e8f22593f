"""Servers that somebody else runs, in place of a stack's private ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, urlsplit

from tenure.cli.exits import SetupError
from tenure.contract.topology import DEFAULT_PREFIX
from tenure.coordinator import broker_inspection
from tenure.coordinator.config import MigrateSettings
from tenure.coordinator.store import migrate
from tenure.coordinator.store.connecting import session
from tenure.coordinator.store.errors import DatabaseRefused
from tenure.coordinator.store.migrate import Applied
from tenure.coordinator.store.roles import existing_roles
from tenure.settings.addresses import BrokerUrl, broker_address
from tenure.settings.process import load

SECRETS: Final = {"coordinator": "coordinator-password", "relay": "relay-password"}
"""Where the state directory keeps the password of a service's role."""


@dataclass(frozen=True)
class GivenServers:
    """``database_url`` is the login that owns, or may make, the schema; ``broker_url`` one that may
    use all names with ``name_prefix``. None: a private server."""

    database_url: str | None = None
    broker_url: str | None = None
    name_prefix: str = DEFAULT_PREFIX


async def prepare_database(
    url: str, secret: Callable[[str], str], say: Callable[[Applied], None]
) -> dict[str, str]:
    """Migrate a given database; returns for each service a URL that it can log in with.

    Roles belong to the whole server, where another installation may use the same: the password of a
    role that exists is never changed, unless the settings of migrations give one.

    Raises SettingsInvalid, SetupError and what ``migrate.up`` raises.
    """
    settings = load(MigrateSettings, {"database_url": url})
    roles = settings.roles()
    names = {"coordinator": roles.coordinator, "relay": roles.relay}
    told = {"coordinator": roles.coordinator_password, "relay": roles.relay_password}
    async with session(url) as connection:
        existing = await existing_roles(connection, tuple(names.values()))
    urls: dict[str, str] = {}
    passwords: dict[str, str | None] = {}
    for service, name in names.items():
        password = told[service] or secret(SECRETS[service])
        urls[service] = with_login(url, name, password)
        known = name in existing and await _lets_in(urls[service])
        if name in existing and not known and told[service] is None:
            raise SetupError(
                f"the role {name} exists on this server, with a password that is not known here.",
                next_step=f"Give its password in TENURE_{service.upper()}_PASSWORD, or name another"
                f" role in TENURE_{service.upper()}_ROLE.",
                code="roles_needed",
            )
        passwords[service] = None if known else password
    await migrate.up(
        url,
        say,
        roles=replace(
            roles,
            coordinator_password=passwords["coordinator"],
            relay_password=passwords["relay"],
        ),
    )
    return urls


async def check_broker(url: str) -> str:
    """The broker's name and version. Raises SetupError for a URL that cannot work, BrokerError."""
    try:
        address = BrokerUrl(url).current()
    except ValueError as error:
        raise SetupError(f"--broker-url: {error}.", code="settings_invalid") from error
    return await broker_inspection.greet(broker_address(address)())


def with_login(url: str, user: str, password: str) -> str:
    """The same server and database with another login."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return parts._replace(netloc=f"{login}@{host}").geturl()


async def _lets_in(url: str) -> bool:
    try:
        async with session(url):
            return True
    except DatabaseRefused:
        return False
