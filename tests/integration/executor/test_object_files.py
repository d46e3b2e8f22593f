"""Files in an object store, in parts: what is committed is what the file held (LEASE-10)."""

import os
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import LocalStore

from tenure.contract.ids import TaskId
from tenure.executor.context import Context
from tenure.executor.errors import AuthorityOver, EffectConflict, StaleToken
from tenure.executor.guards import objects
from tenure.executor.guards.objects import (
    ObjectGuard,
    OutputsDamaged,
    Reference,
    listed,
    read,
    resolve,
    save,
)
from tests.support.leases import attempt
from tests.support.s3 import S3Server

LARGE = 20_000_000  # more than two parts


@pytest.fixture(params=["folder", "S3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "folder":
        return LocalStore(tmp_path / "objects", mkdir=True)
    server: S3Server = request.getfixturevalue("object_server")
    return server.store()


@pytest.fixture
def guard(store: Any) -> ObjectGuard:
    return ObjectGuard(store)


async def write(guard: ObjectGuard, context: Context[None], **files: Path) -> Reference:
    async with guard.outputs(context) as outputs:
        if not outputs.already_done:
            for name, path in files.items():
                await outputs.put_file(name, path)
    return outputs.reference


def a_file(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(size))
    return path


@pytest.mark.requirement("LEASE-10")
@pytest.mark.parametrize("size", [LARGE, 3, 0])
async def test_what_a_file_held_is_what_is_read(
    guard: ObjectGuard, store: Any, tmp_path: Path, size: int
) -> None:
    source, target = a_file(tmp_path / "source", size), tmp_path / "target"
    context = attempt()
    await guard.raise_fence(context)
    reference = await write(guard, context, film=source)
    (entry,) = (await resolve(store, reference)).entries
    assert (entry.name, entry.size) == ("film", size)
    await save(store, entry, target)
    assert target.read_bytes() == source.read_bytes()
    assert await read(store, entry) == source.read_bytes()
    successor = attempt(context.task_id, 2)
    await guard.raise_fence(successor)
    assert await write(guard, successor, film=tmp_path / "not there any more") == reference


@pytest.mark.requirement("LEASE-10")
async def test_an_old_holder_that_writes_a_file_slowly_is_refused_at_its_commit(
    guard: ObjectGuard, store: Any, tmp_path: Path
) -> None:
    source = a_file(tmp_path / "source", LARGE)
    old = attempt()
    successor = attempt(old.task_id, 2)

    async def late() -> None:
        async with guard.outputs(old) as outputs:
            await guard.raise_fence(successor)
            await outputs.put_file("film", source)

    with pytest.raises(StaleToken):
        await late()
    reference = await write(guard, successor, film=source)
    assert (await resolve(store, reference)).fencing_token == successor.fencing_token


@pytest.mark.requirement("LEASE-09")
async def test_a_file_is_not_written_to_its_end_once_the_authority_is_over(
    guard: ObjectGuard, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = attempt()
    asked = 0

    def until_the_third_part() -> None:
        nonlocal asked
        asked += 1
        if asked > 3:
            raise AuthorityOver("the time is up")

    async def write_it() -> None:
        async with guard.outputs(context) as outputs:
            monkeypatch.setattr(context, "check_authority", until_the_third_part)
            await outputs.put_file("film", a_file(tmp_path / "source", LARGE))

    with pytest.raises(AuthorityOver):
        await write_it()
    assert listed(store, f"tenure/{context.task_id}/files") == []


async def test_a_file_that_changes_while_it_is_written_is_not_committed(
    guard: ObjectGuard, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = attempt()
    source = a_file(tmp_path / "source", 10)
    monkeypatch.setattr(objects, "digest_of_file", lambda path: ("0" * 64, 10))
    with pytest.raises(EffectConflict, match="changed"):
        await write(guard, context, film=source)
    assert listed(store, f"tenure/{context.task_id}/commits") == []


async def test_a_name_is_one_file(guard: ObjectGuard, tmp_path: Path) -> None:
    one, other = a_file(tmp_path / "one", 10), a_file(tmp_path / "other", 10)
    async with guard.outputs(attempt()) as outputs:
        entry = await outputs.put_file("film", one)
        assert await outputs.put_file("film", one) == entry
        with pytest.raises(EffectConflict, match="twice"):
            await outputs.put_file("film", other)
        with pytest.raises(ValueError, match="slashes"):
            await outputs.put_file("../film", one)


async def test_a_reader_keeps_nothing_of_what_was_damaged(
    guard: ObjectGuard, store: Any, tmp_path: Path
) -> None:
    context = attempt()
    reference = await write(guard, context, film=a_file(tmp_path / "source", 10))
    (entry,) = (await resolve(store, reference)).entries
    obstore.put(store, entry.key, b"changed")
    with pytest.raises(OutputsDamaged):
        await save(store, entry, tmp_path / "target")
    obstore.delete(store, entry.key)
    with pytest.raises(OutputsDamaged):
        await save(store, entry, tmp_path / "target")
    assert not {"target", "target.part"} & set(os.listdir(tmp_path))
    assert await guard.prune(TaskId(context.task_id), None) == 2, "marker and manifest"
