"""``tenure up`` over servers that somebody else runs."""

import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tenure.cli.exits import SetupError
from tenure.cli.local import processes
from tenure.cli.local.given import GivenServers, prepare_database
from tenure.cli.local.stack import ExecutorSpec, Stack
from tenure.client import AsyncClient
from tenure.coordinator.errors import BrokerError
from tenure.coordinator.store import migrate
from tenure.coordinator.store.errors import DatabaseRefused
from tests.support.broker_users import broker_user
from tests.support.echo import Echo, Text
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.services import BrokerServer
from tests.support.sessions import session

pytestmark = [pytest.mark.timeout(300), pytest.mark.direct("migrations need a direct connection")]


@pytest.fixture
async def role_names(
    empty_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, str]]:
    """Roles of the test's own, since roles belong to the whole server; dropped at the end."""
    suffix = secrets.token_hex(4)
    names = {service: f"up_{service}_{suffix}" for service in ("coordinator", "relay")}
    for service, name in names.items():
        monkeypatch.setenv(f"TENURE_{service.upper()}_ROLE", name)
    yield names
    async with session(empty_database.admin_url) as admin:
        for name in names.values():
            if await admin.fetchval("select true from pg_roles where rolname = $1", name):
                await admin.execute(f"drop owned by {name}; drop role {name}")


class Secrets:
    """Made once each, as a state directory does."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self._made.setdefault(name, secrets.token_hex(8))


async def lets_in(url: str) -> bool:
    try:
        (await migrate.status(url)).check()
    except DatabaseRefused:
        return False
    return True


async def test_roles_are_made_once_and_found_again(
    empty_database: FreshDatabase, role_names: dict[str, str]
) -> None:
    secret, applied = Secrets(), list[migrate.Applied]()
    urls = await prepare_database(empty_database.owner_url, secret, applied.append)
    assert applied
    assert [name in urls[service] for service, name in role_names.items()] == [True, True]
    assert await lets_in(urls["coordinator"])
    assert await lets_in(urls["relay"])
    again = await prepare_database(empty_database.owner_url, secret, applied.append)
    assert again == urls


async def test_the_password_of_a_role_that_exists_is_not_changed(
    empty_database: FreshDatabase, role_names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another installation on the same server may use it."""
    theirs = await prepare_database(empty_database.owner_url, Secrets(), lambda _: None)
    with pytest.raises(SetupError) as caught:
        await prepare_database(empty_database.owner_url, Secrets(), lambda _: None)
    assert caught.value.code == "roles_needed"
    assert "TENURE_COORDINATOR_PASSWORD" in caught.value.next_step
    assert await lets_in(theirs["coordinator"])
    for service in role_names:
        monkeypatch.setenv(
            f"TENURE_{service.upper()}_PASSWORD", urlsplit(theirs[service]).password or ""
        )
    assert await prepare_database(empty_database.owner_url, Secrets(), lambda _: None) == theirs


async def test_a_stack_over_given_servers_carries_tasks_through(
    empty_database: FreshDatabase,
    broker: BrokerSpace,
    broker_server: BrokerServer,
    role_names: dict[str, str],
    tmp_path: Path,
) -> None:
    """With a broker user limited to the prefix, and an owner who is no superuser."""
    own = f"^{broker.name_prefix}\\."
    said: list[str] = []
    async with (
        broker_user(
            broker_server, broker, configure=own, write=f"{own}|^amq\\.default$", read=own
        ) as user,
        up(
            tmp_path / "stack",
            GivenServers(empty_database.owner_url, user.url, broker.name_prefix),
            said,
        ) as stack,
    ):
        assert not stack.postgres.running
        assert not stack.rabbitmq.running
        content = json.loads((tmp_path / "stack" / "connection.json").read_text())
        assert content["database_url"] == empty_database.owner_url
        assert content["name_prefix"] == broker.name_prefix
        connection = stack.connection()
        async with AsyncClient(connection.url, connection.tokens["application"]) as client:
            task = await client.submit(Echo, Text(text="hello"))
            assert await task.result(timeout=60) == Text(text="hello")
        code, report = await processes.run(
            [sys.executable, "-m", "tenure.cli", "doctor", "-o", "json"],
            environment={"PATH": os.environ["PATH"], "TENURE_STATE_DIR": str(stack.directory)},
            directory=tmp_path,
        )
        assert code == 0, report
        verdicts = {one["check"]: one["verdict"] for one in json.loads(report)}
        assert {verdicts[check] for check in ("rights", "topology", "executor token")} == {"ok"}
    assert not [line for line in said if "********" not in line and user.url in line]
    assert any("using the broker" in line and "********" in line for line in said)


async def test_a_given_broker_that_is_away_is_said_before_anything_starts(
    empty_database: FreshDatabase, role_names: dict[str, str], tmp_path: Path
) -> None:
    away = GivenServers(empty_database.owner_url, "amqp://a:geheim@127.0.0.1:1/x")
    said: list[str] = []
    with pytest.raises(BrokerError):
        async with up(tmp_path / "stack", away, said):
            raise AssertionError("it started")
    assert not any("starting coordinator" in line for line in said)
    wrong = GivenServers(empty_database.owner_url, "http://a:geheim@127.0.0.1:1/x")
    with pytest.raises(SetupError, match="--broker-url: write amqp://"):
        async with up(tmp_path / "stack", wrong, said):
            raise AssertionError("it started")
    assert not any("geheim" in line for line in said)


@asynccontextmanager
async def up(directory: Path, servers: GivenServers, said: list[str]) -> AsyncIterator[Stack]:
    """A started stack for the length of a block."""
    spec = ExecutorSpec("echo", "tests.support.echo:app", slots=1)
    stack = Stack(directory, [spec], say=lambda _, words: said.append(words), given=servers)
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()
