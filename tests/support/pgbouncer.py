"""A private PgBouncer in transaction mode before a PostgreSQL, with TLS where that is asked for."""

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from tenure.cli.local import processes
from tenure.cli.local.accounts import choose_account, hand_over
from tenure.cli.local.ports import LOOPBACK, reserve_port

POOL_SIZE = 10
"""Server connections for each user and database: fewer than a coordinator has towards us."""
_SYSTEM = "/usr/sbin/pgbouncer"
_READY_SECONDS = 90


class PgbouncerMissing(Exception):
    """The test cannot show what it is for. Never a reason to skip it."""


@dataclass(frozen=True)
class Certificate:
    """Files of a server's certificate and its key, and of the authority that signed it."""

    chain: Path
    key: Path
    authority: Path


@dataclass(frozen=True)
class Pooler:
    """A running PgBouncer. ``through`` gives the way to the same database and login through it."""

    port: int

    def through(self, url: str, **query: str) -> str:
        """The URL with the pooler as its server."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        words = "&".join(f"{name}={quote(value, safe='/')}" for name, value in query.items())
        return parts._replace(netloc=f"{login}@{LOOPBACK}:{self.port}", query=words).geturl()


def program() -> str:
    """The path of pgbouncer. Raises PgbouncerMissing."""
    found = shutil.which("pgbouncer") or (_SYSTEM if Path(_SYSTEM).exists() else None)
    if found is None:
        raise PgbouncerMissing(
            "PgBouncer is not installed, and what goes through a pooler cannot be tested without"
            " it: run deploy/install-pgbouncer (or `apt-get install pgbouncer`) and repeat."
        )
    return found


_ROUTES: dict[tuple[str | None, int | None], Pooler] = {}


def route(server_url: str, pooler: Pooler | None) -> None:
    """From now on services reach the server of this URL through the pooler; None: directly."""
    parts = urlsplit(server_url)
    if pooler is None:
        _ROUTES.pop((parts.hostname, parts.port), None)
    else:
        _ROUTES[parts.hostname, parts.port] = pooler


def routed(url: str) -> str:
    """The way a service takes to the server of this URL."""
    parts = urlsplit(url)
    pooler = _ROUTES.get((parts.hostname, parts.port))
    return url if pooler is None else pooler.through(url)


@asynccontextmanager
async def pgbouncer(
    directory: Path,
    server_url: str,
    logins: Mapping[str, str],
    *,
    certificate: Certificate | None = None,
    pool_size: int = POOL_SIZE,
) -> AsyncIterator[Pooler]:
    """A pooler before the server of ``server_url`` for users with the passwords in ``logins``."""
    command = program()
    folder = directory / f"pgbouncer-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    reservation = reserve_port()
    server = urlsplit(server_url)
    settings = {
        "listen_addr": LOOPBACK,
        "listen_port": str(reservation.port),
        "unix_socket_dir": "",
        "auth_type": "scram-sha-256",
        "auth_file": str(folder / "users.txt"),
        "pool_mode": "transaction",
        "default_pool_size": str(pool_size),
        "max_client_conn": "1000",
        "server_idle_timeout": "10",
        "logfile": str(folder / "log"),
        "pidfile": str(folder / "pid"),
    }
    if certificate is not None:
        settings |= {
            "client_tls_sslmode": "require",
            "client_tls_cert_file": str(certificate.chain),
            "client_tls_key_file": str(certificate.key),
        }
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={server.hostname} port={server.port}\n[pgbouncer]\n"
        + "".join(f"{name} = {value}\n" for name, value in settings.items())
    )
    (folder / "users.txt").touch(mode=0o600)
    (folder / "users.txt").write_text(
        "".join(f'"{user}" "{password}"\n' for user, password in logins.items())
    )
    account = choose_account()
    if account.is_another:
        hand_over([folder], account)
    process = processes.spawn(
        [
            *processes.ended_with_parent(signal.SIGTERM),
            *account.prefix,
            command,
            folder / "pgbouncer.ini",
        ],
        log=folder / "console",
        environment={"PATH": os.environ.get("PATH", os.defpath)},
        directory=folder,
    )
    try:
        await _serves(reservation.port, process, folder)
        yield Pooler(reservation.port)
    finally:
        process.kill()
        process.wait()
        reservation.release()


async def _serves(port: int, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    async with asyncio.timeout(_READY_SECONDS):
        while process.poll() is None:
            try:
                _, writer = await asyncio.open_connection(LOOPBACK, port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
    raise AssertionError(f"PgBouncer ended:\n{processes.tail(folder / 'console')}")
