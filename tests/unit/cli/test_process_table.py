"""Local servers are watched alike with /proc and, where there is none, with `ps`."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tenure.cli.local import ports, processes
from tenure.cli.local.process_table import ProcessTable, ProcTable, PsTable
from tests.support.waiting import eventually

NEEDED = {ProcTable: os.path.exists("/proc/self/stat"), PsTable: shutil.which("ps") is not None}

# Another run of these tests may have its child on the same machine.
MARK = f"of-this-test-{uuid4().hex}"


@pytest.fixture(params=[ProcTable, PsTable])
def table(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], ProcessTable]:
    """The table that the platform is said to have."""
    if not NEEDED[request.param]:
        pytest.skip("this machine has no such table")
    monkeypatch.setattr(processes, "process_table", request.param)
    make: Callable[[], ProcessTable] = request.param
    return make


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a session of its own that waits for its input to end."""
    command = [sys.executable, "-c", "input()", "a-word"]
    marked = os.environ | {"TENURE_MARK": MARK}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, env=marked, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_child_is_found_by_what_it_is(
    table: Callable[[], ProcessTable], child: "subprocess.Popen[bytes]"
) -> None:
    await eventually(lambda: "a-word" in processes.command_line(child.pid))
    assert child.pid in processes.children_of(os.getpid())
    assert processes.with_environment("TENURE_MARK", MARK) == [child.pid]
    assert processes.with_environment("TENURE_MARK", MARK[:-1]) == []
    name = processes.name_of(child.pid)
    assert name.startswith("python")
    assert processes.named_in_session(child.pid, "python") == [child.pid]
    assert processes.named_in_session(os.getpid(), "no-such-name") == []


async def test_a_child_is_alive_then_stopped_then_gone(
    table: Callable[[], ProcessTable], child: "subprocess.Popen[bytes]"
) -> None:
    assert processes.is_alive(child.pid)
    assert not processes.is_stopped(child.pid)
    processes.send(child.pid, signal.SIGSTOP)
    await eventually(lambda: processes.is_stopped(child.pid))
    processes.send(child.pid, signal.SIGKILL)
    await eventually(lambda: not processes.is_alive(child.pid))  # not reaped yet
    child.wait()
    assert table().entry(child.pid) is None
    assert processes.command_line(child.pid) == []


def test_without_abstract_sockets_a_locked_file_reserves_a_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = ports.reserve_port()
    second = ports.reserve_port(first.port)
    assert second.port != first.port
    first.release()
    third = ports.reserve_exactly(first.port)
    second.release()
    third.release()
