"""Of all attempts of a task one commits its outputs, and readers see these alone (LEASE-10)."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import LocalStore

from tenure.cli.chaos.toxic import CutNow, toxic
from tenure.contract.ids import TaskId
from tenure.contract.scope import Scope
from tenure.executor.context import Context
from tenure.executor.errors import (
    AuthorityOver,
    EffectConflict,
    GuardUnavailable,
    OutOfScope,
    StaleToken,
)
from tenure.executor.guards.objects import (
    ObjectGuard,
    Outputs,
    OutputsDamaged,
    Reference,
    Seal,
    read,
    resolve,
)
from tenure.executor.scope import GrantedScope
from tests.support.leases import attempt
from tests.support.s3 import S3Server


@pytest.fixture(params=["folder", "S3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "folder":
        return LocalStore(tmp_path / "objects", mkdir=True)
    server: S3Server = request.getfixturevalue("object_server")
    return server.store()


@pytest.fixture
def guard(store: Any) -> ObjectGuard:
    return ObjectGuard(store)


def successor_of(context: Context[None], generation: int = 2) -> Context[None]:
    return attempt(context.task_id, generation)


async def write(guard: ObjectGuard, context: Context[None], **objects: bytes) -> Reference:
    """Commit these objects, unless it was done before; what is committed."""
    async with guard.outputs(context) as outputs:
        if not outputs.already_done:
            for name, data in objects.items():
                await outputs.put(f"{name}.bin", data)
    return outputs.reference


async def content(store: Any, reference: Reference) -> dict[str, bytes]:
    manifest = await resolve(store, reference)
    return {entry.name: await read(store, entry) for entry in manifest.entries}


async def test_what_was_committed_is_read_by_the_reference_and_done_once(
    guard: ObjectGuard, store: Any
) -> None:
    context = attempt()
    await guard.raise_fence(context)
    reference = await write(guard, context, a=b"one", b=b"two")
    assert await content(store, reference) == {"a.bin": b"one", "b.bin": b"two"}
    assert await write(guard, context, a=b"again") == reference
    successor = successor_of(context)
    await guard.raise_fence(successor)
    assert await write(guard, successor, a=b"again") == reference
    manifest = await resolve(store, reference)
    assert (manifest.task_id, manifest.attempt_id) == (context.task_id, context.attempt_id)


@pytest.mark.requirement("LEASE-10")
async def test_an_old_holder_is_refused_by_the_store_although_its_successor_wrote_nothing_yet(
    guard: ObjectGuard, store: Any
) -> None:
    """It is past its own look at the others: only the create-only put can refuse it."""
    context = attempt()
    successor = successor_of(context)
    await guard.raise_fence(context)

    async def zombie() -> None:
        async with guard.outputs(context) as outputs:
            await outputs.put("a.bin", b"old")
            await guard.raise_fence(successor)

    with pytest.raises(StaleToken) as refused:
        await zombie()
    assert refused.value.seen_token == successor.fencing_token
    reference = await write(guard, successor, a=b"new")
    assert await content(store, reference) == {"a.bin": b"new"}
    with pytest.raises(StaleToken):
        await guard.raise_fence(context)
    with pytest.raises(StaleToken):
        await write(guard, context, a=b"old")


@pytest.mark.requirement("LEASE-10")
async def test_an_attempt_that_comes_late_to_its_own_fence_is_refused(guard: ObjectGuard) -> None:
    context = attempt()
    await guard.raise_fence(successor_of(context))
    with pytest.raises(StaleToken):
        await guard.raise_fence(context)
    with pytest.raises(StaleToken):
        await write(guard, context, a=b"old")


@pytest.mark.requirement("LEASE-10")
@pytest.mark.parametrize("_", range(5))
async def test_of_two_attempts_that_commit_at_once_one_is_refused_or_adopts(
    guard: ObjectGuard, store: Any, _: int
) -> None:
    context = attempt()
    holders = [context, successor_of(context), successor_of(context, 3)]

    async def whole(holder: Context[None]) -> Reference:
        await guard.raise_fence(holder)
        return await write(guard, holder, a=holder.attempt_id.encode())

    results = await asyncio.gather(*map(whole, holders), return_exceptions=True)
    stale = [each for each in results if isinstance(each, StaleToken)]
    committed = {each.key for each in results if isinstance(each, Reference)}
    assert len(stale) + sum(isinstance(each, Reference) for each in results) == 3, results
    assert len(committed) == 1, results
    assert isinstance(results[-1], Reference), "nobody is later than the last"


async def test_a_failed_body_commits_nothing_and_may_be_repeated(
    guard: ObjectGuard, store: Any
) -> None:
    context = attempt()

    async def fails() -> None:
        async with guard.outputs(context) as outputs:
            await outputs.put("a.bin", b"one")
            raise LookupError

    with pytest.raises(LookupError):
        await fails()
    reference = await write(guard, context, a=b"one", b=b"two")
    assert set(await content(store, reference)) == {"a.bin", "b.bin"}


async def test_a_name_is_written_once(guard: ObjectGuard) -> None:
    context = attempt()
    kept: list[Outputs] = []

    async def handler() -> None:
        async with guard.outputs(context) as outputs:
            kept.append(outputs)
            await outputs.put("a.bin", b"one")
            await outputs.put("a.bin", b"one")
            await outputs.put("a.bin", b"two")

    with pytest.raises(EffectConflict):
        await handler()
    with pytest.raises(RuntimeError, match="end of their block"):
        _ = kept[0].reference


@pytest.mark.parametrize("name", ["", "../a", "a/../b", "/a", "a//b", "a b", "ü", ".", "a/"])
async def test_a_name_that_could_leave_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    guard = ObjectGuard(LocalStore(tmp_path))
    with pytest.raises(ValueError, match="is not made of"):
        async with guard.outputs(attempt()) as outputs:
            await outputs.put(name, b"")
    with pytest.raises(ValueError, match="is not made of"):
        ObjectGuard(LocalStore(tmp_path), prefix=name)


async def test_only_declared_operations_are_committed_and_each_once(store: Any) -> None:
    guard = ObjectGuard(store, operations=("images", "text"))
    context = attempt()
    with pytest.raises(ValueError, match="lack 'outputs'"):
        await write(guard, context, a=b"one")
    references = []
    for operation in ("images", "text"):
        async with guard.outputs(context, operation=operation) as outputs:
            await outputs.put("a", operation.encode())
        references.append(outputs.reference)
    found = [await content(store, each) for each in references]
    assert found == [{"a": b"images"}, {"a": b"text"}]


async def test_readers_notice_what_was_not_delivered(guard: ObjectGuard, store: Any) -> None:
    context = attempt()
    reference = await write(guard, context, a=b"one")
    (entry,) = (await resolve(store, reference)).entries
    other = await write(guard, attempt(), a=b"other")
    for wrong in (
        Reference(key=reference.key, sha256=other.sha256),
        Reference(key="nowhere", sha256=reference.sha256),
    ):
        with pytest.raises(OutputsDamaged):
            await resolve(store, wrong)
    obstore.put(store, entry.key, b"changed")
    with pytest.raises(OutputsDamaged):
        await read(store, entry)
    obstore.delete(store, entry.key)
    with pytest.raises(OutputsDamaged):
        await read(store, entry)


@pytest.mark.requirement("LEASE-11")
async def test_readers_take_no_outputs_that_the_lease_does_not_permit(
    guard: ObjectGuard, store: Any
) -> None:
    """Whoever wrote them did not look at a scope; the reader has it from the authority."""
    scope = GrantedScope(Scope(operations=("outputs",), objects=("orders/{id}",)), {"id": 17})
    references = {}
    for key in ("orders/17", "orders/18", ""):
        async with guard.outputs(attempt(), key=key) as outputs:
            await outputs.put("a.bin", key.encode())
        references[key] = outputs.reference
    assert (await resolve(store, references["orders/17"], scope=scope)).target == "orders/17"
    for key in ("orders/18", ""):
        with pytest.raises(OutOfScope):
            await resolve(store, references[key], scope=scope)
        assert (await resolve(store, references[key])).target == key
    other = GrantedScope(Scope(operations=("images",)), {})
    with pytest.raises(OutOfScope):
        await resolve(store, references["orders/17"], scope=other)


async def test_readers_take_no_outputs_of_another_task(guard: ObjectGuard, store: Any) -> None:
    context = attempt()
    own = await write(guard, context, a=b"own")
    another = await write(guard, attempt(), a=b"another")
    assert (await resolve(store, own, task_id=context.task_id)).task_id == context.task_id
    with pytest.raises(OutputsDamaged, match="another task"):
        await resolve(store, another, task_id=context.task_id)
    with pytest.raises(OutputsDamaged, match="another task"):
        await guard.prune(TaskId(context.task_id), another)
    assert await content(store, own) == {"a.bin": b"own"}, "nothing was deleted"


async def test_readers_take_no_manifest_that_reaches_out_of_its_attempt_s_keys(
    guard: ObjectGuard, store: Any
) -> None:
    """Made up by a program that may write to the bucket, and delivered by a handler."""
    context = attempt()
    reference = await write(guard, context, a=b"own")
    manifest = await resolve(store, reference)
    (own,) = manifest.entries
    (foreign,) = (await resolve(store, await write(guard, attempt(), a=b"another"))).entries
    folder = own.key.rpartition("/")[0]
    commits = reference.key.removesuffix(f"outputs/{context.fencing_token:016d}")
    made_up = {
        "no manifest": ("images", Seal(sealed_by=1).model_dump_json().encode()),
        "another token's": ("images", manifest.to_bytes()),
    }
    for number, entry in enumerate(
        (
            foreign,
            own.model_copy(update={"key": f"{folder}/b.bin"}),
            own.model_copy(update={"key": f"{folder}/../b.bin", "name": "../b.bin"}),
            own.model_copy(update={"key": own.key.replace("/data/", "/files/")}),
        )
    ):
        forged = manifest.model_copy(update={"operation": f"op{number}", "entries": (entry,)})
        made_up[f"entry {number}"] = (f"op{number}", forged.to_bytes())
    for what, (operation, said) in made_up.items():
        key = f"{commits}{operation}/{context.fencing_token:016d}"
        obstore.put(store, key, said)
        assert await damaged(store, key, said), what
    empty = manifest.model_copy(update={"operation": "empty", "entries": ()}).to_bytes()
    key = f"{commits}empty/{context.fencing_token:016d}"
    obstore.put(store, key, empty)
    assert not await damaged(store, key, empty)


async def damaged(store: Any, key: str, said: bytes) -> bool:
    """Whether a reader takes what is under the key, and was delivered, for no manifest."""
    try:
        await resolve(store, Reference(key=key, sha256=hashlib.sha256(said).hexdigest()))
    except OutputsDamaged:
        return True
    return False


async def test_what_other_attempts_left_is_pruned_and_what_was_delivered_stays(
    guard: ObjectGuard, store: Any
) -> None:
    context = attempt()
    successor = successor_of(context)

    async def left_behind() -> None:
        async with guard.outputs(context) as outputs:
            await outputs.put("a.bin", b"old")
            await guard.raise_fence(successor)

    with pytest.raises(StaleToken):
        await left_behind()
    reference = await write(guard, successor, a=b"new")
    gone = await guard.prune(TaskId(context.task_id), reference)
    assert gone == 4, "two markers, a seal, and what the older attempt wrote"
    assert await content(store, reference) == {"a.bin": b"new"}
    assert await guard.prune(TaskId(context.task_id), None) == 2


async def test_handlers_in_threads_have_the_same(guard: ObjectGuard, store: Any) -> None:
    context = attempt()

    def handler() -> Reference:
        guard.raise_fence_now(context)
        with guard.outputs_now(context) as outputs:
            outputs.put_now("a.bin", b"one")
        return outputs.reference

    assert await content(store, await asyncio.to_thread(handler)) == {"a.bin": b"one"}


class OneAnswerLost:
    """Cuts the connection that commits when the answer comes."""

    lost = 0

    def __init__(self) -> None:
        self._commits = False

    def to_server(self, data: bytes) -> bytes:
        head = data[: data.find(b"\r\n")]
        self._commits = self._commits or (head.startswith(b"PUT") and b"/commits/" in head)
        return data

    def to_client(self, data: bytes) -> bytes:
        if self._commits and OneAnswerLost.lost == 0:
            OneAnswerLost.lost += 1
            raise CutNow
        return data


async def test_a_commit_whose_answer_was_lost_is_found_by_its_repetition(
    object_server: S3Server,
) -> None:
    OneAnswerLost.lost = 0
    context = attempt()
    direct = object_server.store()
    async with toxic(object_server.endpoint, OneAnswerLost) as proxy:
        through = S3Server(proxy.url, object_server.key_id, object_server.secret).store()
        guard = ObjectGuard(through)
        with pytest.raises(GuardUnavailable):
            await write(guard, context, a=b"one")
        reference = await write(guard, context, a=b"one")
    assert OneAnswerLost.lost == 1
    assert await content(direct, reference) == {"a.bin": b"one"}


async def test_a_store_that_cannot_be_used_may_be_tried_again(object_server: S3Server) -> None:
    wrong = S3Server(object_server.endpoint, object_server.key_id, "wrong").store()
    away = S3Server("http://127.0.0.1:1", "a", "b").store()
    for store in (wrong, away):
        with pytest.raises(GuardUnavailable):
            await ObjectGuard(store).raise_fence(attempt())


@pytest.mark.requirement("LEASE-09")
async def test_an_attempt_whose_time_is_up_by_its_own_clock_commits_nothing(
    guard: ObjectGuard, store: Any
) -> None:
    over = attempt(remaining_seconds=0.0)
    with pytest.raises(AuthorityOver):
        await guard.raise_fence(over)
    with pytest.raises(AuthorityOver):
        await write(guard, over, a=b"late")


def test_a_seal_is_no_manifest() -> None:
    assert Seal(sealed_by=3).model_dump() == {"sealed_by": 3}
