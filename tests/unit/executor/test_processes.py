"""Handlers in processes of their own: killed as a group, held to limits, without credentials."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tenure.contract.codes import Reason
from tenure.contract.reports import Deliver, Fail, Report
from tenure.executor import Limits, Resources, TaskType
from tenure.executor.core.intake import Assignment
from tenure.executor.errors import DeclarationError
from tenure.executor.isolation.place import Account, Place
from tenure.executor.isolation.sandbox import _copy
from tenure.executor.isolation.shared import Cell
from tenure.executor.work import Work
from tests.support.attempts import HandClock, assignment, lease
from tests.support.isolated_app import Done, Job, work
from tests.support.later import is_later
from tests.support.pipeline_bench import Bench, only_fail
from tests.support.process_lives import lives
from tests.support.waiting import eventually

JOB = TaskType("job", input=Job, output=Done)


def bench(do: str, path: object = "", *, place: Place | None = None, **options: Any) -> Bench:
    b = Bench(work, task_type=JOB, place=place, runs_in="process", **options)
    b.reports.input = {"do": do, "path": str(path)}
    return b


def job() -> Assignment:
    return assignment("job")


def delivered(reports: list[Report]) -> Deliver:
    (report,) = reports
    assert isinstance(report, Deliver), report
    return report


def may_leave_its_network() -> bool:
    """Whether this account may make namespaces without any privilege that it lacks."""
    asked = ["unshare", *([] if os.geteuid() == 0 else ["--user"]), "--net", "true"]
    try:
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@asynccontextmanager
async def watched(b: Bench) -> AsyncIterator[Work]:
    watch = asyncio.create_task(b.work.watch())
    try:
        yield b.work
    finally:
        watch.cancel()


async def test_a_handler_in_a_process_knows_its_attempt_and_delivers() -> None:
    given = job()
    report = delivered(await bench("add").run(given))
    assert report.output == {
        "said": f"{given.task_id} {given.attempt_id}",
        "number": given.fencing_token,
    }
    assert report.enforced is not None
    assert report.enforced.runs_in == "process"


@pytest.mark.requirement("OPS-07")
async def test_it_finds_no_credential_and_works_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_TOKEN", "secret")
    monkeypatch.setenv("LEDGER_DATABASE_URL", "secret")
    report = delivered(await bench("place", place=Place(scratch=tmp_path)).run(job()))
    folder, _, names = report.output["said"].partition(" ")
    assert Path(folder).parent == tmp_path
    assert names == "[]"
    left = await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
    assert left == [], "its folder is gone with it"


async def test_it_finds_what_its_declaration_gives_it_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENURE_TOKEN", "secret")
    report = delivered(await bench("place", environment={"TENURE_STORE": "here"}).run(job()))
    assert report.output["said"].partition(" ")[2] == "['TENURE_STORE']"
    with pytest.raises(DeclarationError, match="cannot set PYTHONPATH"):
        bench("place", environment={"PYTHONPATH": "/elsewhere"})


@pytest.mark.parametrize(
    ("do", "reason", "retryable", "says"),
    [
        ("fail", "no_such_thing", False, "never"),
        ("retry", Reason.RETRY_REQUESTED, True, "not yet"),
        ("raise", Reason.HANDLER_FAILED, True, "KeyError: 'nothing here'"),
        ("exit", Reason.PROCESS_DIED, True, "exit status 3"),
        ("talk", Reason.OUTPUT_INVALID, True, "4096"),
        ("misname", Reason.HANDLER_FAILED, True, "FileNotFoundError: [Errno 2] No such file: 'caf"),
        ("mute", Reason.HANDLER_FAILED, True, "Mute: (its message cannot be shown)"),
        ("misword", "no_file", False, "caf?"),
        ("nan", Reason.OUTPUT_INVALID, True, "NaN"),
        ("object", Reason.OUTPUT_INVALID, True, "object"),
    ],
)
async def test_what_it_raises_is_reported_as_in_the_executor(
    do: str, reason: str, retryable: bool, says: str
) -> None:
    failed = only_fail(await bench(do).run(job()))
    assert (failed.reason, failed.retryable) == (reason, retryable)
    assert says in failed.message
    assert failed.retry_after_seconds == (3 if do == "retry" else None)


@pytest.mark.requirement("LEASE-11")
@pytest.mark.parametrize(
    ("do", "options", "says"),
    [
        ("swallow", {"resources": Resources.of(memory="256Mi")}, "more memory"),
        (
            "spin",
            {"resources": Resources.of(cpu="10m"), "time_limit_seconds": 100.0},
            "more than 1 s of processor time",
        ),
        ("write", {"limits": Limits(file_bytes=1024)}, "File too large"),
        ("open", {"limits": Limits(open_files=32)}, "Too many open files"),
    ],
)
async def test_more_than_the_reservation_ends_it(
    do: str, options: dict[str, Any], says: str
) -> None:
    failed = only_fail(await bench(do, **options).run(job()))
    assert failed.reason == Reason.RESOURCE_LIMIT, failed
    assert says in failed.message


@pytest.mark.requirement("LEASE-11")
async def test_what_was_enforced_goes_with_the_output() -> None:
    options: dict[str, Any] = {
        "resources": Resources.of(cpu=2, memory="512Mi"),
        "time_limit_seconds": 30.0,
        "limits": Limits(open_files=128, file_bytes=1 << 20),
    }
    enforced = delivered(await bench("add", **options).run(job())).enforced
    assert enforced is not None
    assert enforced.model_dump(exclude_defaults=True) == {
        "runs_in": "process",
        "memory_bytes": 512 << 20,
        "cpu_seconds": 60,
        "wall_seconds": 30.0,
        "open_files": 128,
        "file_bytes": 1 << 20,
    }


@pytest.mark.requirement("LEASE-11")
async def test_it_is_killed_with_everything_it_started_when_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench("forever", tmp_path / "pids", time_limit_seconds=3600.0)
    running = asyncio.create_task(b.run(job()))
    await eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text() != "")
    is_later(monkeypatch, 3600.0)
    failed = only_fail(await running)
    assert (failed.reason, failed.retryable) == (Reason.TIME_LIMIT, True)
    assert failed.message == "it ran longer than 3600 s"
    pids = (tmp_path / "pids").read_text().split()
    await eventually(lambda: not any(lives(int(pid)) for pid in pids))


@pytest.mark.requirement("LEASE-09")
@pytest.mark.parametrize("do", ["forever", "act"])
async def test_it_is_ended_at_the_end_of_authority_with_the_event_loop_blocked(
    tmp_path: Path, do: str
) -> None:
    """Nothing on the loop runs from the end of authority on, until the process is gone."""
    b = bench(do, tmp_path / "pids")
    b.reports.take["remaining_seconds"] = 31.0
    b.work.start(job())
    await eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text() != "")
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    with capture_logs() as said:
        b.clock.pass_seconds(40)
        b.renewals.leases[0].end("refused")
        while any(map(lives, pids)):  # the loop is blocked by this very test
            os.sched_yield()
        await b.work.idle()
    assert b.reports.sent[1:] == [], "the coordinator knows"
    assert "lease_lost" in [entry["event"] for entry in said]


async def test_a_cancelled_handler_may_go_home_by_itself(tmp_path: Path) -> None:
    b = bench("until_told", tmp_path / "pid")
    given = job()
    b.work.start(given)
    await eventually(lambda: (tmp_path / "pid").exists())
    b.work.cancel(given.attempt_id)
    await b.work.idle()
    assert [report.kind for report in b.reports.sent] == ["take", "cancel_received", "cancelled"]


async def test_a_cancelled_handler_that_never_looks_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.executor.isolation.process.GRACE_SECONDS", 0.1)
    b = bench("forever", tmp_path / "pids")
    given = job()
    b.work.start(given)
    await eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text() != "")
    b.work.cancel(given.attempt_id)
    await b.work.idle()
    assert b.reports.sent[-1].kind == "cancelled"
    pids = (tmp_path / "pids").read_text().split()
    await eventually(lambda: not any(lives(int(pid)) for pid in pids))


@pytest.mark.requirement("LEASE-11")
async def test_a_handler_without_network_reaches_nothing_or_it_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        report = delivered(await bench("call_out", port, limits=Limits(network="none")).run(job()))
    assert report.enforced is not None
    if may_leave_its_network():
        assert report.enforced.network == "none"
    if report.enforced.network == "none":
        assert report.output["number"] == 0
    else:
        assert any(note.startswith("network: ") for note in report.enforced.not_enforced)


@pytest.mark.requirement("LEASE-09")
async def test_an_isolated_one_goes_on_without_authority_and_its_output_is_offered_as_evidence(
    tmp_path: Path,
) -> None:
    b = bench("until_told", tmp_path / "pid", on_authority_loss="isolate")
    async with watched(b) as running:
        running.start(job())
        await eventually(
            lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != ""
        )
        with capture_logs() as said:
            b.renewals.leases[0].end("refused")
            running.look_again()
            await eventually(lambda: "lease_lost" in [entry["event"] for entry in said])
        assert lives(int((tmp_path / "pid").read_text()))
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        await running.idle()
    assert isinstance(b.reports.sent[-1], Fail)


@pytest.mark.requirement("LEASE-11")
@pytest.mark.parametrize(("path", "permitted"), [("orders/17", True), ("orders/18", False)])
async def test_what_the_lease_does_not_permit_is_refused_in_the_process_too(
    path: str, permitted: bool
) -> None:
    b = bench("effect", path)
    b.reports.take["scope"] = {"operations": ["write"], "objects": ["orders/17"]}
    (report,) = await b.run(job())
    assert isinstance(report, Deliver) is permitted, report
    if isinstance(report, Fail):
        assert (report.reason, report.retryable) == (Reason.OUT_OF_SCOPE, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as somebody else")
def test_an_account_is_found_by_its_name() -> None:
    assert Account.named("nobody").uid != 0


@pytest.mark.requirement("LEASE-09")
def test_a_pause_of_the_executor_lengthens_nothing_that_it_tells_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is stopped after it has seen how much is left, and before it has written that down."""
    clock = HandClock(1_000_000_000)
    given = lease(clock, remaining_seconds=31.0, tolerance_seconds=1.0)
    monkeypatch.setattr("tenure.executor.isolation.shared.shared_now", clock)
    monkeypatch.setattr("tenure.executor.isolation.sandbox.shared_now", clock)
    remaining = given.remaining_seconds

    def seen_and_stopped() -> float:
        seen = remaining()
        clock.pass_seconds(20.0)
        return seen

    monkeypatch.setattr(given, "remaining_seconds", seen_and_stopped)
    with contextlib.closing(Cell.new()) as cell:
        _copy(given, cell)
        deadline = cell.read()[0]
    assert deadline == 1_000_000_000 + 30_000_000
