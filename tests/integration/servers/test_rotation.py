"""Passwords and tokens are replaced while everything runs."""

import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.settings.secrets import SecretFile
from tests.support.broker_users import broker_user
from tests.support.chain import carry_through
from tests.support.coordinator import TOKENS, Caller, Fleet, running, settings_for
from tests.support.isolation import BrokerSpace, FreshDatabase, with_login
from tests.support.relays import relaying
from tests.support.services import BrokerServer
from tests.support.sessions import session
from tests.support.waiting import eventually

pytestmark = pytest.mark.direct("the pooler has passwords of its own")


class DatabaseLogin:
    """A login with the rights of a service, and the file that holds its URL."""

    def __init__(self, database: FreshDatabase, service_url: str, service: str, file: Path) -> None:
        self._database = database
        self._service_url = service_url
        self._service = service
        self.name = f"rotated_{secrets.token_hex(4)}"
        self.file = file

    async def create(self) -> None:
        """Make it."""
        password = secrets.token_hex(8)
        async with session(self._database.admin_url) as admin:
            await admin.execute(
                f"create role {self.name} login password '{password}' in role {self._service}"
            )
        self._write(password)

    async def rotate(self) -> None:
        """Another password; the file says so, and nobody who knew the old one stays."""
        password = secrets.token_hex(8)
        async with session(self._database.admin_url) as admin:
            await admin.execute(f"alter role {self.name} password '{password}'")
            self._write(password)
            ended = await admin.fetchval(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = $1",
                self.name,
            )
            assert ended > 0

    async def drop(self) -> None:
        """Remove it; its sessions are over."""
        async with session(self._database.admin_url) as admin:
            await admin.execute(f"drop role {self.name}")

    def _write(self, password: str) -> None:
        self.file.write_text(with_login(self._service_url, self.name, password) + "\n")


@pytest.fixture
async def logins(
    database: FreshDatabase, tmp_path: Path
) -> AsyncIterator[dict[str, DatabaseLogin]]:
    made = {
        "coordinator": DatabaseLogin(
            database, database.coordinator_url, "tenure_coordinator", tmp_path / "coordinator"
        ),
        "relay": DatabaseLogin(database, database.relay_url, "tenure_relay", tmp_path / "relay"),
    }
    for login in made.values():
        await login.create()
    yield made
    for login in made.values():
        await login.drop()


async def test_passwords_of_both_servers_are_replaced_while_everything_runs(
    database: FreshDatabase,
    broker: BrokerSpace,
    broker_server: BrokerServer,
    logins: dict[str, DatabaseLogin],
    tmp_path: Path,
) -> None:
    broker_file = tmp_path / "broker"
    async with broker_user(broker_server, broker) as user:
        broker_file.write_text(user.url)
        settings = settings_for(
            database_url=SecretFile(logins["coordinator"].file),
            broker_url=SecretFile(broker_file),
            name_prefix=broker.name_prefix,
        )
        async with (
            running(settings) as coordinator,
            relaying(
                SecretFile(logins["relay"].file), SecretFile(broker_file), broker.name_prefix
            ) as relay,
        ):
            api = Fleet(coordinator)

            async def ready() -> bool:
                return (await api.nobody.get("/readyz")).status_code == 200

            await eventually(ready)
            await carry_through(api, broker.url)

            for login in logins.values():
                await login.rotate()
            await user.set_password("another")
            broker_file.write_text(with_login(broker.url, user.name, "another"))
            await user.disconnect()

            await eventually(lambda: relay.relay.not_ready == "")
            await carry_through(api, broker.url)
            await eventually(ready)
            await api.close()


async def test_tokens_are_replaced_while_the_coordinator_runs(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_text(json.dumps(TOKENS))
    settings = settings_for(database.coordinator_url, broker.url, tokens=SecretFile(file))
    async with running(settings) as coordinator:
        old = Caller(coordinator.url, str(TOKENS[0]["token"]))
        new = Caller(coordinator.url, "a-token-made-later")

        async def lets_in(caller: Caller) -> bool:
            return (await caller.get("/v1/nodes")).status_code != 401

        assert await lets_in(old)
        assert not await lets_in(new)
        file.write_text(json.dumps([TOKENS[0] | {"token": "a-token-made-later"}]))
        assert await lets_in(new)

        async def old_is_forgotten() -> bool:
            return not await lets_in(old)

        await eventually(old_is_forgotten)
        await old.http.aclose()
        await new.http.aclose()
