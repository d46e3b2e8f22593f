"""Copies and standbys of a private PostgreSQL, with the same password and databases."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import asyncpg

from tenure.cli.local import processes
from tenure.cli.local.accounts import choose_account
from tenure.cli.local.binaries import base_environment, find_postgres
from tenure.cli.local.postgres import PrivatePostgres
from tests.support.isolation import FreshDatabase
from tests.support.services import POSTGRES_SETTINGS

FAKETIME: Final = "/usr/lib/*/faketime/libfaketimeMT.so.1"
"""Shifts the clock of one process, as its file says."""
STANDBY: Final = "standby1"


class ShiftedClock:
    """The clock of servers that are started with its environment: ours, shifted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shift("+0")

    def shift(self, by: str) -> None:
        """For example ``+2h`` or ``-30m``: from the servers' next look at the clock on."""
        # Renamed into place: a server may be reading.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(by)
        fresh.rename(self._path)

    @property
    def environment(self) -> dict[str, str]:
        """What makes a program go by this clock; sleeps and timeouts stay as they are."""
        libraries = glob(FAKETIME)
        assert libraries, "libfaketime is missing: run `make test-deps`"
        return {
            "LD_PRELOAD": libraries[0],
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


async def copied(folder: Path) -> Path:
    """A copy of a server's folder, as it is on the disk, beside it."""
    target = folder.with_name(f"copy-{secrets.token_hex(4)}")
    await _run(["cp", "-a", folder, target], folder.parent)
    (target / "lock").unlink(missing_ok=True)
    return target


def on(server: PrivatePostgres, database: FreshDatabase) -> FreshDatabase:
    """The same database, where ``server`` has it."""
    address = f"127.0.0.1:{server.port}"

    def there(url: str) -> str:
        parts = urlsplit(url)
        login, separator, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{separator}{address}").geturl()

    return replace(
        database,
        owner_url=there(database.owner_url),
        coordinator_url=there(database.coordinator_url),
        relay_url=there(database.relay_url),
        admin_url=there(database.admin_url),
    )


@asynccontextmanager
async def started(
    directory: Path,
    *,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[PrivatePostgres]:
    """A server over a folder that has data, on another port than the one that wrote them."""
    (directory / "server.json").unlink(missing_ok=True)
    server = PrivatePostgres(
        directory, settings={**POSTGRES_SETTINGS, **(settings or {})}, environment=environment
    )
    await server.start()
    try:
        yield server
    finally:
        server.kill()
        await server.stop()


async def synchronous_standby(
    primary: PrivatePostgres, directory: Path, *, port: int | None = None
) -> Path:
    """The folder of a standby that ``primary`` will wait for; see ``await_standby``. ``port``: of
    what it reaches the primary through."""
    target = directory / f"standby-{secrets.token_hex(4)}"
    cluster = target / "cluster"
    cluster.mkdir(parents=True, mode=0o711)
    await _run(["cp", "-a", *_secrets(primary.directory), target], directory)
    binaries = await find_postgres(None)
    url = urlsplit(primary.url())
    conninfo = (
        f"host=127.0.0.1 port={port or primary.port} user=postgres password={url.password}"
        f" application_name={STANDBY}"
    )
    await _run(
        [
            *choose_account().prefix, binaries.directory / "pg_basebackup", "-d", conninfo,
            "-D", cluster / "data", "-R", "-X", "stream", "-C", "-S", STANDBY, "-c", "fast",
            "--no-sync",
        ],
        cluster,
    )  # fmt: skip
    return target


async def await_standby(primary: PrivatePostgres) -> None:
    """From now on no commit of the primary is answered before the standby has it."""
    connection = await asyncpg.connect(primary.url())
    try:
        await connection.execute(f"alter system set synchronous_standby_names = '{STANDBY}'")
        await connection.execute("select pg_reload_conf()")
        while not await connection.fetchval(  # noqa: ASYNC110 - another program's state
            "select exists (select from pg_stat_replication where sync_state = 'sync')"
        ):
            await asyncio.sleep(0.05)
    finally:
        await connection.close()


def _secrets(directory: Path) -> list[Path]:
    """What a state directory holds beside the cluster."""
    return [
        path
        for path in directory.iterdir()
        if path.is_file() and path.name not in ("lock", "server.json", "postgres.log")
    ]


async def _run(command: list[str | Path], directory: Path) -> None:
    status, output = await processes.run(
        command, environment=base_environment("C"), directory=directory
    )
    assert status == 0, output
