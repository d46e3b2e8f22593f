"""An attempt in a process is over when that ends, whatever it leaves behind."""

import asyncio
import errno
import os
import pwd
import signal
import tempfile
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tenure.contract.codes import Reason
from tenure.contract.reports import Deliver, Report
from tenure.executor import CommandResult, Executor, TaskType
from tenure.executor.isolation import launch, process, sandbox
from tests.support.attempts import assignment
from tests.support.isolated_app import Done, Job, work
from tests.support.later import is_later
from tests.support.pipeline_bench import Bench, only_fail
from tests.support.process_lives import lives
from tests.support.waiting import eventually

JOB = TaskType("job", input=Job, output=Done)
RUN = TaskType("job", input=Job, output=CommandResult)

On = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def on_each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> On:
    """Runs a coroutine on the event loop of tests and on that of executors."""
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.1)

    def run(function: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await function()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


def script(path: Path, text: str, **options: Any) -> Bench:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    app = Executor("commands", version="1")
    digest = sha256(path.read_bytes()).hexdigest()
    app.command(RUN, str(path), str(path), digest=digest, effects="none", **options)
    b = Bench.of(app)
    b.reports.input = {"do": ""}
    return b


def said(reports: list[Report]) -> str:
    (report,) = reports
    assert isinstance(report, Deliver), report
    return str(report.output["stdout"])


def test_what_a_command_leaves_in_its_group_is_ended_with_it(
    on_each_loop: On, tmp_path: Path
) -> None:
    async def check() -> None:
        b = script(tmp_path / "program", "#!/bin/sh\nsleep 600 &\necho $!\n")
        pid = int(said(await b.run(assignment("job"))))
        await eventually(lambda: not lives(pid))

    on_each_loop(check)


def test_what_has_left_the_group_of_a_command_is_not_waited_for(
    on_each_loop: On, tmp_path: Path
) -> None:
    async def check() -> None:
        b = script(tmp_path / "program", "#!/bin/sh\nsetsid sleep 600 &\necho $!\n")
        os.kill(int(said(await b.run(assignment("job")))), signal.SIGKILL)

    on_each_loop(check)


@pytest.mark.requirement("LEASE-11")
def test_a_time_limit_holds_whoever_has_the_pipes_of_a_command(
    on_each_loop: On, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"

    async def check() -> None:
        text = f"#!/bin/sh\nsetsid sleep 600 &\necho $! > {pid}.new; mv {pid}.new {pid}\nwait\n"
        b = script(tmp_path / "program", text, time_limit_seconds=3600.0)
        running = asyncio.create_task(b.run(assignment("job")))
        await eventually(pid.exists)
        is_later(monkeypatch, 3600.0)
        assert only_fail(await running).reason == Reason.TIME_LIMIT
        os.kill(int(pid.read_text()), signal.SIGKILL)

    on_each_loop(check)


def test_a_handler_that_died_is_not_waited_for_while_its_children_live(
    on_each_loop: On, tmp_path: Path
) -> None:
    forked = tmp_path / "forked"

    async def check() -> None:
        b = Bench(work, task_type=JOB, runs_in="process")
        b.reports.input = {"do": "abandon", "path": str(forked)}
        failed = only_fail(await b.run(assignment("job")))
        os.kill(int(forked.read_text()), signal.SIGKILL)
        assert (failed.reason, failed.retryable) == (Reason.PROCESS_DIED, True)
        assert "exit status 3" in failed.message

    on_each_loop(check)


def test_what_a_handler_says_at_length_is_cut_and_costs_it_nothing(on_each_loop: On) -> None:
    async def check() -> None:
        b = Bench(work, task_type=JOB, runs_in="process")
        b.reports.input = {"do": "chatter"}
        (report,) = await b.run(assignment("job"))
        assert isinstance(report, Deliver), report

    on_each_loop(check)


def test_a_program_that_has_ended_need_not_have_read_its_input(on_each_loop: On) -> None:
    async def check() -> None:
        ended = await asyncio.create_subprocess_exec("/bin/true", stdin=asyncio.subprocess.PIPE)
        await ended.wait()
        await sandbox._feed(ended.stdin, b"x" * 1_000_000)

    on_each_loop(check)


@pytest.mark.requirement("LEASE-11")
def test_a_script_that_is_changed_while_it_runs_goes_on_as_it_was_verified(
    on_each_loop: On, tmp_path: Path
) -> None:
    async def check() -> None:
        b = script(tmp_path / "program", "#!/bin/sh\necho first\necho 'echo second' >> $1\n")
        assert said(await b.run(assignment("job"))) == "first\n"
        assert "second" in (tmp_path / "program").read_text().splitlines()[-1]

    on_each_loop(check)


@pytest.mark.parametrize(
    ("known", "flag", "otherwise", "runs"),
    [
        (True, 0o777, 0o777, True),
        (False, 0o777, 0o777, True),
        (True, 0o777, 0o666, True),
        (True, None, 0o666, False),
    ],
    ids=["as it is", "an old kernel", "vm.memfd_noexec=1", "vm.memfd_noexec=2"],
)
def test_a_copy_that_could_not_be_executed_is_not_made(
    monkeypatch: pytest.MonkeyPatch, known: bool, flag: int | None, otherwise: int, runs: bool
) -> None:
    """``flag``: the mode of a file that is asked to be executable, None where none is given."""
    memfd_create = os.memfd_create

    def create(name: str, flags: int) -> int:
        asked = bool(flags & launch._MFD_EXEC)
        if asked and (not known or flag is None):
            raise OSError(errno.EACCES if known else errno.EINVAL, "refused")
        descriptor = memfd_create(name, flags & ~launch._MFD_EXEC)
        os.fchmod(descriptor, (flag if asked else otherwise) or 0)
        return descriptor

    monkeypatch.setattr(os, "memfd_create", create)
    descriptor = launch._unnamed_file()
    assert (descriptor is not None) is runs
    if descriptor is not None:
        assert os.fstat(descriptor).st_mode & 0o111
        os.close(descriptor)


def test_a_folder_is_removed_whatever_may_not_be_written_to_in_it(tmp_path: Path) -> None:
    """Caches of packages are like that."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    folder = Path(tempfile.mkdtemp())  # where other accounts reach it
    inner = folder / "cache" / "package"
    inner.mkdir(parents=True)
    (inner / "file").write_text("read only")
    (inner / "elsewhere").symlink_to(outside)
    accounts = os.geteuid(), pwd.getpwnam("nobody").pw_uid
    if accounts[0] == 0:
        for each in (folder, folder / "cache", inner):
            os.chown(each, accounts[1], -1)
    for each in (inner, folder / "cache"):
        each.chmod(0o500)
    try:
        if accounts[0] == 0:
            os.seteuid(accounts[1])  # nothing is in root's way
        process.remove_folder(str(folder))
    finally:
        os.seteuid(accounts[0])
    assert not folder.exists()
    assert outside.stat().st_mode & 0o777 == 0o755
