"""The pytest plugin: ``tenure_fleet``, in memory or on real servers, and histories with failures.

It is loaded in every run of pytest where Tenure is installed, so it imports nothing of Tenure until
a test asks for the fixture.
"""

import asyncio
import inspect
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from tenure.cli.testing.servers import Servers
    from tenure.executor import Executor
    from tenure.executor.testing import Fleet, MakeFleet

SERVERS_VARIABLE: Final = "TENURE_TEST_SERVERS"
CHOICES: Final = ("memory", "local")
FIXTURE: Final = "tenure_fleet"
_MADE: Final = pytest.StashKey["list[Fleet]"]()
_SERVERS: Final = pytest.StashKey["Servers"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--tenure-servers``."""
    parser.getgroup("tenure").addoption(
        "--tenure-servers",
        choices=CHOICES,
        default=None,
        help="what the fixture tenure_fleet runs on: memory (no servers, the default), or local (a"
        f" private PostgreSQL and RabbitMQ). {SERVERS_VARIABLE} says the same.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Say at once what is wrong with the choice."""
    chosen(config)


def chosen(config: pytest.Config) -> str:
    """What fleets run on. Raises pytest.UsageError for a variable that says something else."""
    asked = config.getoption("--tenure-servers") or os.environ.get(SERVERS_VARIABLE) or CHOICES[0]
    if asked not in CHOICES:
        raise pytest.UsageError(f"{SERVERS_VARIABLE}={asked} is none of {', '.join(CHOICES)}.")
    return str(asked)


def _servers(config: pytest.Config) -> "Servers":
    """Those of this run. They start when the first fleet asks for them."""
    if _SERVERS not in config.stash:
        from tenure.cli.testing.servers import Servers

        servers = config.stash[_SERVERS] = Servers()
        config.add_cleanup(servers.stop)
    return config.stash[_SERVERS]


@pytest.fixture
def tenure_fleet(request: pytest.FixtureRequest) -> Iterator["MakeFleet"]:
    """Makes fleets: ``async with tenure_fleet(app) as fleet``."""
    from tenure.executor.testing import MemoryFleet
    from tenure.executor.testing.fleet import OPENED_BY_THE_LIFESPAN

    made = request.node.stash.setdefault(_MADE, [])
    servers = _servers(request.config) if chosen(request.config) == "local" else None

    def make(
        app: "Executor",
        *,
        nodes: int = 2,
        slots: int = 4,
        lease_seconds: float | None = None,
        resources: Any = OPENED_BY_THE_LIFESPAN,
        patience_seconds: float | None = None,
    ) -> "Fleet":
        options: dict[str, Any] = {
            "nodes": nodes,
            "slots": slots,
            "lease_seconds": lease_seconds,
            "resources": resources,
            "patience_seconds": patience_seconds,
        }
        fleet: Fleet
        if servers is None:
            fleet = MemoryFleet(app, **options)
        else:
            from tenure.cli.testing.fleet import ServerFleet

            fleet = ServerFleet(app, servers, **options)
        made.append(fleet)
        return fleet

    with _plain_logs():
        yield make


@contextmanager
def _plain_logs() -> Iterator[None]:
    """Logs as processes have them, without the values of each frame, which would bury the failure.
    Where the project has configured them, they stay as they are."""
    import structlog

    if structlog.is_configured():
        yield
        return
    renderer = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])
    try:
        yield
    finally:
        structlog.reset_defaults()


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine that uses the fixture, where no other plugin has taken it."""
    function = pyfuncitem.obj
    if FIXTURE not in pyfuncitem.fixturenames or not inspect.iscoroutinefunction(function):
        return None
    names = inspect.signature(function).parameters
    values = {name: value for name, value in pyfuncitem.funcargs.items() if name in names}
    asyncio.run(function(**values))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test shows the history of its tasks."""
    report = yield
    if report.failed:
        for fleet in item.stash.get(_MADE, []):
            report.sections.append(("Tenure: the tasks of this test", fleet.tell()))
    return report
