"""One process of a workload: started inside its limits, ended as a group, its folder removed."""

import asyncio
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

from tenure.contract.codes import Reason
from tenure.contract.isolation import Enforcement
from tenure.executor.blocking_calls import in_own_thread
from tenure.executor.declare import HandlerDeclaration
from tenure.executor.errors import RunEnded
from tenure.executor.isolation import launch
from tenure.executor.isolation.cgroup import Cgroup
from tenure.executor.isolation.deadlines import Deadlines
from tenure.executor.isolation.place import Place

GRACE_SECONDS: Final = 2.0
"""Between the request to end and the kill, while the attempt still has authority; and between the
end of the process and that of what it has left behind."""
PATH: Final = "/usr/local/bin:/usr/bin:/bin"

log = structlog.get_logger("tenure.executor")


class _Streams(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells of the end of the process. The library's own wait is also for the end of its pipes,
    which whatever it has started may hold open for ever."""

    def __init__(self, limit: int, exited: asyncio.Event) -> None:
        super().__init__(limit, asyncio.get_running_loop())
        self._exited = exited

    def process_exited(self) -> None:
        super().process_exited()
        self._exited.set()


@dataclass(slots=True)
class Child:
    """A started process. What it has left behind is ended a moment after it, and its pipes with
    that: who reads them to their end reads not much longer than it lives."""

    process: asyncio.subprocess.Process
    exited: asyncio.Event
    enforced: Enforcement
    cgroup: Cgroup | None
    overran: Callable[[], bool]

    def ended(self, enforced: Enforcement) -> RunEnded:
        """What its end without an output means."""
        code = self.process.returncode
        if self.overran():
            return RunEnded(Reason.TIME_LIMIT, f"it ran longer than {enforced.wall_seconds:g} s")
        if code == -signal.SIGXCPU:
            message = f"it used more than {enforced.cpu_seconds} s of processor time"
            return RunEnded(Reason.RESOURCE_LIMIT, message)
        if code == -signal.SIGXFSZ:
            return RunEnded(Reason.RESOURCE_LIMIT, "it wrote more into a file than it may")
        if self.cgroup is not None and self.cgroup.ran_out_of_memory():
            return RunEnded(Reason.RESOURCE_LIMIT, "it needed more memory than its reservation")
        if code is not None and code < 0:
            with suppress(ValueError):
                name = signal.Signals(-code).name
                return RunEnded(Reason.PROCESS_DIED, f"its process was ended by {name}")
        return RunEnded(Reason.PROCESS_DIED, f"its process ended with exit status {code}")


@asynccontextmanager
async def running(
    declaration: HandlerDeclaration,
    place: Place,
    deadlines: Deadlines,
    *,
    name: str,
    argv: Sequence[str],
    environment: Mapping[str, str],
    may_act: Callable[[], bool],
    keep: Sequence[int] = (),
    apart: bool = True,
    limit: int = 2**16,
    hang_up: Callable[[], None] = lambda: None,
    **streams: Any,
) -> AsyncIterator[Child]:
    """The process of an attempt, for the length of the block; nothing of its group is left after.

    ``name`` is unique; ``keep``: descriptors that it inherits; ``limit`` and ``streams`` as of
    asyncio; ``hang_up``: ends what is read from it by other ways than these. Without ``apart`` it
    is what the executor is, only a process of its own: same folder, account and
    environment, as given. Raises RunEnded when it is not started.
    """
    command = declaration.command
    if not apart:
        place = Place()
    folder = await in_own_thread(lambda: _make_folder(place))
    cgroup: Cgroup | None = None
    notes: list[str] = []
    try:
        if place.cgroup is not None:
            try:
                cgroup = Cgroup.make(place.cgroup, name, declaration.resources)
                notes += cgroup.not_enforced
            except OSError as error:
                notes.append(f"cgroup: {error.strerror}")
        status, told = os.pipe()
        with os.fdopen(status, "rb", buffering=0) as status_file:
            try:
                spec = {
                    "status": told,
                    "argv": [*argv],
                    "digest": None if command is None else command.digest,
                    "cgroup": None if cgroup is None else str(cgroup.folder),
                    "limits": _limits(declaration),
                    "network": declaration.limits.network,
                    "user": None
                    if place.account is None
                    else {
                        "name": place.account.name,
                        "uid": place.account.uid,
                        "gid": place.account.gid,
                    },
                    "parent": os.getpid(),
                }
                exited = asyncio.Event()
                loop = asyncio.get_running_loop()
                transport, protocol = await loop.subprocess_exec(
                    lambda: _Streams(limit, exited),
                    sys.executable, "-I", "-S", launch.__file__, json.dumps(spec),
                    cwd=folder if apart else None,
                    env={**_own_environment(folder), **environment} if apart else environment,
                    pass_fds=(told, *keep),
                    start_new_session=True,
                    **streams,
                )  # fmt: skip
                process = asyncio.subprocess.Process(transport, protocol, loop)
            finally:
                os.close(told)
            watched = deadlines.watch(
                process.pid,
                may_act=None if declaration.on_authority_loss == "isolate" else may_act,
                seconds=declaration.time_limit_seconds,
            )
            leaving = asyncio.create_task(_end_what_is_left(process, exited, transport, hang_up))
            try:
                try:
                    enforced = await _began(status_file, declaration, notes)
                except RunEnded as error:
                    if watched.overran():
                        message = f"it did not begin within {declaration.time_limit_seconds:g} s"
                        raise RunEnded(Reason.TIME_LIMIT, message) from error
                    raise
                yield Child(process, exited, enforced, cgroup, watched.overran)
            finally:
                leaving.cancel()
                await _uninterrupted(_end(process, exited, cgroup, gently=may_act()))
                transport.close()
                deadlines.forget(watched)
    finally:
        if cgroup is not None:
            cgroup.remove()
        await _uninterrupted(in_own_thread(lambda: remove_folder(folder)))


def _make_folder(place: Place) -> str:
    folder = tempfile.mkdtemp(prefix="tenure-", dir=place.scratch)
    if place.account is not None:
        os.chown(folder, place.account.uid, place.account.gid)
    return folder


def remove_folder(folder: str) -> None:
    """With everything in it, folders that may not be written to included: caches of packages have
    such. They are the executor's own account's then; for root nothing is in the way."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.geteuid() == 0 or not os.path.exists(folder):
        return
    shut = [folder]
    while shut:
        parent = shut.pop()
        with suppress(OSError):
            os.chmod(parent, stat.S_IRWXU)
            with os.scandir(parent) as entries:  # links lead elsewhere
                shut += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
    shutil.rmtree(folder, ignore_errors=True)


def _own_environment(folder: str) -> dict[str, str]:
    return {"PATH": PATH, "LANG": "C.UTF-8", "HOME": folder, "TMPDIR": folder}


def _limits(declaration: HandlerDeclaration) -> dict[str, int]:
    """The limits of its processes: the reservation, and what was declared besides. Processor time
    is what the reserved cores can give within the time limit."""
    resources, seconds = declaration.resources, declaration.time_limit_seconds
    cpu_seconds: int | None = None
    if resources.cpu_millis and seconds:
        cpu_seconds = max(1, -int(-resources.cpu_millis * seconds // 1000))
    wanted = {
        "memory_bytes": resources.memory_bytes or None,
        "cpu_seconds": cpu_seconds,
        "open_files": declaration.limits.open_files,
        "file_bytes": declaration.limits.file_bytes,
    }
    return {name: value for name, value in wanted.items() if value is not None}


async def _began(status: Any, declaration: HandlerDeclaration, notes: list[str]) -> Enforcement:
    """What was enforced, once the program runs. Raises RunEnded where it does not."""
    said: dict[str, Any] = {}
    for line in (await in_own_thread(status.readall)).splitlines():
        said |= json.loads(line)
    if "code" in said:
        raise RunEnded(Reason(said["code"]), said["message"])
    if "enforced" not in said:
        raise RunEnded(Reason.PROCESS_DIED, "its process ended before it began")
    enforced = said["enforced"]
    for note in (notes := notes + enforced.pop("not_enforced")):
        log.warning("a limit is not enforced", limit=note, task_type=declaration.task_type.name)
    return Enforcement(
        runs_in="command" if declaration.runs_in == "command" else "process",
        wall_seconds=declaration.time_limit_seconds,
        not_enforced=tuple(note[:300] for note in notes),
        **enforced,
    )


async def _end_what_is_left(
    process: asyncio.subprocess.Process,
    exited: asyncio.Event,
    transport: asyncio.SubprocessTransport,
    hang_up: Callable[[], None],
) -> None:
    """Once the process has ended: end its group, and read no more from whoever has left that."""
    await exited.wait()
    await asyncio.sleep(GRACE_SECONDS)
    _signal(process.pid, signal.SIGKILL)
    transport.close()
    hang_up()


async def _end(
    process: asyncio.subprocess.Process,
    exited: asyncio.Event,
    cgroup: Cgroup | None,
    *,
    gently: bool,
) -> None:
    """End the whole group: by request first where there is time for it."""
    if not exited.is_set() and gently:
        _signal(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await exited.wait()
    _signal(process.pid, signal.SIGKILL)  # also what it has left behind in its group
    if cgroup is not None:
        cgroup.kill()
    await exited.wait()
    if cgroup is not None:
        await in_own_thread(lambda: cgroup.wait_until_empty(GRACE_SECONDS))


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


async def _uninterrupted(work: Coroutine[Any, Any, Any]) -> None:
    """Wait for it to the end, however often this task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    task.result()
