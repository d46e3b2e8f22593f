"""The PostgreSQL and RabbitMQ that tests talk to: where they come from.

``TENURE_TEST_SERVICES`` chooses:

``external``  servers that run already: ``TENURE_TEST_DATABASE_URL`` (a login that may create
              databases and roles), ``TENURE_TEST_BROKER_URL``, and, for a vhost of its own for each
              test, ``TENURE_TEST_BROKER_MANAGEMENT_URL`` with user and password in it
``docker``    containers, from images that are present (``TENURE_TEST_POSTGRES_IMAGE``,
              ``TENURE_TEST_RABBITMQ_IMAGE``)
``local``     private servers, as ``tenure up`` starts them
``auto``      external when a URL is given, else docker when a daemon answers and has both images,
              else local

``TENURE_TEST_POOLED=1``: authorities, coordinators and relays that tests start go through a
PgBouncer in transaction mode, and are told so (``make test-pooled``). The tests' own sessions stay
direct. What cannot be shown that way is marked ``direct`` and left out.

Each pytest process has its own pair of servers (with pytest-xdist: each worker), started when the
first test asks for them. External servers are shared, and the fresh databases and vhosts on them
keep the workers apart.
"""

import asyncio
import fcntl
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

import asyncpg
import pytest

from tenure.cli.local.errors import LocalStateInUseError
from tenure.cli.local.postgres import PrivatePostgres
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.cli.local.state import StateDirectory

Backend = Literal["external", "docker", "local"]

POSTGRES_SETTINGS = {
    "max_connections": "200",
    # For tests that count statements and bytes; the product needs no extension.
    "shared_preload_libraries": "pg_stat_statements",
}
READY_SECONDS = 240.0
"""For the start of a private server: what a busy machine may need, within a test's own limit."""
POSTGRES_IMAGE = os.environ.get("TENURE_TEST_POSTGRES_IMAGE", "postgres:17")
RABBITMQ_IMAGE = os.environ.get("TENURE_TEST_RABBITMQ_IMAGE", "rabbitmq:4.0-management")
POOLED = os.environ.get("TENURE_TEST_POOLED") == "1"
_DATABASE_URL = "TENURE_TEST_DATABASE_URL"
_BROKER_URL = "TENURE_TEST_BROKER_URL"
_MANAGEMENT_URL = "TENURE_TEST_BROKER_MANAGEMENT_URL"
_LABEL = "tenure.test-session"
_DEFAULT_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True)
class BrokerServer:
    """A broker's URLs; ``management`` is None where there is no management plugin."""

    url: str
    management: str | None


def choose_backend() -> tuple[Backend, str]:
    """The backend, and why it was chosen. Raises pytest.UsageError for settings that contradict."""
    asked = os.environ.get("TENURE_TEST_SERVICES", "auto")
    given = [name for name in (_DATABASE_URL, _BROKER_URL) if os.environ.get(name)]
    match asked:
        case "external":
            if len(given) < 2:
                raise pytest.UsageError(
                    f"TENURE_TEST_SERVICES=external needs {_DATABASE_URL} and {_BROKER_URL}."
                )
            return "external", "asked for"
        case "docker":
            if (obstacle := docker_obstacle()) is not None:
                raise pytest.UsageError(f"TENURE_TEST_SERVICES=docker, but {obstacle}.")
            return "docker", "asked for"
        case "local":
            return "local", "asked for"
        case "auto":
            if len(given) == 1:
                raise pytest.UsageError(f"Set both {_DATABASE_URL} and {_BROKER_URL}, or neither.")
            if given:
                return "external", "their URLs are given"
            obstacle = docker_obstacle()
            return ("local", obstacle) if obstacle else ("docker", "a daemon has both images")
    raise pytest.UsageError(
        f"TENURE_TEST_SERVICES={asked} is none of auto, external, docker and local."
    )


def docker_obstacle() -> str | None:
    """Why containers cannot be used here, or None when they can."""
    address = urlsplit(os.environ.get("DOCKER_HOST") or f"unix://{_DEFAULT_SOCKET}")
    if address.scheme == "unix" and not _listens(address.path):
        return "no Docker daemon answers"
    import docker

    try:
        client = docker.from_env(timeout=5)
        try:
            client.ping()
            for image in (POSTGRES_IMAGE, RABBITMQ_IMAGE):
                client.images.get(image)
        finally:
            client.close()
    except docker.errors.ImageNotFound as error:
        return f"the Docker daemon lacks an image ({error.explanation})"
    except docker.errors.DockerException:
        return "no Docker daemon answers"
    return None


def _listens(path: str) -> bool:
    """Asked before docker's client is, which is slow to import and leaks a refused socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


@contextmanager
def session_directory() -> Iterator[Path]:
    """A short path for servers' folders, removed at the end; what killed runs left goes first."""
    base = Path(tempfile.gettempdir(), f"tenure-tests-{os.geteuid()}")
    # Others may pass through but see nothing: the server's account may be another than ours.
    base.mkdir(mode=0o711, exist_ok=True)
    if base.stat().st_uid != os.geteuid():
        raise pytest.UsageError(f"{base} belongs to somebody else.")
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # nobody sweeps a folder that is not locked yet
        abandoned = [entry for entry in base.iterdir() if entry.is_dir() and _abandoned(entry)]
        path = base / f"{os.getpid()}-{secrets.token_hex(2)}"
        path.mkdir(mode=0o711)
        state = StateDirectory(path)
        state.acquire()
    try:
        for entry in abandoned:
            _sweep(entry)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        state.release()


def _abandoned(session: Path) -> bool:
    """True when the run that this folder belongs to has ended."""
    if not session.exists():
        return True
    state = StateDirectory(session)
    try:
        state.acquire()
    except LocalStateInUseError:
        return False
    state.release()
    return True


def _sweep(session: Path) -> None:
    folders = [entry for entry in session.iterdir() if entry.is_dir()]

    async def end_all() -> None:
        for folder in folders:
            if folder.name.startswith("postgres"):
                await PrivatePostgres(folder).end_abandoned()
            elif folder.name.startswith("rabbitmq"):
                await PrivateRabbitmq(folder).end_abandoned()

    try:
        asyncio.run(end_all())
    except (FileNotFoundError, LocalStateInUseError):
        return  # another new session is sweeping it
    shutil.rmtree(session, ignore_errors=True)


@asynccontextmanager
async def local_postgres(
    directory: Path, *, settings: dict[str, str] | None = None, major: int | None = None
) -> AsyncIterator[PrivatePostgres]:
    """A private server of the test's own, to be killed and restarted at will."""
    server = PrivatePostgres(
        directory / f"postgres-{secrets.token_hex(4)}",
        settings={**POSTGRES_SETTINGS, **(settings or {})},
        major=major,
        ready_timeout_seconds=READY_SECONDS,
    )
    await server.start()
    try:
        yield server
    finally:
        server.kill()
        await server.stop()


@asynccontextmanager
async def local_rabbitmq(
    directory: Path, *, settings: dict[str, str] | None = None
) -> AsyncIterator[PrivateRabbitmq]:
    """A private broker of the test's own, to be killed, wiped and restarted at will."""
    server = PrivateRabbitmq(
        directory / f"rabbitmq-{secrets.token_hex(4)}",
        settings=settings,
        management=True,
        ready_timeout_seconds=READY_SECONDS,
    )
    await server.start()
    try:
        yield server
    finally:
        server.kill()  # the management plugin makes a clean stop slow
        await server.stop()


@asynccontextmanager
async def database_server(backend: Backend, directory: Path) -> AsyncIterator[str]:
    """The URL of a login that may create databases and roles."""
    if backend == "external":
        yield os.environ[_DATABASE_URL]
    elif backend == "local":
        async with local_postgres(directory) as server:
            yield server.url()
    else:
        password = secrets.token_urlsafe(12)
        command = "postgres " + " ".join(
            f"-c {name}={value}" for name, value in POSTGRES_SETTINGS.items()
        )
        async with _container(
            directory,
            POSTGRES_IMAGE,
            {"POSTGRES_PASSWORD": password},
            (5432,),
            command=command,
        ) as (host, ports):
            url = f"postgresql://postgres:{password}@{host}:{ports[5432]}/postgres"
            # The log's "ready" is first said by a server for the image's own set-up, so log in.
            await _accepts_login(url)
            yield url


@asynccontextmanager
async def broker_server(backend: Backend, directory: Path) -> AsyncIterator[BrokerServer]:
    """The URLs of a user who may do everything."""
    if backend == "external":
        yield BrokerServer(os.environ[_BROKER_URL], os.environ.get(_MANAGEMENT_URL))
    elif backend == "local":
        async with local_rabbitmq(directory) as server:
            yield BrokerServer(server.url(), server.management_url())
    else:
        password = secrets.token_urlsafe(12)
        environment = {"RABBITMQ_DEFAULT_USER": "tenure", "RABBITMQ_DEFAULT_PASS": password}
        async with _container(
            directory,
            RABBITMQ_IMAGE,
            environment,
            (5672, 15672),
            ready="Server startup complete",
        ) as (host, ports):
            login = f"tenure:{quote(password, safe='')}@{host}"
            yield BrokerServer(
                f"amqp://{login}:{ports[5672]}/%2F", f"http://{login}:{ports[15672]}"
            )


@asynccontextmanager
async def _container(
    session: Path,
    image: str,
    environment: dict[str, str],
    ports: tuple[int, ...],
    *,
    command: str | None = None,
    ready: str | None = None,
) -> AsyncIterator[tuple[str, dict[int, int]]]:
    """A running container: its host, and the host's port for each of its ports."""
    # The reaper is an image of its own that may be absent. Read at import.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    import docker
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    with closing(docker.from_env()) as client:
        for old in client.containers.list(all=True, filters={"label": _LABEL}):
            # A killed run could not remove its containers.
            host, _, folder = old.labels[_LABEL].partition(":")
            if host == socket.gethostname() and _abandoned(Path(folder)):
                old.remove(force=True, v=True)
    container = DockerContainer(image).with_kwargs(
        labels={_LABEL: f"{socket.gethostname()}:{session}"}
    )
    container = container.with_envs(**environment).with_exposed_ports(*ports)
    if command is not None:
        container = container.with_command(command)
    if ready is not None:
        container = container.waiting_for(LogMessageWaitStrategy(ready).with_startup_timeout(90))
    await asyncio.to_thread(container.start)
    try:
        # Never a literal localhost: inside a container it is the bridge's address.
        host = container.get_container_host_ip()
        yield host, {port: int(container.get_exposed_port(port)) for port in ports}
    finally:
        await asyncio.to_thread(container.stop)


async def _accepts_login(url: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                connection = await asyncpg.connect(url, timeout=5)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.1)
            else:
                await connection.close()
                return
