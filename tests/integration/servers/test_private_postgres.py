"""The private PostgreSQL server: crashes, second starts, neighbours, and what can be wrong."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from tenure.cli.local import accounts, processes
from tenure.cli.local.accounts import ServerAccount
from tenure.cli.local.binaries import find_postgres
from tenure.cli.local.errors import (
    LocalPortTakenError,
    LocalServerFailedError,
    LocalServerMissingError,
    LocalServerNotRunningError,
    LocalServerVersionError,
    LocalStateInUseError,
    LocalStateUnusableError,
)
from tenure.cli.local.ports import LOOPBACK, PortReservation, reserve_port
from tenure.cli.local.postgres import PrivatePostgres
from tests.support.listeners import listening
from tests.support.orphans import owner


@pytest.fixture
def folder(server_directory: Path) -> Path:
    """A state directory that no other test uses."""
    return server_directory / f"postgres-{secrets.token_hex(4)}"


@asynccontextmanager
async def started(server: PrivatePostgres) -> AsyncIterator[PrivatePostgres]:
    """The server, running for the length of the block."""
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def execute(server: PrivatePostgres, statement: str) -> None:
    connection = await asyncpg.connect(server.url())
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def numbers(server: PrivatePostgres) -> list[int]:
    """The rows of the table that `remember` fills."""
    connection = await asyncpg.connect(server.url())
    try:
        return [row[0] for row in await connection.fetch("select n from numbers order by n")]
    finally:
        await connection.close()


async def remember(server: PrivatePostgres, number: int) -> None:
    await execute(
        server,
        f"create table if not exists numbers (n int); insert into numbers values ({number})",
    )


async def test_a_second_start_finds_data_password_and_port(folder: Path) -> None:
    async with started(PrivatePostgres(folder)) as server:
        await remember(server, 1)
        url, pid = server.url(), server.pid
    assert not processes.is_alive(pid)
    async with started(PrivatePostgres(folder)) as again:
        assert again.url() == url
        assert await numbers(again) == [1]


async def test_a_killed_server_has_every_committed_row_after_its_restart(folder: Path) -> None:
    async with started(PrivatePostgres(folder)) as server:
        url = server.url()
        await remember(server, 1)
        server.kill()
        assert not server.running
        await server.start()
        await remember(server, 2)
        # Killed by somebody else, with a statement under way in a worker.
        connection = await asyncpg.connect(url)
        waiting = asyncio.create_task(connection.execute("select pg_sleep(60)"))
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        assert await processes.gone([pid], within_seconds=90)
        with pytest.raises(LocalServerNotRunningError, match="not running"):
            assert server.pid
        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await waiting
        connection.terminate()
        await server.start()
        assert server.url() == url
        assert await numbers(server) == [1, 2]


async def test_a_restart_keeps_the_port_and_the_rows(folder: Path) -> None:
    async with started(PrivatePostgres(folder)) as server:
        await remember(server, 1)
        url, pid = server.url(), server.pid
        await server.restart()
        assert server.url() == url
        assert server.pid != pid
        assert await numbers(server) == [1]


async def test_servers_started_at_once_do_not_collide(server_directory: Path) -> None:
    servers = [
        PrivatePostgres(server_directory / f"postgres-{secrets.token_hex(4)}") for _ in range(4)
    ]
    await asyncio.gather(*(server.start() for server in servers))
    try:
        assert len({server.port for server in servers}) == len(servers)
        for number, server in enumerate(servers):
            await remember(server, number)
        assert [await numbers(server) for server in servers] == [[0], [1], [2], [3]]
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


async def test_settings_reach_the_server_and_databases_can_be_made(folder: Path) -> None:
    async with started(PrivatePostgres(folder, settings={"commit_delay": "123"})) as server:
        await server.ensure_database('odd "name"/é')
        await server.ensure_database('odd "name"/é')
        connection = await asyncpg.connect(server.url('odd "name"/é'))
        try:
            assert await connection.fetchval("show commit_delay") == "123"
            assert await connection.fetchval("select current_database()") == 'odd "name"/é'
            assert await connection.fetchval("show server_encoding") == "UTF8"
        finally:
            await connection.close()


async def test_the_server_listens_on_loopback_and_wants_its_password(folder: Path) -> None:
    async with started(PrivatePostgres(folder)) as server:
        connection = await asyncpg.connect(server.url())
        try:
            assert await connection.fetchval("show listen_addresses") == LOOPBACK
            assert await connection.fetchval("show unix_socket_directories") == ""
        finally:
            await connection.close()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(
                host=LOOPBACK, port=server.port, user="postgres", password="guess", ssl=False
            )
    assert modes(folder) == {"lock": 0o600, "password": 0o600, "server.json": 0o600}


def modes(folder: Path) -> dict[str, int]:
    """The modes of the files in a state directory, but for the log."""
    files = [path for path in folder.iterdir() if path.is_file() and path.suffix != ".log"]
    return {path.name: path.stat().st_mode & 0o777 for path in files}


async def test_a_server_is_out_of_reach_of_a_terminals_interrupt(folder: Path) -> None:
    async with started(PrivatePostgres(folder)) as server:
        assert os.getsid(server.pid) != os.getsid(0)
        assert os.getpgid(server.pid) != os.getpgrp()


async def test_one_folder_has_one_owner(folder: Path) -> None:
    async with started(PrivatePostgres(folder)):
        with pytest.raises(LocalStateInUseError, match=str(os.getpid())) as caught:
            await PrivatePostgres(folder).start()
        assert caught.value.code == "local_state_in_use"


async def test_a_foreign_server_on_the_remembered_port_is_noticed(folder: Path) -> None:
    async with started(PrivatePostgres(folder)) as server:
        await remember(server, 1)
        port = server.port
    with listening(port):
        async with started(PrivatePostgres(folder)) as server:
            moved = server.port
            assert moved != port
            assert await numbers(server) == [1]
    async with started(PrivatePostgres(folder)) as server:
        assert server.port == moved  # remembered in its turn


async def test_a_port_lost_to_another_server_while_starting_is_replaced(
    folder: Path, private_postgres: PrivatePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []

    def lose_the_first(preferred: int | None) -> PortReservation:
        # As if the other server had bound it between our look and our server's bind.
        one = reserve_port(preferred)
        if not chosen:
            one.port = private_postgres.port
        chosen.append(one.port)
        return one

    monkeypatch.setattr("tenure.cli.local.postgres.reserve_port", lose_the_first)
    async with started(PrivatePostgres(folder)) as server:
        assert chosen[0] == private_postgres.port
        assert server.port == chosen[-1] != private_postgres.port
        await remember(server, 1)


async def test_a_port_asked_for_by_number_is_refused_when_taken(
    folder: Path, private_postgres: PrivatePostgres
) -> None:
    server = PrivatePostgres(folder, port=private_postgres.port)
    with pytest.raises(LocalPortTakenError):
        await server.start()
    assert not server.running
    # The failed start holds nothing.
    async with started(PrivatePostgres(folder)):
        pass


async def test_a_stale_pid_file_with_a_live_number_does_not_keep_the_server_down(
    folder: Path,
) -> None:
    async with started(PrivatePostgres(folder)) as server:
        await remember(server, 1)
        pid_file = server.data_directory / "postmaster.pid"
        lines = pid_file.read_text().split("\n")
        server.kill()
        # The number now belongs to somebody else, whom nobody may end.
        somebody = await asyncio.create_subprocess_exec("sleep", "600")
        try:
            pid_file.write_text("\n".join([str(somebody.pid), *lines[1:]]))
            await server.start()
            assert await numbers(server) == [1]
            assert somebody.returncode is None
        finally:
            somebody.kill()
            await somebody.wait()


async def test_a_server_ends_when_its_owner_is_killed(folder: Path) -> None:
    with owner(PrivatePostgres, folder, servers_end_with_it=True) as (process, pid):
        assert processes.is_alive(pid)
        process.kill()
        assert await processes.gone([pid], within_seconds=90)


async def test_a_server_left_behind_is_ended_by_the_next_start(folder: Path) -> None:
    with owner(PrivatePostgres, folder, servers_end_with_it=False) as (process, pid):
        process.kill()
        process.wait()
    assert processes.is_alive(pid)
    async with started(PrivatePostgres(folder)) as server:
        assert not processes.is_alive(pid)
        await remember(server, 1)


async def test_a_server_left_behind_can_be_ended_without_a_start(folder: Path) -> None:
    with owner(PrivatePostgres, folder, servers_end_with_it=False) as (process, pid):
        with pytest.raises(LocalStateInUseError):
            await PrivatePostgres(folder).end_abandoned()
        process.kill()
        process.wait()
    await PrivatePostgres(folder).end_abandoned()
    assert not processes.is_alive(pid)


def usable_accounts() -> list[ServerAccount]:
    """Every way in which this process can run PostgreSQL; at least one."""
    if os.geteuid() != 0:
        return [accounts.own_account()]
    ways = [accounts.mapped_account(), accounts.nobody_account()]
    return [account for account in ways if accounts.works(account)]


@pytest.mark.parametrize("account", usable_accounts(), ids=lambda one: (*one.prefix, "own")[0])
async def test_every_account_that_can_run_the_server_keeps_its_data(
    account: ServerAccount, folder: Path
) -> None:
    async with started(PrivatePostgres(folder, account=account)) as server:
        await remember(server, 1)
        server.kill()
        await server.start()
        assert await numbers(server) == [1]
    # Whoever ran it before, the account of choice can go on.
    async with started(PrivatePostgres(folder)) as server:
        assert await numbers(server) == [1]


async def test_binaries_that_the_servers_account_cannot_reach_are_copied(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in an environment below the home folder of root.
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    installed = await find_postgres()
    for part in {part.split("/")[0] for part in installed.parts}:
        (closed / part).symlink_to(installed.root / part)
    moved = replace(
        installed,
        root=closed,
        directory=closed / installed.directory.relative_to(installed.root),
    )
    monkeypatch.setattr("tenure.cli.local.binaries._postgres_candidates", lambda: [moved])
    account = usable_accounts()[-1]
    async with started(PrivatePostgres(folder, account=account)) as server:
        await remember(server, 1)
        assert (folder / f"postgresql-{installed.major}").exists() == account.is_another


async def test_missing_binaries_are_named_with_what_to_do(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_PG_BIN", str(tmp_path))
    with pytest.raises(LocalServerMissingError, match="TENURE_PG_BIN") as caught:
        await PrivatePostgres(folder).start()
    assert caught.value.code == "local_server_missing"
    monkeypatch.delenv("TENURE_PG_BIN")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("tenure.cli.local.binaries._SYSTEM_POSTGRES", tmp_path / "nothing")
    with pytest.raises(LocalServerMissingError, match=r"tenure\[local\]"):
        await PrivatePostgres(folder).start()


async def test_a_server_too_old_for_the_coordinator_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("postgres", "initdb"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 16.3'\n")
        program.chmod(0o755)
    monkeypatch.setenv("TENURE_PG_BIN", str(tmp_path))
    with pytest.raises(LocalServerVersionError, match="17 or newer"):
        await PrivatePostgres(folder).start()


async def test_data_of_another_version_are_left_alone(folder: Path) -> None:
    async with started(PrivatePostgres(folder)) as server:
        version = server.data_directory / "PG_VERSION"
    real = version.read_text()
    version.write_text("12\n")
    with pytest.raises(LocalServerVersionError, match="PostgreSQL 12"):
        await PrivatePostgres(folder).start()
    version.write_text(real)
    async with started(PrivatePostgres(folder)):
        pass


async def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    server = PrivatePostgres(folder, settings={"shared_buffers": "no number"})
    with pytest.raises(LocalServerFailedError, match="shared_buffers"):
        await server.start()
    with pytest.raises(LocalServerNotRunningError):
        server.url()


async def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalStateUnusableError, match="file"):
        await PrivatePostgres(tmp_path / "file" / "state").start()
