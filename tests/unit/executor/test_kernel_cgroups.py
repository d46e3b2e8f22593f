"""Control groups of the kernel's own: what they hold an attempt to, and that nothing outlives it.

Without a mounted hierarchy of version 2 that has the controllers most of this is skipped;
``make trial-cgroups`` runs all of it in a kernel of its own.
"""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tenure.contract.codes import Reason
from tenure.contract.reports import Deliver
from tenure.executor import Resources, TaskType
from tenure.executor.isolation.cgroup import MAX_PROCESSES, Cgroup
from tenure.executor.isolation.place import Place
from tests.support.attempts import assignment, new_id
from tests.support.isolated_app import Done, Job, work
from tests.support.pipeline_bench import Bench, only_fail
from tests.support.process_lives import lives

JOB = TaskType("job", input=Job, output=Done)
CONTROLLERS: Final = ("cpu", "memory", "pids")


@pytest.fixture
def hierarchy(tmp_path: Path) -> Iterator[Path]:
    """The kernel's groups of version 2."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount control groups")
    mounted = tmp_path / "cgroup"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "cgroup2", "none", str(mounted)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("control groups of version 2 cannot be mounted here")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.fixture
def folder(hierarchy: Path) -> Iterator[Path]:
    """A folder as an executor is given it."""
    made = hierarchy / f"tenure-test-{secrets.token_hex(6)}"
    made.mkdir()
    yield made
    made.rmdir()  # nothing may be left in it


@pytest.fixture
def delegated(hierarchy: Path, folder: Path) -> Path:
    """The same, with every controller that is used."""
    missing = {*CONTROLLERS} - {*(hierarchy / "cgroup.controllers").read_text().split()}
    if missing:
        pytest.skip(f"no control groups of version 2 for {', '.join(sorted(missing))}")
    (hierarchy / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in CONTROLLERS))
    return folder


def groups_of(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.is_dir())


def bench(folder: Path, do: str, path: object = "", **options: Any) -> Bench:
    made = Bench(
        work,
        task_type=JOB,
        place=Place(cgroup=folder),
        runs_in="process",
        time_limit_seconds=120.0,
        **options,
    )
    made.reports.input = {"do": do, "path": str(path)}
    return made


async def delivered(made: Bench) -> Deliver:
    (report,) = await made.run(assignment("job"))
    assert isinstance(report, Deliver), report
    return report


@pytest.mark.requirement("LEASE-11")
async def test_nothing_of_an_attempt_is_left_also_not_what_left_its_process_group(
    folder: Path, tmp_path: Path
) -> None:
    report = await delivered(bench(folder, "leave", tmp_path / "pid"))
    assert report.enforced is not None
    assert report.enforced.cgroup is True
    assert not lives(int((tmp_path / "pid").read_text()))
    assert groups_of(folder) == []


MAKER: Final = """
import sys, time
from pathlib import Path
from tenure.executor import Resources
from tenure.executor.isolation.cgroup import Cgroup
folder = Path(sys.argv[1])
group = Cgroup.make(folder.parent, folder.name, Resources())
print("made", flush=True)
time.sleep(600)
"""
CLEARER: Final = """
import sys
from pathlib import Path
from tenure.executor.isolation.cgroup import Cgroup
print(Cgroup.clear(Path(sys.argv[1])))
"""


def another_clears(folder: Path) -> int:
    """How many groups another process finds that nobody holds."""
    done = subprocess.run(
        [sys.executable, "-c", CLEARER, str(folder)], capture_output=True, check=True
    )
    return int(done.stdout)


@pytest.mark.requirement("LEASE-11")
def test_the_next_executor_ends_what_one_left_that_was_killed_and_nothing_else(
    folder: Path,
) -> None:
    left, held, other = (folder / name for name in (new_id(), new_id(), "executor"))
    other.mkdir()
    strays = [
        subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in (left, held, other)
    ]
    maker = subprocess.Popen([sys.executable, "-c", MAKER, str(left)], stdout=subprocess.PIPE)
    holder = Cgroup.make(folder, held.name, Resources())
    try:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"made\n"
        for group, stray in zip((left, held, other), strays, strict=True):
            (group / "cgroup.procs").write_text(str(stray.pid))
        assert another_clears(folder) == 0, "its executor lives"
        maker.kill()
        maker.wait()
        assert another_clears(folder) == 1
        assert [stray.wait() for stray in strays[:1]] == [-signal.SIGKILL]
        assert [lives(stray.pid) for stray in strays[1:]] == [True, True]
        assert groups_of(folder) == sorted([held.name, other.name])
    finally:
        for each in (maker, *strays):
            each.kill()
            each.communicate()
        holder.remove()
        other.rmdir()


@pytest.mark.requirement("LEASE-11")
async def test_with_every_controller_the_receipt_names_nothing_that_was_not_enforced(
    delegated: Path,
) -> None:
    report = await delivered(
        bench(delegated, "add", resources=Resources.of(cpu="500m", memory="512Mi"))
    )
    assert report.enforced is not None
    assert (report.enforced.cgroup, report.enforced.not_enforced) == (True, ())


@pytest.mark.requirement("LEASE-11")
async def test_processes_that_take_too_much_memory_together_are_ended_together(
    delegated: Path, tmp_path: Path
) -> None:
    """Each of them stays below what one process may allocate."""
    made = bench(delegated, "crowd", tmp_path / "pids", resources=Resources.of(memory="128Mi"))
    failed = only_fail(await made.run(assignment("job")))
    assert failed.reason == Reason.RESOURCE_LIMIT
    assert failed.message == "it needed more memory than its reservation"
    pids = [int(each) for each in (tmp_path / "pids").read_text().split()]
    assert [pid for pid in pids if lives(pid)] == []


@pytest.mark.requirement("LEASE-11")
async def test_an_attempt_gets_no_more_of_the_processors_than_it_has_reserved(
    delegated: Path,
) -> None:
    """It computes until the kernel has made it wait."""
    given = assignment("job")
    made = bench(
        delegated,
        "be_throttled",
        delegated / given.attempt_id,
        resources=Resources.of(cpu="400m"),
    )
    (report,) = await made.run(given)
    assert isinstance(report, Deliver), report
    assert report.output["said"] == "40000 100000"


@pytest.mark.requirement("LEASE-11")
async def test_an_attempt_cannot_fill_the_machine_with_processes(delegated: Path) -> None:
    report = await delivered(bench(delegated, "multiply", MAX_PROCESSES + 8))
    assert report.output["said"] == "can't start new thread"
    assert 0 < report.output["number"] < MAX_PROCESSES
