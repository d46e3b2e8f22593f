"""Outputs in an object store, of which only one attempt's become visible (LEASE-10).

An object store cannot compare tokens. What it can do is refuse to write a key that is there, and
that is enough. Under ``PREFIX/TASK/``:

    attempts/TOKEN            an attempt that may begin, written before its handler has control
    data/TOKEN/OPERATION/…    what an attempt wrote: its own keys, each written once
    files/TOKEN/OPERATION/…   the same, in parts: the name has the content's SHA-256 in it
    commits/OPERATION/TOKEN   what became of an attempt: the manifest that it committed, or the seal
                              of a successor

Every put is create-only. An attempt writes its own marker first and then looks for others: of two,
at least one sees the other. Who sees a larger token is refused. Who sees smaller ones seals their
commits; whoever of the two comes first to that key has it, and the store itself refuses the other.

    async with guard.outputs(context) as outputs:
        if not outputs.already_done:
            await outputs.put("small.png", data)
    return Done(images=outputs.reference)

The reference goes into the task's output, and so into its receipt: readers resolve that one
manifest and nothing else. ``Store`` is one of obstore's: a local folder, S3, Google, Azure. Needs
the extra ``objects``.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.exceptions import PreconditionError as StorePreconditionError
from obstore.store import LocalStore, ObjectStore, from_url
from pydantic import BaseModel, ValidationError

from tenure.contract.ids import TaskId
from tenure.executor.context import Context
from tenure.executor.errors import (
    EffectConflict,
    ExecutorError,
    GuardUnavailable,
    StaleToken,
)
from tenure.executor.guards.object_files import digest_of_file, download, upload
from tenure.executor.guards.object_manifest import (
    Entry,
    Manifest,
    OutputsDamaged,
    Reference,
    Seal,
    check_place,
    checked_name,
    folders,
)
from tenure.executor.scope import GrantedScope

Store: TypeAlias = ObjectStore

__all__ = [
    "Entry",
    "Manifest",
    "ObjectGuard",
    "Outputs",
    "OutputsDamaged",
    "Reference",
    "Seal",
    "Store",
    "create",
    "listed",
    "open_store",
    "read",
    "read_now",
    "resolve",
    "resolve_now",
    "save",
    "save_now",
]

DEFAULT_OPERATION: Final = "outputs"
_ERRORS: Final = (BaseError, OSError)
_EXISTS: Final = (AlreadyExistsError, StorePreconditionError)


class ObjectGuard:
    """Over a store. ``prefix`` is the folder of all its tasks; ``operations`` are the names under
    which a task commits, each once."""

    def __init__(
        self,
        store: Store,
        *,
        prefix: str = "tenure",
        operations: Sequence[str] = (DEFAULT_OPERATION,),
    ) -> None:
        self._store = store
        self._prefix = checked_name(prefix)
        self._operations = tuple(checked_name(operation) for operation in operations)

    async def raise_fence(self, context: Context[Any]) -> None:
        """Shut every older attempt of the task out, before the handler begins.

        Raises StaleToken, AuthorityOver, or GuardUnavailable (may be repeated).
        """
        await asyncio.to_thread(self.raise_fence_now, context)

    def raise_fence_now(self, context: Context[Any]) -> None:
        """As ``raise_fence``, in the calling thread."""
        context.check_authority()
        folder = self._folder(context.task_id)
        with _reached():
            for older in self._attempts_before(context, folder):
                for operation in self._operations:
                    self._seal(context, f"{folder}/commits/{operation}/{_token(older)}")

    def _attempts_before(self, context: Context[Any], folder: str) -> list[int]:
        """The tokens of older attempts. Raises StaleToken when there is a later one."""
        own = f"{folder}/attempts/{_token(context.fencing_token)}"
        create(self._store, own, context.attempt_id.encode())  # first: of two, one sees the other
        found = [int(key.rpartition("/")[2]) for key in listed(self._store, f"{folder}/attempts")]
        if max(found) > context.fencing_token:
            raise _stale(context, max(found))
        return sorted(token for token in found if token < context.fencing_token)

    def _seal(self, context: Context[Any], key: str) -> None:
        """Whoever is there first has it: the older attempt's manifest, or this seal."""
        create(self._store, key, _dumped(Seal(sealed_by=context.fencing_token)))

    @asynccontextmanager
    async def outputs(
        self, context: Context[Any], *, operation: str = DEFAULT_OPERATION, key: str = ""
    ) -> AsyncIterator["Outputs"]:
        """A block that collects objects and commits them together at its end. ``key`` is what they
        belong to, where the lease's scope names objects.

        Raises OutOfScope, StaleToken when a later attempt exists, AuthorityOver, EffectConflict for
        a name that is used twice, GuardUnavailable when the store cannot be reached: repeat the
        block. Errors of the body pass through, and nothing is committed.
        """
        async with context.side_effect(operation, key=key):
            outputs = await asyncio.to_thread(self._begin, context, operation, key)
            yield outputs
            if not outputs.already_done:
                context.check_authority()
                await asyncio.to_thread(outputs.commit_now)

    @contextmanager
    def outputs_now(
        self, context: Context[Any], *, operation: str = DEFAULT_OPERATION, key: str = ""
    ) -> Iterator["Outputs"]:
        """As ``outputs``, for handlers in threads: use ``put_now`` in it."""
        with context.side_effect(operation, key=key):
            outputs = self._begin(context, operation, key)
            yield outputs
            if not outputs.already_done:
                context.check_authority()
                outputs.commit_now()

    def _begin(self, context: Context[Any], operation: str, target: str) -> "Outputs":
        if operation not in self._operations:
            raise ValueError(f"operations={self._operations} of the guard lack {operation!r}")
        folder = self._folder(context.task_id)
        with _reached():
            for older in reversed(self._attempts_before(context, folder)):
                key = f"{folder}/commits/{operation}/{_token(older)}"
                self._seal(context, key)
                earlier = _read(self._store, key)
                if _sealed_by(earlier) is None:
                    return Outputs(
                        self._store, context, folder, operation, target, _named(key, earlier)
                    )
            own = folders(folder, context.fencing_token, operation)[0]
            content = _read_if_there(self._store, own)
        if content is None:
            return Outputs(self._store, context, folder, operation, target)
        seal = _sealed_by(content)
        if seal is not None:
            raise _stale(context, seal)
        return Outputs(self._store, context, folder, operation, target, _named(own, content))

    async def prune(self, task_id: TaskId, keep: Reference | None = None) -> int:
        """Delete what attempts of an ended task left, but for the manifest ``keep`` and its
        objects; how many objects went.

        For tasks that have ended, and whose last lease is over: a marker that is gone refuses
        nobody. Raises GuardUnavailable.
        """
        return await asyncio.to_thread(self._prune, task_id, keep)

    def _prune(self, task_id: TaskId, keep: Reference | None) -> int:
        kept = set[str]()
        if keep is not None:
            manifest = resolve_now(self._store, keep, task_id=task_id)
            kept = {keep.key, *(each.key for each in manifest.entries)}
        with _reached():
            found = [key for key in listed(self._store, self._folder(task_id)) if key not in kept]
            for start in range(0, len(found), 1000):
                obstore.delete(self._store, found[start : start + 1000])
        return len(found)

    def _folder(self, task_id: TaskId) -> str:
        return f"{self._prefix}/{task_id}"


class Outputs:
    """The objects of one operation of an attempt. ``already_done``: an attempt has committed them,
    and there is nothing to write."""

    def __init__(
        self,
        store: Store,
        context: Context[Any],
        folder: str,
        operation: str,
        target: str,
        done: Reference | None = None,
    ) -> None:
        self._store = store
        self._context = context
        self._operation = operation
        self._target = target
        self._commit, self._data, self._files = folders(folder, context.fencing_token, operation)
        self._entries: dict[str, Entry] = {}
        self._reference = done
        self.already_done = done is not None

    @property
    def reference(self) -> Reference:
        """What was committed: for the task's output. Raises RuntimeError before it was."""
        if self._reference is None:
            raise RuntimeError("the outputs are committed at the end of their block")
        return self._reference

    async def put(self, name: str, data: bytes) -> Entry:
        """Write one object; ``name`` is relative, of letters, digits, ``._-`` and slashes.

        An object is one request, held in memory: ``put_file`` is for large ones. Raises ValueError
        for another name, EffectConflict for one that has other content already, AuthorityOver,
        GuardUnavailable.
        """
        return await asyncio.to_thread(self.put_now, name, data)

    def put_now(self, name: str, data: bytes) -> Entry:
        """As ``put``, in the calling thread."""
        self._context.check_authority()
        key = f"{self._data}/{checked_name(name)}"
        entry = Entry(name=name, key=key, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        with _reached():
            if not create(self._store, key, data) and _read(self._store, key) != data:
                raise EffectConflict(f"{name!r} of {self._operation!r} is written twice.")
        self._entries[name] = entry
        return entry

    async def put_file(self, name: str, path: Path | str) -> Entry:
        """Write a file as one object, in parts: whatever its size, little of it is in memory.

        The file is read twice and must not change meanwhile. Its key has its digest in it, so that
        nothing else is ever written there. Authority is asked for before each part. Raises as
        ``put``, and OSError for a file that cannot be read.
        """
        return await asyncio.to_thread(self.put_file_now, name, path)

    def put_file_now(self, name: str, path: Path | str) -> Entry:
        """As ``put_file``, in the calling thread."""
        self._context.check_authority()
        checked, file = checked_name(name), Path(path)
        digest, size = digest_of_file(file)
        if name in self._entries and self._entries[name].sha256 != digest:
            raise EffectConflict(f"{name!r} of {self._operation!r} is written twice.")
        key = f"{self._files}/{digest}/{checked}"
        with _reached():
            written = upload(self._store, key, file, self._context.check_authority)
        if written != digest:
            raise EffectConflict(f"{file} has changed while it was written as {name!r}.")
        entry = Entry(name=name, key=key, sha256=digest, size=size)
        self._entries[name] = entry
        return entry

    def commit_now(self) -> None:
        """Make the objects those of the task, unless a successor has sealed this attempt."""
        key = self._commit
        content = Manifest(
            task_id=self._context.task_id,
            attempt_id=self._context.attempt_id,
            fencing_token=self._context.fencing_token,
            operation=self._operation,
            target=self._target,
            entries=tuple(self._entries[name] for name in sorted(self._entries)),
        ).to_bytes()
        with _reached():
            # The key is there also where this very put was repeated after a lost answer.
            stored = content if create(self._store, key, content) else _read(self._store, key)
        seal = _sealed_by(stored)
        if seal is not None:
            raise _stale(self._context, seal)
        if stored != content:
            raise EffectConflict(f"{self._operation!r} was committed with other objects before.")
        self._reference = _named(key, content)


def open_store(url: str) -> Store:
    """A store by its address: ``file:///…`` (the folder is made), ``s3://bucket/prefix``, ``gs://``,
    ``az://``; keys and regions as the environment has them. Raises ValueError for another."""
    scheme, _, path = url.partition("://")
    try:
        if scheme == "file":
            return LocalStore(path, mkdir=True)
        return from_url(url)
    except (BaseError, ValueError) as error:
        raise ValueError(f"{url}: {str(error).partition(chr(10))[0]}") from error


async def resolve(
    store: Store,
    reference: Reference,
    *,
    task_id: str | None = None,
    scope: GrantedScope | None = None,
) -> Manifest:
    """The manifest that a task's output names. What lies outside of its attempt's own keys is not
    taken for it. With ``task_id`` neither is another task's, and with the ``scope`` that the lease
    of its attempt had, none for an operation or an object that it does not permit (LEASE-11).

    Raises OutputsDamaged when there is none, or another one, OutOfScope, and GuardUnavailable.
    """
    return await asyncio.to_thread(resolve_now, store, reference, task_id=task_id, scope=scope)


def resolve_now(
    store: Store,
    reference: Reference,
    *,
    task_id: str | None = None,
    scope: GrantedScope | None = None,
) -> Manifest:
    """As ``resolve``, in the calling thread."""
    with _reached():
        content = _read_if_there(store, reference.key)
    if content is None:
        raise OutputsDamaged(f"{reference.key} is not there.")
    if hashlib.sha256(content).hexdigest() != reference.sha256:
        raise OutputsDamaged(f"{reference.key} is not the manifest that was delivered.")
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError:
        raise OutputsDamaged(f"{reference.key} is no manifest.") from None
    check_place(manifest, reference.key)
    if task_id not in (None, manifest.task_id):
        raise OutputsDamaged(f"{reference.key} is of another task than {task_id}.")
    if scope is not None:
        scope.check(manifest.operation, manifest.target)
    return manifest


async def read(store: Store, entry: Entry) -> bytes:
    """An object of a resolved manifest, compared with its digest. Raises OutputsDamaged and
    GuardUnavailable."""
    return await asyncio.to_thread(read_now, store, entry)


def read_now(store: Store, entry: Entry) -> bytes:
    """As ``read``, in the calling thread."""
    with _reached():
        content = _read_if_there(store, entry.key)
    if content is None or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise OutputsDamaged(f"{entry.key} is not what was committed.")
    return content


async def save(store: Store, entry: Entry, path: Path | str) -> None:
    """Write an object of a resolved manifest to a file, in parts, once it is whole and compared
    with its digest. Raises OutputsDamaged, and GuardUnavailable for the store or the file."""
    await asyncio.to_thread(save_now, store, entry, path)


def save_now(store: Store, entry: Entry, path: Path | str) -> None:
    """As ``save``, in the calling thread."""
    try:
        with _reached():
            download(store, entry.key, Path(path), entry.sha256)
    except ValueError as error:
        raise OutputsDamaged(f"{entry.key} is not what was committed.") from error


def create(store: Store, key: str, content: bytes) -> bool:
    """Write a key that is not there yet; False when it was."""
    try:
        # In parts it could not be create-only.
        obstore.put(store, key, content, mode="create", use_multipart=False)
    except _EXISTS:
        return False
    return True


def listed(store: Store, folder: str) -> list[str]:
    """The keys below a folder."""
    return [meta["path"] for chunk in obstore.list(store, folder) for meta in chunk]


def _read(store: Store, key: str) -> bytes:
    return bytes(obstore.get(store, key).bytes())


def _read_if_there(store: Store, key: str) -> bytes | None:
    try:
        return _read(store, key)
    except FileNotFoundError:
        return None


@contextmanager
def _reached() -> Iterator[None]:
    """Around requests: what a store raises otherwise means that it cannot be used now."""
    try:
        yield
    except ExecutorError:
        raise
    except _ERRORS as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        raise GuardUnavailable(f"the object store cannot be used: {said}.") from error


def _dumped(model: BaseModel) -> bytes:
    return json.dumps(model.model_dump(), sort_keys=True, separators=(",", ":")).encode()


def _sealed_by(content: bytes) -> int | None:
    try:
        return Seal.model_validate_json(content).sealed_by
    except ValidationError:
        return None


def _named(key: str, content: bytes) -> Reference:
    return Reference(key=key, sha256=hashlib.sha256(content).hexdigest())


def _stale(context: Context[Any], seen: int) -> StaleToken:
    return StaleToken(
        f"attempt {context.attempt_id} of task {context.task_id} is sealed: a later one holds"
        f" {seen}.",
        seen_token=seen,
    )


def _token(token: int) -> str:
    return f"{token:016d}"
