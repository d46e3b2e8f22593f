"""Restored and copied databases: nothing is granted on lost history, and no two restores share an
epoch. On real servers, whose folders are copied as a backup or a disk snapshot would."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import epoch_of
from tenure.coordinator.core.commands import Renew
from tests.support.authority import Bench, Held, replica
from tests.support.clusters import ShiftedClock, copied, on, started
from tests.support.isolation import DatabaseServer, FreshDatabase
from tests.support.services import local_postgres


@dataclass
class Backup:
    """A folder as it was while one attempt had been granted, and what has happened since."""

    folder: Path
    database: FreshDatabase
    held: Held  # granted after the copy was made, in the original's time
    earlier: Held


@pytest.fixture
async def backup(server_directory: Path) -> AsyncIterator[Backup]:
    async with local_postgres(server_directory) as original:
        server = DatabaseServer(original.url())
        await server.prepare()
        database = await server.create_migrated(f"restored_{secrets.token_hex(4)}")
        async with replica(database) as bench:
            await bench.register(slots=9)
            earlier = await bench.running()
        original.kill()
        folder = await copied(original.directory)
        await original.start()
        async with replica(database) as bench:
            # History that the copy does not have: the next attempt of the same task.
            held = await granted_again(bench, earlier)
            assert held.fencing_token > earlier.fencing_token
        original.kill()
        await original.stop()
        yield Backup(folder, database, held, earlier)


@asynccontextmanager
async def restored(backup: Backup, clock: ShiftedClock | None = None) -> AsyncIterator[Bench]:
    """A server over a copy of the backup, and a replica that was told nothing."""
    environment = None if clock is None else clock.environment
    folder = await copied(backup.folder)
    async with (
        started(folder, environment=environment) as server,
        replica(on(server, backup.database)) as bench,
    ):
        yield bench


async def granted_again(bench: Bench, earlier: Held) -> Held:
    """The next attempt of a task whose lease has run out, on the same node."""
    await bench.authority.renew([], earlier.incarnation)
    await bench.end_lease(earlier)
    await bench.expire(earlier.task_id)
    return await bench.assigned(earlier.task_id)


async def presents(bench: Bench, held: Held) -> str | None:
    """A node that was cut off renews its lease."""
    (outcome,) = await bench.authority.renew([bench.command(Renew, held)], held.incarnation)
    return None if outcome.refused is None else outcome.refused.code


@pytest.mark.requirement("LEASE-04")
async def test_a_copy_made_after_a_crash_is_refused_once_one_witness_reconnects(
    backup: Backup,
) -> None:
    async with restored(backup) as bench:
        # Identifier and timeline are the original's, so the copy knows nothing of it.
        assert (await bench.authority.standing()).epoch == 1
        assert await presents(bench, backup.held) == Code.AUTHORITY_HISTORY_LOST
        assert await submitted(bench) == Code.AUTHORITY_HISTORY_LOST
        await bench.scheduler.step()
        assert await bench.owner.fetchval("select max(generation) from tenure.tasks") == 1
        recovered = "select epoch from tenure.recover_authority('ops', 'restored', $1)"
        assert await bench.owner.fetchval(recovered, 1) is not None
        # T16: what is granted now is above everything that was; the witness's token is below.
        successor = await granted_again(bench, backup.earlier)
        assert successor.fencing_token > backup.held.fencing_token
        assert await presents(bench, backup.held) == Code.UNKNOWN_ATTEMPT


async def submitted(bench: Bench) -> str | None:
    (outcome,) = await bench.authority.submit([bench.submission()])
    return None if outcome.refused is None else outcome.refused.code


@pytest.mark.requirement("LEASE-04")
async def test_two_restores_of_one_backup_never_share_an_epoch(
    backup: Backup, server_directory: Path
) -> None:
    """One after the other, and the second hears of nothing that the first one granted."""
    clock = ShiftedClock(server_directory / f"clock-{secrets.token_hex(4)}")
    recovered = "select * from tenure.recover_authority('ops', 'restored', null)"
    epochs: list[int] = []
    tokens: list[int] = []
    for round_ in range(2):
        clock.shift(f"+{round_ * 20}m")
        async with restored(backup, clock) as bench:
            assert await presents(bench, backup.held) == Code.AUTHORITY_HISTORY_LOST
            (early,) = await bench.owner.fetch(recovered)
            assert early["epoch"] is None
            assert 0 < early["wait_seconds"] <= 600
            clock.shift(f"+{round_ * 20 + 10}m")
            (done,) = await bench.owner.fetch(recovered)
            epochs.append(done["epoch"])
            held = await granted_again(bench, backup.earlier)
            assert epoch_of(held.fencing_token) == epochs[-1]
            tokens.append(held.fencing_token)
    assert epochs[0] < epochs[1]
    assert backup.held.fencing_token < tokens[0] < tokens[1]
