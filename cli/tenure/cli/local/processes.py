"""Starting, watching and ending server processes.

A server is started in a session of its own, so that a Ctrl-C in the terminal reaches only the
program that started it, which then ends the server in its own order. The reverse is taken care
of by Linux's kernel: a server asks for a signal at the death of its parent, so that it ends too
when the parent is killed and can end nothing any more. Elsewhere it stays until the next start in
the same folder, which ends what an earlier owner left behind.
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

from tenure.cli.local.process_table import process_table

POLL_SECONDS = 0.02


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


def name_of(pid: int) -> str:
    """The name of the program a process runs (at most 15 characters); empty when it is gone."""
    entry = process_table().entry(pid)
    return "" if entry is None else entry.name


def is_alive(pid: int) -> bool:
    """True for a process that exists and is not merely waiting to be reaped."""
    entry = process_table().entry(pid)
    return entry is not None and entry.state not in ("Z", "X")


def is_stopped(pid: int) -> bool:
    """True once SIGSTOP has taken hold of the whole process."""
    entry = process_table().entry(pid)
    return entry is not None and entry.state == "T"


def all_pids() -> list[int]:
    """The pids of all processes that this process can see."""
    return list(process_table().all())


def children_of(pid: int) -> list[int]:
    """The direct children of a process."""
    return [one for one, entry in process_table().all().items() if entry.parent == pid]


def named_in_session(session: int, prefix: str) -> list[int]:
    """The live processes of a session whose name begins with ``prefix``."""
    return [
        pid
        for pid, entry in process_table().all().items()
        if entry.name.startswith(prefix) and entry.state != "Z" and _session_of(pid) == session
    ]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None  # it has just ended


def command_line(pid: int) -> list[str]:
    """The words of a process's command line; empty when it is gone."""
    return process_table().command_line(pid)


def with_environment(name: str, value: str) -> list[int]:
    """The live processes that were started with this environment variable."""
    return [pid for pid in process_table().with_variable(name, value) if is_alive(pid)]


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


def tail(log: Path, *, lines: int = 15, since: int = 0) -> str:
    """The last lines of a log file, for an error message; none of what is before byte ``since``."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(since, file.tell() - 16_384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])
