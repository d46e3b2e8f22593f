"""Fixtures of all tests: servers, databases and broker namespaces (see tests/support/services.py).

Servers start when the first test asks for them, so unit tests stay quick.
"""

import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from tenure.cli.local.postgres import PrivatePostgres
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tests.support import conformance, documents, services
from tests.support.isolation import (
    BrokerSpace,
    DatabaseServer,
    FreshDatabase,
    empty_state,
    fresh_space,
)
from tests.support.pgbouncer import Pooler, pgbouncer, route
from tests.support.s3 import S3Server, s3_server

_DATABASES = frozenset({"database", "module_database", "pooled_database"})
"""Fixtures with logins of services."""

# How long an example takes says how busy the machine is. The same examples each time, so that a
# change is judged by what it changes; --hypothesis-profile=searching looks for new ones.
_UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
hypothesis_settings.register_profile("repeatable", derandomize=True, **_UNTIMED)
hypothesis_settings.register_profile("searching", **_UNTIMED)
hypothesis_settings.load_profile("repeatable")

# A shell's background job ignores SIGINT, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What servers in this process log comes between what a command prints, unless it goes elsewhere.
structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))

CHOSEN = pytest.StashKey[tuple[services.Backend, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CHOSEN] = services.choose_backend()
    if services.POOLED:
        os.environ["TENURE_POOLED"] = "true"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--conformance",
        action="store_true",
        help="print how the tests of each requirement ended, and write docs/requirements.md",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        marks = item.iter_markers("requirement")
        item.user_properties += [("requirement", mark.args[0]) for mark in marks]
    if not services.POOLED:
        return
    through = [
        item
        for item in items
        if not item.get_closest_marker("direct")
        and _DATABASES & set(getattr(item, "fixturenames", ()))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in through])
    items[:] = through


def pytest_report_header(config: pytest.Config) -> list[str]:
    backend, reason = config.stash[CHOSEN]
    pooled = ", services through PgBouncer in transaction mode" if services.POOLED else ""
    return [f"services: {backend} ({reason}){pooled}", documents.summary()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have to tell of what they covered."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "told":
                terminalreporter.write_line(str(value))
    if terminalreporter.config.getoption("--conformance"):
        conformance.conclude(terminalreporter)


@pytest.fixture(scope="session")
def backend(pytestconfig: pytest.Config) -> services.Backend:
    """Where PostgreSQL and RabbitMQ come from in this run."""
    return pytestconfig.stash[CHOSEN][0]


@pytest.fixture(scope="session")
def server_directory() -> Iterator[Path]:
    """A short folder for the state of private servers, removed at the end of the run."""
    with services.session_directory() as path:
        yield path


@pytest.fixture(scope="session")
async def database_server(
    backend: services.Backend, server_directory: Path
) -> AsyncIterator[DatabaseServer]:
    """This run's PostgreSQL. Do not stop it: take ``private_postgres`` for that."""
    async with services.database_server(backend, server_directory) as url:
        server = DatabaseServer(url)
        await server.prepare()
        if not services.POOLED:
            yield server
            return
        async with pgbouncer(server_directory, url, server.logins()) as pooler:
            route(url, pooler)
            yield server
            route(url, None)


@pytest.fixture(scope="session")
async def pooler(database_server: DatabaseServer, server_directory: Path) -> AsyncIterator[Pooler]:
    """A PgBouncer in transaction mode before this run's PostgreSQL."""
    logins = database_server.logins()
    async with pgbouncer(server_directory, database_server.url, logins) as started:
        yield started


@pytest.fixture
def pooled_database(database: FreshDatabase, pooler: Pooler) -> FreshDatabase:
    """A migrated database whose services' logins go through a PgBouncer in transaction mode."""
    return database.through(pooler)


@pytest.fixture(scope="session")
async def database_template(database_server: DatabaseServer) -> AsyncIterator[str]:
    """The name of a migrated database that nobody connects to: copying it takes milliseconds."""
    template = await database_server.create_migrated(f"test_template_{secrets.token_hex(4)}")
    yield template.name
    await database_server.drop(template.name)


@pytest.fixture(scope="session")
async def broker_server(
    backend: services.Backend, server_directory: Path
) -> AsyncIterator[services.BrokerServer]:
    """This run's RabbitMQ. Do not stop it: take ``private_rabbitmq`` for that."""
    async with services.broker_server(backend, server_directory) as server:
        yield server


@pytest.fixture(scope="session")
async def object_server(server_directory: Path) -> AsyncIterator[S3Server]:
    """This run's S3 server."""
    async with s3_server(server_directory) as server:
        yield server


@pytest.fixture
async def database(
    database_server: DatabaseServer, database_template: str
) -> AsyncIterator[FreshDatabase]:
    """A migrated database that no other test sees."""
    async with database_server.fresh(template=database_template) as database:
        yield database


@pytest.fixture(scope="module")
async def module_database(
    database_server: DatabaseServer, database_template: str
) -> AsyncIterator[FreshDatabase]:
    """A migrated database that the tests of a module share: take ``emptied_database``."""
    async with database_server.fresh(template=database_template) as database:
        yield database


@pytest.fixture
async def emptied_database(module_database: FreshDatabase) -> FreshDatabase:
    """A migrated database without tasks and nodes, in a tenth of the time of a new one.

    For tests that change neither the schema nor the authority's own row.
    """
    await empty_state(module_database)
    return module_database


@pytest.fixture
async def empty_database(database_server: DatabaseServer) -> AsyncIterator[FreshDatabase]:
    """A database with nothing in it, not even the schema."""
    async with database_server.fresh() as database:
        yield database


@pytest.fixture
async def broker(broker_server: services.BrokerServer) -> AsyncIterator[BrokerSpace]:
    """A namespace on the broker that no other test sees."""
    async with fresh_space(broker_server) as space:
        yield space


@pytest.fixture
async def private_postgres(server_directory: Path) -> AsyncIterator[PrivatePostgres]:
    """A started PostgreSQL of the test's own, to be killed, stopped and restarted at will."""
    async with services.local_postgres(server_directory) as server:
        yield server


@pytest.fixture
async def private_rabbitmq(server_directory: Path) -> AsyncIterator[PrivateRabbitmq]:
    """A started RabbitMQ of the test's own, to be killed, stopped and restarted at will."""
    async with services.local_rabbitmq(server_directory) as server:
        yield server
