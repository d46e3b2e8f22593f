"""A private PostgreSQL server: a folder, a loopback port, a password; ended with its parent."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import asyncpg

from tenure.cli.local import processes
from tenure.cli.local.accounts import ServerAccount, choose_account, hand_over
from tenure.cli.local.binaries import PostgresBinaries, base_environment, find_postgres
from tenure.cli.local.errors import (
    LocalPortTakenError,
    LocalServerFailedError,
    LocalServerNotReadyError,
    LocalServerNotRunningError,
    LocalServerVersionError,
    LocalStateUnusableError,
)
from tenure.cli.local.ports import (
    LOOPBACK,
    PortReservation,
    port_is_free,
    reserve_exactly,
    reserve_port,
)
from tenure.cli.local.state import StateDirectory

_USER = "postgres"
_START_ATTEMPTS = 10
_STOP_SECONDS = 30.0
_BUILTIN_LOCALE_SINCE = 17


class PrivatePostgres:
    """PostgreSQL in a folder of ours.

    The folder is made at the first start and found again at the next: data, password and port
    stay the same. A remembered port that somebody else has taken meanwhile is replaced by another
    one; a port asked for in ``port`` is not.

    ``settings`` are server settings (``{"fsync": "off"}``) for this and every later start by this
    object. ``environment`` goes to the server on top of a minimal one. ``major`` asks for that
    major version; without it any version the coordinator can use is taken. One process at a time
    may use a folder.

    Start it from the main thread, so that the server ends with this process even when that is
    killed.
    """

    def __init__(
        self,
        state_directory: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        major: int | None = None,
        environment: Mapping[str, str] | None = None,
        account: ServerAccount | None = None,
        ready_timeout_seconds: float = 60.0,
    ) -> None:
        self._state = StateDirectory(state_directory)
        self.directory = self._state.path
        self._asked_port = port
        self._settings = dict(settings or {})
        self._major = major
        self._environment = {**base_environment("C"), **(environment or {})}
        self._account = account
        self._ready_timeout_seconds = ready_timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._killed_workers: list[int] = []
        self._port: PortReservation | None = None
        # The cluster folder is the account's, who may be another than ours; the rest stays ours.
        self._cluster = self.directory / "cluster"
        self.data_directory = self._cluster / "data"
        self.log = self.directory / "postgres.log"

    @property
    def running(self) -> bool:
        """True while the server process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's pid. Raises LocalServerNotRunningError."""
        if self._process is None or self._process.poll() is not None:
            raise LocalServerNotRunningError(
                f"The PostgreSQL server in {self.directory} is not running.",
                advice="Start it first.",
            )
        return self._process.pid

    @property
    def port(self) -> int:
        """The loopback port, also while the server is down between ``start`` and ``stop``."""
        if self._port is None:
            raise LocalServerNotRunningError(
                f"The PostgreSQL server in {self.directory} has no port yet.",
                advice="Start it first.",
            )
        return self._port.port

    def url(self, database: str = "postgres") -> str:
        """The superuser's connection URL, with the password in it."""
        address = f"{LOOPBACK}:{self.port}"
        password = quote(self._state.secret("password"), safe="")
        return f"postgresql://{_USER}:{password}@{address}/{quote(database, safe='')}"

    async def start(self) -> None:
        """Start the server and return once it has accepted a login. Does nothing when it runs.

        Raises LocalServerError: see tenure.cli.local.errors for its kinds.
        """
        if self.running:
            return
        self._state.acquire()
        try:
            self._process = None
            account = self._account or choose_account()
            binaries = await self._fit_binaries()
            binaries = await self._reachable(binaries, account)
            await self._end_leftover()
            await self._initialise(binaries, account)
            await self._launch(binaries, account)
        except BaseException:
            self.kill()
            self._let_go()
            raise

    async def stop(self) -> None:
        """Shut down cleanly: connections are ended, everything is written. Twice is harmless."""
        await self._shut_down()
        self._let_go()

    async def _shut_down(self) -> None:
        if self._process is not None:
            for which, seconds in (
                (signal.SIGINT, _STOP_SECONDS),  # fast shutdown
                (signal.SIGQUIT, 5.0),  # immediate shutdown, recovery at the next start
            ):
                if self._process.poll() is None:
                    processes.send(self._process.pid, which)
                if await processes.ended(self._process, within_seconds=seconds):
                    break
            self.kill()

    def kill(self) -> None:
        """End all server processes at once, as a crash does. The port stays ours for a restart."""
        if self._process is None:
            return
        if self._process.poll() is None:
            workers = processes.children_of(self._process.pid)
            self._process.kill()
            for pid in workers:
                processes.send(pid, signal.SIGKILL)
            self._killed_workers = workers
        self._process.wait()
        self._process = None

    async def restart(self) -> None:
        """Stop cleanly and start again on the same port."""
        await self._shut_down()
        await self.start()

    async def end_abandoned(self) -> None:
        """End a server whose owner was killed, if there is one.

        Raises LocalStateInUseError when the owner lives.
        """
        self._state.acquire()
        try:
            await self._end_leftover()
        finally:
            self._state.release()

    async def ensure_database(self, name: str) -> None:
        """Create a database unless it exists."""
        await ensure_database(self.url(), name)

    def _let_go(self) -> None:
        if self._port is not None:
            self._port.release()
            self._port = None
        self._state.release()

    async def _fit_binaries(self) -> PostgresBinaries:
        """Binaries of the version that wrote the data, where there are data."""
        try:
            stored = int((self.data_directory / "PG_VERSION").read_text())
        except FileNotFoundError:
            return await find_postgres(self._major)
        if self._major not in (None, stored):
            raise LocalServerVersionError(
                f"The data in {self.data_directory} are of PostgreSQL {stored}, not {self._major}.",
                advice="Name another state directory.",
            )
        try:
            return await find_postgres(stored)
        except LocalServerVersionError as error:
            raise LocalServerVersionError(
                f"The data in {self.data_directory} are of PostgreSQL {stored}. {error.message}",
                advice=f"Install PostgreSQL {stored}, or name another state directory.",
            ) from error

    async def _reachable(
        self, binaries: PostgresBinaries, account: ServerAccount
    ) -> PostgresBinaries:
        """Binaries that the account may execute: a copy in our folder where it must be."""
        if not account.is_another:
            return binaries
        # The account has to pass through our folder; what else lies in it stays unreadable.
        self.directory.chmod(0o711)
        if await self._can_run(binaries.directory, account):
            return binaries
        copy = self.directory / f"postgresql-{binaries.major}"
        if not copy.exists():
            part = copy.with_name(copy.name + ".new")
            shutil.rmtree(part, ignore_errors=True)
            for name in binaries.parts:
                if (binaries.root / name).is_dir():
                    await asyncio.to_thread(
                        shutil.copytree, binaries.root / name, part / name, symlinks=True
                    )
            part.rename(copy)
        there = copy / binaries.directory.relative_to(binaries.root)
        if not await self._can_run(there, account):
            raise LocalStateUnusableError(
                f"The account `nobody` cannot reach {self.directory}.",
                advice="Name a state directory whose parent folders everybody may pass through, "
                "or run this command under an ordinary account.",
            )
        return replace(binaries, directory=there, root=copy)

    async def _can_run(self, directory: Path, account: ServerAccount) -> bool:
        # Through a shell: setpriv itself still has root's powers when it starts a program.
        probe = ("sh", "-c", 'exec "$0" --version')
        status, _ = await processes.run(
            [*account.prefix, *probe, directory / "postgres"],
            environment=self._environment,
            directory=Path("/"),
        )
        return status == 0

    async def _end_leftover(self) -> None:
        """End a server that an earlier, killed owner of this folder left behind.

        We hold the folder's lock, so nobody uses that server any more.
        """
        await processes.gone(self._killed_workers, within_seconds=10)
        pid_file = self.data_directory / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        if str(self.data_directory) in processes.command_line(pid):
            for which, seconds in ((signal.SIGINT, _STOP_SECONDS), (signal.SIGKILL, 10.0)):
                processes.send(pid, which)
                if await processes.gone([pid], within_seconds=seconds):
                    break
        # Its number may belong to another program by now, which would keep the server from
        # starting. Workers of a killed server are noticed by their shared memory instead.
        pid_file.unlink(missing_ok=True)

    async def _initialise(self, binaries: PostgresBinaries, account: ServerAccount) -> None:
        self._cluster.mkdir(mode=0o700, exist_ok=True)
        if self.data_directory.exists():
            hand_over([self._cluster], account)
            return
        fresh, password = self._cluster / "data.new", self._cluster / "password.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self._state.write(password, self._state.secret("password"))
        hand_over([self._cluster, password], account)
        locale = (
            ["--locale-provider=builtin", "--locale=C.UTF-8"]
            if binaries.major >= _BUILTIN_LOCALE_SINCE
            else ["--locale=C"]
        )
        try:
            status, output = await processes.run(
                [
                    *account.prefix,
                    binaries.directory / "initdb",
                    f"--pgdata={fresh}",
                    f"--username={_USER}",
                    "--auth=scram-sha-256",
                    f"--pwfile={password}",
                    "--encoding=UTF8",
                    *locale,
                ],
                environment=self._environment,
                directory=self._cluster,
            )
        finally:
            password.unlink()
        if status != 0:
            raise LocalServerFailedError(
                f"initdb ended with status {status}: {output.strip()[-2000:]}",
                advice="Mend what it names, then start again.",
            )
        fresh.rename(self.data_directory)

    def _reserve(self) -> PortReservation:
        if self._asked_port is not None:
            return reserve_exactly(self._asked_port)
        return reserve_port(self._state.remembered_ports().get("postgres"))

    async def _launch(self, binaries: PostgresBinaries, account: ServerAccount) -> None:
        for _ in range(_START_ATTEMPTS):
            if self._port is None:
                self._port = self._reserve()
            self._process = processes.spawn(
                self._command(binaries, account),
                log=self.log,
                environment=self._environment,
                directory=self._cluster,
            )
            if await self._ready(self._process):
                self._state.remember_ports({"postgres": self.port})
                return
            log = processes.tail(self.log)
            taken = not port_is_free(self.port)
            if taken and self._asked_port is not None:
                raise LocalPortTakenError(
                    f"Port {self.port} was taken by another server while PostgreSQL started.",
                    advice="End that server, or ask for another port.",
                )
            if taken:
                self._port.release()
                self._port = None
            elif "is still in use" in log:
                # Workers of a killed server are about to notice that it is gone.
                await asyncio.sleep(0.5)
            else:
                raise LocalServerFailedError(
                    f"PostgreSQL ended with status {self._process.returncode} while starting. "
                    f"The end of {self.log}:\n{log}\n",
                    advice="Mend what the log names, then start again.",
                )
        raise LocalServerFailedError(
            f"PostgreSQL did not start in {_START_ATTEMPTS} attempts. "
            f"The end of {self.log}:\n{processes.tail(self.log)}\n",
            advice="Mend what the log names, then start again.",
        )

    def _command(self, binaries: PostgresBinaries, account: ServerAccount) -> list[str | Path]:
        settings = {
            "listen_addresses": LOOPBACK,
            # No socket file: its path has a length limit that a deep state directory would break.
            "unix_socket_directories": "",
            "lc_messages": "C",
            **self._settings,
            "port": str(self.port),
        }
        return [
            *account.prefix,
            *processes.ended_with_parent(signal.SIGINT),
            binaries.directory / "postgres",
            "-D",
            self.data_directory,
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        ]

    async def _ready(self, process: subprocess.Popen[bytes]) -> bool:
        """True once our server let us in, False when it ended before."""
        deadline = time.monotonic() + self._ready_timeout_seconds
        last = "no attempt was made"
        while process.poll() is None:
            try:
                connection = await asyncpg.connect(self.url(), ssl=False, timeout=5)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                last = f"{type(error).__name__}: {error}"
            else:
                try:
                    served = await connection.fetchval("show data_directory")
                finally:
                    await connection.close()
                if os.fspath(self.data_directory) == served:
                    return True
                # A foreign server that trusts everybody; ours is about to fail at its bind.
                last = f"another server answers, with its data in {served}"
            if time.monotonic() >= deadline:
                raise LocalServerNotReadyError(
                    f"PostgreSQL accepted no login within {self._ready_timeout_seconds:g} seconds "
                    f"({last}). The end of {self.log}:\n{processes.tail(self.log)}\n",
                    advice="Look into the log; a long recovery needs a longer timeout.",
                )
            await asyncio.sleep(processes.POLL_SECONDS)
        return False


async def ensure_database(url: str, name: str) -> None:
    """Create a database on the server that ``url`` leads to, unless it exists."""
    connection = await asyncpg.connect(url, ssl=False)
    try:
        quoted = '"' + name.replace('"', '""') + '"'
        if not await connection.fetchval("select 1 from pg_database where datname = $1", name):
            await connection.execute(f"create database {quoted}")
    finally:
        await connection.close()
