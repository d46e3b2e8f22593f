"""A private RabbitMQ broker: one folder, loopback ports, one user, ended with its parent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import aio_pika
import aiormq

from tenure.cli.local import processes
from tenure.cli.local.binaries import RabbitmqBinaries, base_environment, find_rabbitmq
from tenure.cli.local.errors import (
    LocalPortTakenError,
    LocalServerFailedError,
    LocalServerNotReadyError,
    LocalServerNotRunningError,
    LocalServerRunningError,
)
from tenure.cli.local.ports import (
    LOOPBACK,
    PortReservation,
    port_is_free,
    reserve_exactly,
    reserve_port,
)
from tenure.cli.local.state import StateDirectory

_USER = "tenure"
_NODE = "tenure@localhost"
_MARK = "TENURE_PRIVATE_RABBITMQ"
_START_ATTEMPTS = 5
_STOP_SECONDS = 60.0
_AMQP, _DISTRIBUTION, _NAMES, _MANAGEMENT = "amqp", "distribution", "epmd", "management"


class PrivateRabbitmq:
    """RabbitMQ in a folder of ours, with an Erlang name server of its own.

    The folder is made at the first start and found again at the next: messages, password and
    ports stay the same. Remembered ports that somebody else has taken meanwhile are replaced; a
    port asked for in ``port`` is not.

    ``settings`` are lines of rabbitmq.conf (``{"channel_max": "100"}``). ``management`` adds the
    management plugin, which Tenure itself never needs and which makes a clean stop take six
    seconds longer. One process at a time may use a folder.

    Start it from the main thread, so that the broker ends with this process even when that is
    killed.
    """

    def __init__(
        self,
        state_directory: Path,
        *,
        port: int | None = None,
        vhost: str = "tenure",
        settings: Mapping[str, str] | None = None,
        management: bool = False,
        schedulers: int = 1,
        ready_timeout_seconds: float = 120.0,
    ) -> None:
        self._state = StateDirectory(state_directory)
        self.directory = self._state.path
        self._asked_port = port
        self._vhost = vhost
        self._settings = dict(settings or {})
        self._schedulers = schedulers
        self._ready_timeout_seconds = ready_timeout_seconds
        self._needed = (_AMQP, _DISTRIBUTION, _NAMES) + ((_MANAGEMENT,) if management else ())
        self._ports: dict[str, PortReservation] = {}
        # The shell script that runs Erlang's machine and waits for it, and the name server.
        self._script: subprocess.Popen[bytes] | None = None
        self._names: subprocess.Popen[bytes] | None = None
        self.log_directory = self.directory / "log"

    @property
    def running(self) -> bool:
        """True while the broker lives."""
        return self._machine() is not None

    @property
    def pid(self) -> int:
        """The pid of the broker itself (Erlang's machine). Raises LocalServerNotRunningError."""
        machine = self._machine()
        if machine is None:
            raise self._not_running("is not running")
        return machine

    @property
    def port(self) -> int:
        """The AMQP port, also while the broker is down between ``start`` and ``stop``."""
        return self._port_of(_AMQP)

    def url(self, vhost: str | None = None) -> str:
        """The AMQP URL of the user who may do everything, with the password in it."""
        name = quote(self._vhost if vhost is None else vhost, safe="")
        return f"amqp://{self._login(_AMQP)}/{name}"

    def management_url(self) -> str:
        """The address of the management plugin, with user and password in it."""
        return f"http://{self._login(_MANAGEMENT)}"

    async def start(self) -> None:
        """Start the broker and return once it has accepted a login. Does nothing when it runs.

        Raises LocalServerError: see tenure.cli.local.errors for its kinds.
        """
        if self.running:
            return
        self._state.acquire()
        try:
            self.kill()  # the script of a broker that somebody killed may not have noticed yet
            binaries = find_rabbitmq()
            if self._names is None:
                await self._end_leftovers()
            await self._launch(binaries)
        except BaseException:
            self._end_everything()
            raise

    async def stop(self) -> None:
        """Shut down cleanly. Twice is harmless."""
        await self._shut_down()
        self._end_everything()

    async def _shut_down(self) -> None:
        if self._script is not None and self._script.poll() is None:
            processes.send(self._machine() or self._script.pid, signal.SIGTERM)
            await processes.ended(self._script, within_seconds=_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the broker at once, as a crash does. Its ports stay ours for a restart."""
        if self._script is None:
            return
        if self._script.poll() is None:
            # Script and machine are one process group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._script.pid, signal.SIGKILL)
        self._script.wait()
        self._script = None

    async def restart(self) -> None:
        """Stop cleanly and start again on the same ports."""
        await self._shut_down()
        await self.start()

    async def end_abandoned(self) -> None:
        """End a broker whose owner was killed, if there is one.

        Raises LocalStateInUseError when the owner lives.
        """
        self._state.acquire()
        try:
            await self._end_leftovers()
        finally:
            self._state.release()

    def wipe(self) -> None:
        """Forget all queues and messages, as a lost disk does; user and vhost come back at start.

        Raises LocalServerRunningError.
        """
        if self.running:
            raise LocalServerRunningError(
                f"The broker in {self.directory} is running.", advice="Stop or kill it first."
            )
        shutil.rmtree(self.directory / "mnesia", ignore_errors=True)

    def _machine(self) -> int | None:
        """The pid of Erlang's machine, which the script started in its own session."""
        if self._script is None or self._script.poll() is not None:
            return None
        return next(iter(processes.named_in_session(self._script.pid, "beam")), None)

    def _login(self, use: str) -> str:
        address = f"{LOOPBACK}:{self._port_of(use)}"
        return f"{_USER}:{quote(self._state.secret('password'), safe='')}@{address}"

    def _port_of(self, use: str) -> int:
        if use not in self._ports:
            raise self._not_running(f"has no port for {use}")
        return self._ports[use].port

    def _not_running(self, what: str) -> LocalServerNotRunningError:
        return LocalServerNotRunningError(
            f"The broker in {self.directory} {what}.", advice="Start it first."
        )

    def _end_everything(self) -> None:
        self.kill()
        if self._names is not None:
            self._names.kill()  # it keeps nothing
            self._names.wait()
            self._names = None
        for reservation in self._ports.values():
            reservation.release()
        self._ports = {}
        self._state.release()

    async def _end_leftovers(self) -> None:
        """End what an earlier, killed owner of this folder left behind.

        We hold the folder's lock, so nobody uses that broker any more. It may be on its way out.
        """
        pids = processes.with_environment(_MARK, str(self.directory))
        machines = [pid for pid in pids if processes.name_of(pid).startswith("beam")]
        for pid in machines:
            processes.send(pid, signal.SIGTERM)
        await processes.gone(machines, within_seconds=_STOP_SECONDS)
        for pid in pids:
            processes.send(pid, signal.SIGKILL)
        await processes.gone(pids, within_seconds=10)

    def _reserve(self) -> None:
        remembered = self._state.remembered_ports()
        for use in self._needed:
            if use in self._ports:
                continue
            if use == _AMQP and self._asked_port is not None:
                self._ports[use] = reserve_exactly(self._asked_port)
            else:
                self._ports[use] = reserve_port(remembered.get(use))

    async def _launch(self, binaries: RabbitmqBinaries) -> None:
        for _ in range(_START_ATTEMPTS):
            self._reserve()
            self._configure()
            if not await self._names_serve(binaries):
                self._ports.pop(_NAMES).release()
                continue
            console = self.log_directory / "console.log"
            console.unlink(missing_ok=True)  # an error message quotes this start, no other
            self._script = self._spawn([binaries.server], "console")
            if await self._ready(self._script):
                self._state.remember_ports({use: one.port for use, one in self._ports.items()})
                return
            if self._give_up_taken_ports() == 0:
                raise self._failed(f"ended with status {self._script.returncode} while starting")
        raise self._failed(f"did not start in {_START_ATTEMPTS} attempts")

    async def _names_serve(self, binaries: RabbitmqBinaries) -> bool:
        """True once our Erlang name server listens, False when its port was taken.

        It has to be there before the broker, which would otherwise start one that outlives it.
        """
        if self._names is None or self._names.poll() is not None:
            self._names = self._spawn(
                [binaries.epmd, "-address", LOOPBACK, "-port", self._port_of(_NAMES)], "epmd"
            )
        deadline = time.monotonic() + 30
        while port_is_free(self._port_of(_NAMES)) and time.monotonic() < deadline:
            if self._names.poll() is not None:
                raise self._failed(f"has no name server: {binaries.epmd} ended")
            await asyncio.sleep(processes.POLL_SECONDS)
        return self._names.poll() is None

    def _failed(self, what: str) -> LocalServerFailedError:
        return LocalServerFailedError(
            f"RabbitMQ {what}. Its output:\n"
            f"{processes.complaints(self.log_directory / 'console.log')}\n",
            advice=f"Mend what the logs in {self.log_directory} name, then start again.",
        )

    def _give_up_taken_ports(self) -> int:
        """Release the ports that somebody took while the broker was starting; their number."""
        names_live = self._names is not None and self._names.poll() is None
        taken = [
            use
            for use, one in self._ports.items()
            if not (use == _NAMES and names_live) and not port_is_free(one.port)
        ]
        if _AMQP in taken and self._asked_port is not None:
            raise LocalPortTakenError(
                f"Port {self._asked_port} was taken by another server while RabbitMQ started.",
                advice="End that server, or ask for another port.",
            )
        for use in taken:
            self._ports.pop(use).release()
        return len(taken)

    def _spawn(self, command: list[str | Path | int], log: str) -> subprocess.Popen[bytes]:
        return processes.spawn(
            [*processes.ended_with_parent(signal.SIGTERM), *(str(word) for word in command)],
            log=self.log_directory / f"{log}.log",
            environment=self._environment(),
            directory=self.directory,
        )

    def _environment(self) -> dict[str, str]:
        folder = self.directory
        return {
            **base_environment("C.UTF-8"),
            _MARK: str(folder),
            "HOME": str(folder / "home"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.log_directory),
            "RABBITMQ_DIST_PORT": str(self._port_of(_DISTRIBUTION)),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} "
                f"+S {self._schedulers}:{self._schedulers}"
            ),
            "ERL_EPMD_PORT": str(self._port_of(_NAMES)),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_CRASH_DUMP": str(self.log_directory / "erl_crash.dump"),
        }

    def _configure(self) -> None:
        folder = self.directory
        for name in ("home", "mnesia", "log"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        cookie = self._state.secret("cookie")
        path = folder / "home" / ".erlang.cookie"
        path.touch(mode=0o600)  # Erlang refuses a cookie that others may read
        path.write_text(cookie)
        management = _MANAGEMENT in self._needed
        self._state.write(
            folder / "enabled_plugins", "[rabbitmq_management]." if management else "[]."
        )
        settings = {
            "listeners.tcp.1": f"{LOOPBACK}:{self.port}",
            "load_definitions": str(folder / "definitions.json"),
            "disk_free_limit.absolute": "50MB",
            "vm_memory_high_watermark.absolute": "512MB",
            "log.file.rotation.size": "10485760",
            "log.file.rotation.count": "3",
        }
        if management:
            settings["management.tcp.ip"] = LOOPBACK
            settings["management.tcp.port"] = str(self._port_of(_MANAGEMENT))
        settings |= self._settings
        self._state.write(
            folder / "rabbitmq.conf",
            "\n".join(f"{name} = {value}" for name, value in settings.items()),
        )
        self._state.write(folder / "definitions.json", json.dumps(self._definitions()))

    def _definitions(self) -> dict[str, object]:
        """One user, one vhost; with definitions the broker makes no guest account."""
        salt = os.urandom(4)
        password = self._state.secret("password").encode()
        digest = base64.b64encode(salt + hashlib.sha256(salt + password).digest()).decode()
        permission = {"configure": ".*", "write": ".*", "read": ".*"}
        return {
            "users": [
                {
                    "name": _USER,
                    "password_hash": digest,
                    "hashing_algorithm": "rabbit_password_hashing_sha256",
                    "tags": ["administrator"],
                }
            ],
            "vhosts": [{"name": self._vhost}],
            "permissions": [{"user": _USER, "vhost": self._vhost, **permission}],
        }

    async def _ready(self, script: subprocess.Popen[bytes]) -> bool:
        """True once the broker let our user in, False when it ended before.

        A foreign broker does not know our password.
        """
        deadline = time.monotonic() + self._ready_timeout_seconds
        last = "no attempt was made"
        while script.poll() is None:
            try:
                if not port_is_free(self.port):
                    connection = await aio_pika.connect(self.url(), timeout=10)
                    await connection.close()
                    return True
            except (OSError, aiormq.exceptions.AMQPError) as error:
                last = f"{type(error).__name__}: {error}"
            if time.monotonic() >= deadline:
                raise LocalServerNotReadyError(
                    f"RabbitMQ accepted no login within {self._ready_timeout_seconds:g} seconds "
                    f"({last}).",
                    advice=f"Look into the logs in {self.log_directory}.",
                )
            await asyncio.sleep(processes.POLL_SECONDS)
        return False
