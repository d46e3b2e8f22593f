"""Starting, watching and ending server processes on Linux.

A server is started in a session of its own, so that a Ctrl-C in the terminal reaches only the
program that started it, which then ends the server in its own order. The reverse is taken care
of by the kernel: a server asks for a signal at the death of its parent, so that it ends too when
the parent is killed and can end nothing any more.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

POLL_SECONDS = 0.02
_PROC = Path("/proc")


@functools.cache
def _setpriv() -> str | None:
    """The path of a setpriv that knows --pdeathsig, or None."""
    found = shutil.which("setpriv")
    if found is None:
        return None
    probe = subprocess.run([found, "--pdeathsig", "TERM", "true"], capture_output=True, check=False)
    return found if probe.returncode == 0 else None


def ended_with_parent(parting_signal: signal.Signals) -> tuple[str, ...]:
    """A command prefix: the command gets this signal when its parent ends.

    The kernel means the parent *thread*. A server started from a thread other than the main one
    would end with that thread, so there the prefix is empty, as it is without setpriv.
    """
    setpriv = _setpriv()
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return ()
    return (setpriv, "--pdeathsig", parting_signal.name.removeprefix("SIG"))


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    environment: Mapping[str, str],
    directory: Path,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, its output appended to ``log``."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )


async def run(
    command: Sequence[str | Path], *, environment: Mapping[str, str], directory: Path
) -> tuple[int, str]:
    """Run a short command to its end. Returns the exit status and all of its output."""
    process = await asyncio.create_subprocess_exec(
        *(str(word) for word in command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(environment),
        cwd=directory,
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    return process.returncode or 0, output.decode(errors="replace")


async def ended(process: subprocess.Popen[bytes], *, within_seconds: float) -> bool:
    """Wait for a child process. False when it still runs after that time."""
    deadline = time.monotonic() + within_seconds
    while process.poll() is None:
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


async def gone(pids: Sequence[int], *, within_seconds: float) -> bool:
    """Wait for processes that need not be our children. False when one still runs then."""
    deadline = time.monotonic() + within_seconds
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


def send(pid: int, which: signal.Signals) -> None:
    """Signal a process; one that has just ended is no error."""
    try:
        os.kill(pid, which)
    except ProcessLookupError:
        pass  # it ended by itself: what the signal wanted


def all_pids() -> list[int]:
    """The pids of all processes that this process can see."""
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> tuple[str, list[str]]:
    """The name and the fields after it (state, parent, group, session …); empty when gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "", []
    # The name stands in brackets and may hold brackets and blanks itself.
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, rest.split()


def name_of(pid: int) -> str:
    """The name of the program a process runs (at most 15 characters); empty when it is gone."""
    return _stat(pid)[0]


def is_alive(pid: int) -> bool:
    """True for a process that exists and is not merely waiting to be reaped."""
    _, fields = _stat(pid)
    return bool(fields) and fields[0] not in ("Z", "X")


def is_stopped(pid: int) -> bool:
    """True once SIGSTOP has taken hold of the whole process."""
    _, fields = _stat(pid)
    return fields[:1] == ["T"]


def children_of(pid: int) -> list[int]:
    """The direct children of a process."""
    return [one for one in all_pids() if _stat(one)[1][1:2] == [str(pid)]]


def named_in_session(session: int, prefix: str) -> list[int]:
    """The live processes of a session whose name begins with ``prefix``."""
    found = []
    for pid in all_pids():
        name, fields = _stat(pid)
        if name.startswith(prefix) and fields[3:4] == [str(session)] and fields[0] != "Z":
            found.append(pid)
    return found


def command_line(pid: int) -> list[str]:
    """The words of a process's command line; empty when it is gone."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return raw.decode(errors="replace").split("\0")


def with_environment(name: str, value: str) -> list[int]:
    """The live processes that were started with this environment variable."""
    wanted = f"{name}={value}".encode()
    found = []
    for pid in all_pids():
        try:
            raw = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue  # gone, or somebody else's
        if wanted in raw.split(b"\0") and is_alive(pid):
            found.append(pid)
    return found


def complaints(log: Path, *, lines: int = 20) -> str:
    """The first lines of a log that speak of errors, or else its last lines.

    Erlang says what is wrong first and then, at length, what ended because of it.
    """
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    found = [line for line in text.splitlines() if "error" in line.lower()]
    return "\n".join(found[:lines]) or tail(log)


def tail(log: Path, *, lines: int = 15) -> str:
    """The last lines of a log file, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])
