"""Starts one program inside its limits: ``python -I -S launch.py SPEC``.

A script of its own, and nothing but the standard library: between a fork and the program nothing of
the executor may run, for another of its threads may have held a lock. What was enforced is written
to the descriptor ``status``, one JSON object a line; the descriptor closes when the program begins.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import stat
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

NOT_STARTED: Final = 127
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_PR_SET_PDEATHSIG: Final = 1
_MFD_EXEC: Final = 0x10


class Refused(Exception):
    """The program is not started; ``code`` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def main(text: str) -> None:
    """Apply the limits, say which, and become the program."""
    spec: dict[str, Any] = json.loads(text)
    status: int = spec["status"]
    os.set_inheritable(status, False)
    try:
        program, enforced = _prepare(spec)
        _say(status, {"enforced": enforced})
        os.execve(program, spec["argv"], os.environ)
    except Refused as refused:
        _say(status, {"code": refused.code, "message": str(refused)})
    except Exception as error:  # noqa: BLE001 - whatever it is, the executor has to learn of it
        _say(status, {"code": "process_died", "message": f"it could not be started: {error}"})
    os._exit(NOT_STARTED)


def _prepare(spec: dict[str, Any]) -> tuple[int | str, dict[str, Any]]:
    not_enforced: list[str] = []
    enforced: dict[str, Any] = {"not_enforced": not_enforced}
    program = _program(spec, enforced)
    if spec["cgroup"] is not None:
        if fault := _join(Path(spec["cgroup"])):
            not_enforced.append(f"cgroup: it cannot be joined: {fault}")
        else:
            enforced["cgroup"] = True
    os.umask(0o077)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, its successor need not
        signal.signal(number, signal.SIG_DFL)
    for name, kind in _KINDS.items():
        wanted = spec["limits"].get(name)
        if wanted is not None:
            _limit(name, kind, wanted, enforced, not_enforced)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if spec["network"] == "none":
        if fault := _leave_network():
            not_enforced.append(f"network: {fault}")
        else:
            enforced["network"] = "none"
    if spec["user"] is not None:
        _become(spec["user"], enforced)
    _die_with_parent(spec["parent"])
    return program, enforced


def _join(group: Path) -> str | None:
    """Into the control group. Why not, if the kernel does not let it: a process is moved only by
    whoever may write to the groups above both places, and into none that has groups below it."""
    try:
        descriptor = os.open(group / "cgroup.procs", os.O_WRONLY)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.strerror
    return None


def _program(spec: dict[str, Any], enforced: dict[str, Any]) -> int | str:
    """What is executed. With a digest: the very bytes that were read, whatever the path becomes. A
    program that runs cannot be written to; a script can, and its interpreter reads it later: what
    runs is a copy of it, where the platform has files for that."""
    path: str = spec["argv"][0]
    if spec["digest"] is None:
        return path
    copy: int | None = None
    try:
        descriptor = os.open(path, os.O_RDONLY)
        found = sha256()
        block = os.read(descriptor, 1 << 20)
        if block.startswith(b"#!"):
            copy = _unnamed_file()
        while block:
            found.update(block)
            if copy is not None:
                _write_all(copy, block)
            block = os.read(descriptor, 1 << 20)
    except OSError as error:
        raise Refused("program_changed", f"{path} cannot be read: {error.strerror}") from error
    if found.hexdigest() != spec["digest"]:
        raise Refused("program_changed", f"{path} has another digest: {found.hexdigest()}")
    enforced["program_digest"] = found.hexdigest()
    if os.execve not in os.supports_fd:
        os.close(descriptor)
        return path
    if copy is not None:
        os.close(descriptor)
        descriptor = copy
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    os.set_inheritable(descriptor, True)  # the interpreter of a script opens it again
    return descriptor


def _unnamed_file() -> int | None:
    """One in memory, which can be sealed; None where there is none, or none that may be run."""
    if not hasattr(os, "memfd_create"):
        return None
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    for more in (_MFD_EXEC, 0):  # Linux before 6.3 does not know the flag, and needs none
        with suppress(OSError):
            descriptor = os.memfd_create("program", flags | more)
            if os.fstat(descriptor).st_mode & stat.S_IXUSR:  # vm.memfd_noexec decides
                return descriptor
            os.close(descriptor)
    return None


def _write_all(descriptor: int, block: bytes) -> None:
    while block:
        block = block[os.write(descriptor, block) :]


_KINDS: Final = {
    "memory_bytes": resource.RLIMIT_DATA,  # what it allocates; files that it maps are not counted
    "cpu_seconds": resource.RLIMIT_CPU,
    "open_files": resource.RLIMIT_NOFILE,
    "file_bytes": resource.RLIMIT_FSIZE,
}


def _limit(
    name: str, kind: int, wanted: int, enforced: dict[str, Any], not_enforced: list[str]
) -> None:
    # One second more until the kill that cannot be handled.
    hardest = wanted + 1 if kind == resource.RLIMIT_CPU else wanted
    already = resource.getrlimit(kind)[1]
    if already != resource.RLIM_INFINITY and already < hardest:
        wanted, hardest = min(wanted, already), already
    try:
        resource.setrlimit(kind, (wanted, hardest))
    except (OSError, ValueError) as error:
        not_enforced.append(f"{name}: {error}")
    else:
        enforced[name] = wanted


def _leave_network() -> str | None:
    """Into a network namespace where nothing is. Why not, if it is not permitted."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "unshare"):
        return "this platform has no namespaces"
    flags = _CLONE_NEWNET
    maps: list[tuple[str, int]] = []
    if os.geteuid() != 0:  # in a user namespace of its own, as whoever it is
        flags |= _CLONE_NEWUSER
        maps = [("uid_map", os.geteuid()), ("gid_map", os.getegid())]
    if library.unshare(flags) != 0:
        return os.strerror(ctypes.get_errno())
    if maps:
        Path("/proc/self/setgroups").write_text("deny")
        for name, number in maps:
            Path("/proc/self", name).write_text(f"{number} {number} 1")
    return None


def _become(user: dict[str, Any], enforced: dict[str, Any]) -> None:
    os.setgroups([])
    os.setgid(user["gid"])
    os.setuid(user["uid"])
    enforced["user"] = user["name"]


def _die_with_parent(parent: int) -> None:
    """Killed when the executor is, whatever ends it. Linux only; after the change of accounts."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            raise Refused("process_died", "the executor has ended")


def _say(status: int, value: dict[str, Any]) -> None:
    os.write(status, json.dumps(value).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
