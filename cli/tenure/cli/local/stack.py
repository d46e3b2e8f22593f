"""A whole local stack in one folder: PostgreSQL, RabbitMQ, a coordinator, a relay, executors.

Given servers take the place of the private ones.

Layout of the state directory (nothing in it is readable by other accounts):

    connection.json   addresses and tokens, found by the command; there while the stack runs
    postgres/  rabbitmq/   the private servers with their data and logs
    logs/             one file for each process of Tenure
    lock, server.json, secrets   see ``tenure.cli.local.state``
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tenure.cli.connection import CONNECTION_FILE, STATE_DIRECTORY_VARIABLE
from tenure.cli.local.accounts import choose_account
from tenure.cli.local.given import (
    SECRETS,
    GivenServers,
    check_broker,
    prepare_database,
    with_login,
)
from tenure.cli.local.ports import LOOPBACK, PortReservation, reserve_port
from tenure.cli.local.postgres import PrivatePostgres
from tenure.cli.local.programs import Program, ProgramSpec
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.cli.local.state import StateDirectory
from tenure.cli.local.supervisor import LONGEST_PAUSE_SECONDS, Supervisor
from tenure.cli.together import together
from tenure.coordinator.store import migrate
from tenure.coordinator.store.roles import Roles
from tenure.settings.addresses import masked

DATABASE: Final = "tenure"
ROLES: Final = ("application", "executor", "operator", "read_only")
READY_SECONDS: Final = 60.0
DRAIN_VARIABLE: Final = "TENURE_DRAIN_SECONDS"
DRAIN_MARGIN_SECONDS: Final = 15.0
"""On top of an executor's own limit, so that it ends by itself."""
SERVICE_DRAIN_SECONDS: Final = 15.0
SERVER_STOP_SECONDS: Final = 40.0


@dataclass(frozen=True)
class ExecutorSpec:
    """``application`` is ``module:app``. ``environment`` gives what its handlers need besides, and
    settings to go before the stack's; it is asked once the servers run and what ``prepare`` makes
    is there."""

    name: str
    application: str
    slots: int
    environment: Callable[[], Mapping[str, str]] = dict


@dataclass(frozen=True)
class Connection:
    """Where the stack is, and the tokens to show it, by role."""

    url: str
    broker_url: str
    database_url: str
    name_prefix: str
    tokens: Mapping[str, str]


class Stack:
    """Start it once, stop it once. One process at a time may use a state directory.

    ``say(name, words)`` tells people what happens; ``on_log(name, path)`` is called for each
    process before it starts. ``prepare`` runs when the servers are there and nothing else is; the
    addresses of everything are known by then. What died is started again after pauses that grow to
    ``longest_pause_seconds``.
    ``coordinator_settings`` are variables of the coordinator's environment besides the usual ones.
    ``given``: servers to use instead of private ones.
    """

    def __init__(
        self,
        state_directory: Path,
        executors: Sequence[ExecutorSpec] = (),
        *,
        say: Callable[[str, str], None],
        on_log: Callable[[str, Path], None] = lambda name, path: None,
        prepare: Callable[[], Coroutine[Any, Any, None]] | None = None,
        coordinator_settings: Mapping[str, str] | None = None,
        given: GivenServers | None = None,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._state = StateDirectory(state_directory)
        self.directory = self._state.path
        self.logs = self.directory / "logs"
        self.postgres = PrivatePostgres(self.directory / "postgres")
        self.rabbitmq = PrivateRabbitmq(self.directory / "rabbitmq")
        self._given = given or GivenServers()
        self._logins: dict[str, str] = {}
        self._executors = tuple(executors)
        self._say = say
        self._on_log = on_log
        self._prepare = prepare
        self._coordinator_settings = dict(coordinator_settings or {})
        self._supervisor = Supervisor(say, longest_pause_seconds)
        self._ports: dict[str, PortReservation] = {}
        self._services: list[Program] = []
        self._working: list[Program] = []
        self._connection_file: Path | None = None

    @property
    def processes(self) -> Mapping[str, Program]:
        """The processes of Tenure by name: coordinator, relay, and the executors."""
        return {program.name: program for program in (*self._services, *self._working)}

    @property
    def deaths(self) -> Mapping[str, int]:
        """How often a server or process ended that nobody here had ended, by name."""
        return self._supervisor.deaths

    def connection(self) -> Connection:
        """Addresses and tokens of the started stack."""
        return Connection(
            url=f"http://{self._address('coordinator')}",
            broker_url=self._broker_url(),
            database_url=self._given.database_url or self.postgres.url(DATABASE),
            name_prefix=self._given.name_prefix,
            tokens={role: self._token(role) for role in ROLES},
        )

    async def start(self) -> None:
        """Start everything; returns once every process serves.

        On any error, and when cancelled, the caller must still call ``stop``.

        Raises TenureError: ``tenure.cli.local.errors`` and ``tenure.coordinator.store.errors``.
        """
        self._state.acquire()
        if choose_account().is_another:
            # PostgreSQL's account passes through to its own folder; the rest stays unreadable.
            self.directory.chmod(0o711)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        await together(self._database(), self._broker())
        self._reserve_ports()
        if self._prepare is not None:
            await self._prepare()
        self._write_connection()
        coordinator, relay = self._coordinator(), self._relay()
        self._services = [coordinator, relay]
        self._working = [self._executor(spec) for spec in self._executors]
        # The coordinator makes what the others would look for in vain, and complain about.
        await self._start(coordinator)
        await together(*(self._start(program) for program in (relay, *self._working)))

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """End everything that runs: executors, coordinator, relay, then the servers.

        Once ``hurry`` is set, what is left gets seconds instead of its full time.
        """
        hurry = hurry or asyncio.Event()
        if self._connection_file is not None:
            self._connection_file.unlink(missing_ok=True)
        if self._working:
            self._say("stack", "draining executors")
            await self._stop_all(self._working, hurry)
        for program in self._services:
            self._say("stack", f"stopping {program.name}")
            await self._stop_all([program], hurry)
        for name, server in (("rabbitmq", self.rabbitmq), ("postgres", self.postgres)):
            await self._supervisor.let_go(name)
            if server.running and not hurry.is_set():
                self._say("stack", f"stopping {name}")
                await _unless(server.stop(), hurry, SERVER_STOP_SECONDS)
            server.kill()
            await server.stop()  # gives ports and folder back
        for reservation in self._ports.values():
            reservation.release()
        self._ports.clear()
        self._state.release()

    async def _stop_all(self, programs: Sequence[Program], hurry: asyncio.Event) -> None:
        for program in programs:
            await self._supervisor.let_go(program.name)
        await asyncio.gather(*(program.stop(hurry) for program in programs))

    async def _database(self) -> None:
        url = self._given.database_url
        if url is None:
            await self._start_postgres()
            return
        self._say("stack", f"using the database {masked(url)}")
        self._logins = await prepare_database(url, self._state.secret, self._migrated)

    async def _broker(self) -> None:
        url = self._given.broker_url
        if url is None:
            await self._start_rabbitmq()
            return
        self._say("stack", f"using the broker {masked(url)}: {await check_broker(url)}")

    def _migrated(self, applied: migrate.Applied) -> None:
        self._say("stack", f"migrated to {applied.version:04}_{applied.name}")

    async def _start_postgres(self) -> None:
        self._say("stack", "starting postgres")
        await self.postgres.start()
        self._supervisor.keep("postgres", self.postgres)
        await self.postgres.ensure_database(DATABASE)
        passwords = {service: self._state.secret(name) for service, name in SECRETS.items()}
        roles = Roles(
            coordinator_password=passwords["coordinator"], relay_password=passwords["relay"]
        )
        url = self.postgres.url(DATABASE)
        await migrate.up(url, self._migrated, roles=roles)
        self._logins = {
            "coordinator": with_login(url, roles.coordinator, passwords["coordinator"]),
            "relay": with_login(url, roles.relay, passwords["relay"]),
        }

    async def _start_rabbitmq(self) -> None:
        self._say("stack", "starting rabbitmq")
        await self.rabbitmq.start()
        self._supervisor.keep("rabbitmq", self.rabbitmq)

    async def _start(self, program: Program) -> None:
        self._on_log(program.name, program.spec.log)
        self._say("stack", f"starting {program.name}")
        await program.start()
        await program.ready(within_seconds=READY_SECONDS)
        self._supervisor.keep(program.name, program, lambda: program.status)

    def _reserve_ports(self) -> None:
        remembered = self._state.remembered_ports()
        for name in ("coordinator", "relay", *(spec.name for spec in self._executors)):
            self._ports[name] = reserve_port(remembered.get(name))
        now = {name: reservation.port for name, reservation in self._ports.items()}
        self._state.remember_ports(remembered | now)

    def _address(self, name: str) -> str:
        return f"{LOOPBACK}:{self._ports[name].port}"

    def _token(self, role: str) -> str:
        return self._state.secret(f"{role}-token")

    def _write_connection(self) -> None:
        connection = self.connection()
        content = {
            "url": connection.url,
            "broker_url": connection.broker_url,
            "database_url": connection.database_url,
            "name_prefix": connection.name_prefix,
            "tokens": dict(connection.tokens),
        }
        self._connection_file = self.directory / CONNECTION_FILE
        self._state.write(self._connection_file, json.dumps(content, indent=2))

    def _broker_url(self) -> str:
        return self._given.broker_url or self.rabbitmq.url()

    def _coordinator(self) -> Program:
        tokens = [
            {"name": role, "token": self._token(role), "tenant": "default", "role": role}
            for role in ROLES
        ]
        return self._program(
            "coordinator",
            ("coordinator",),
            {
                **self._coordinator_settings,
                "TENURE_DATABASE_URL": self._logins["coordinator"],
                "TENURE_BROKER_URL": self._broker_url(),
                "TENURE_NAME_PREFIX": self._given.name_prefix,
                "TENURE_LISTEN": self._address("coordinator"),
                "TENURE_TOKENS": json.dumps(tokens),
            },
            SERVICE_DRAIN_SECONDS,
        )

    def _relay(self) -> Program:
        return self._program(
            "relay",
            ("relay",),
            {
                "TENURE_DATABASE_URL": self._logins["relay"],
                "TENURE_BROKER_URL": self._broker_url(),
                "TENURE_NAME_PREFIX": self._given.name_prefix,
                "TENURE_RELAY_LISTEN": self._address("relay"),
            },
            SERVICE_DRAIN_SECONDS,
        )

    def _executor(self, spec: ExecutorSpec) -> Program:
        # Executors get no login of the database (OPS-07).
        return self._program(
            spec.name,
            ("executor", spec.application, "--slots", str(spec.slots), "--node", spec.name),
            {
                "TENURE_URL": f"http://{self._address('coordinator')}",
                "TENURE_TOKEN": self._token("executor"),
                "TENURE_BROKER_URL": self._broker_url(),
                "TENURE_EXECUTOR_LISTEN": self._address(spec.name),
                "TENURE_STATE_DIR": str(self.directory / spec.name),
                **spec.environment(),
            },
            _drain_seconds() + DRAIN_MARGIN_SECONDS,
        )

    def _program(
        self,
        name: str,
        words: Sequence[str],
        settings: Mapping[str, str],
        drain_seconds: float,
    ) -> Program:
        return Program(
            ProgramSpec(
                name=name,
                command=(sys.executable, "-m", "tenure.cli", *words),
                environment={**inherited_environment(), **settings},
                directory=Path.cwd(),
                log=self.logs / f"{name}.log",
                ready_url=f"http://{self._address(name)}/readyz",
                drain_seconds=drain_seconds,
            )
        )


_OURS: Final = frozenset(
    {
        "TENURE_DATABASE_URL",
        "TENURE_BROKER_URL",
        "TENURE_TOKENS",
        "TENURE_TOKEN",
        "TENURE_URL",
        "TENURE_LISTEN",
        "TENURE_RELAY_LISTEN",
        "TENURE_EXECUTOR_LISTEN",
        "TENURE_NAME_PREFIX",
        "TENURE_CONFIG",
        "TENURE_COORDINATOR_PASSWORD",
        "TENURE_RELAY_PASSWORD",
        STATE_DIRECTORY_VARIABLE,
    }
)


def inherited_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What children get of our environment: everything but the settings that the stack makes, so
    that an address of another installation never reaches them."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _OURS and name.removesuffix("_FILE") not in _OURS
    }
    # They write into files, which people read as text and see followed on their terminal.
    kept.setdefault("TENURE_LOG_FORMAT", "console")
    kept["PYTHONUNBUFFERED"] = "1"
    return kept


def _drain_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How long an executor may take to drain: its own setting, which says what is wrong with it."""
    try:
        return float(environment.get(DRAIN_VARIABLE) or 30.0)
    except ValueError:
        return 30.0


async def _unless(
    work: Coroutine[Any, Any, None], hurry: asyncio.Event, within_seconds: float
) -> None:
    """Run until done, until ``hurry`` is set, or until the time is over."""
    working = asyncio.create_task(work)
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait(
        {working, hurrying}, timeout=within_seconds, return_when=asyncio.FIRST_COMPLETED
    )
    hurrying.cancel()
    if not working.done():
        working.cancel()
    await asyncio.gather(working, hurrying, return_exceptions=True)
