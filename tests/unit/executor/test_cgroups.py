"""Control groups: what is set in a delegated folder, and what is told where it cannot be."""

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure.contract.reports import Deliver
from tenure.executor import Limits, Resources, TaskType
from tenure.executor.isolation.cgroup import MAX_PROCESSES, Cgroup
from tenure.executor.isolation.place import Place
from tests.support.attempts import assignment
from tests.support.isolated_app import Done, Job, work
from tests.support.pipeline_bench import Bench
from tests.support.process_lives import lives

JOB = TaskType("job", input=Job, output=Done)
RESERVED = Resources.of(cpu="500m", memory="256Mi")
FILES = ("cgroup.procs", "cgroup.kill", "pids.max", "memory.max", "memory.oom.group", "cpu.max")


def with_files(*names: str) -> Callable[[Path], None]:
    """Makes groups as the kernel does, with these files in them."""

    def create(folder: Path) -> None:
        folder.mkdir()
        for name in names:
            (folder / name).touch()

    return create


def groups_of(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if each.is_dir()]


@pytest.mark.requirement("LEASE-11")
def test_the_reservation_becomes_the_limits_of_the_group(tmp_path: Path) -> None:
    group = Cgroup.make(tmp_path, "a", RESERVED, create=with_files(*FILES))
    found = {name: (group.folder / name).read_text() for name in FILES}
    assert found == {
        "cgroup.procs": "",
        "cgroup.kill": "",
        "pids.max": str(MAX_PROCESSES),
        "memory.max": str(256 << 20),
        "memory.oom.group": "1",
        "cpu.max": "50000 100000",
    }
    assert group.not_enforced == []
    group.kill()
    assert (group.folder / "cgroup.kill").read_text() == "1"


@pytest.mark.requirement("LEASE-11")
def test_a_controller_that_is_not_delegated_is_told(tmp_path: Path) -> None:
    group = Cgroup.make(tmp_path, "a", RESERVED, create=with_files("cgroup.procs", "pids.max"))
    why = "its controller is not delegated to the folder"
    assert group.not_enforced == [f"cgroup memory: {why}", f"cgroup cpu: {why}"]
    assert sorted(each.name for each in group.folder.iterdir()) == ["cgroup.procs", "pids.max"]


def test_a_controller_is_passed_on_to_the_groups_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").touch()
    Cgroup.make(tmp_path, "a", Resources(), create=with_files("cgroup.procs"))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids"


@pytest.mark.requirement("LEASE-11")
async def test_a_folder_that_is_no_control_group_is_not_said_to_enforce_anything(
    tmp_path: Path,
) -> None:
    bench = Bench(work, task_type=JOB, place=Place(cgroup=tmp_path), runs_in="process")
    bench.reports.input = {"do": "add"}
    (report,) = await bench.run(assignment("job"))
    assert isinstance(report, Deliver), report
    assert report.enforced is not None
    assert report.enforced.cgroup is False
    assert report.enforced.not_enforced == ("cgroup: the folder is no control group of version 2",)
    assert groups_of(tmp_path) == []


def test_a_process_that_was_ended_for_its_memory_is_told_by_the_kernel(tmp_path: Path) -> None:
    group = Cgroup.make(tmp_path, "a", Resources(), create=with_files("cgroup.procs"))
    assert not group.ran_out_of_memory()
    for text, expected in (("low 0\noom 1\noom_kill 0\n", False), ("oom_kill 2\n", True)):
        (group.folder / "memory.events").write_text(text)
        assert group.ran_out_of_memory() is expected


@pytest.fixture
def delegated(tmp_path: Path) -> Iterator[Path]:
    """A real folder of control groups, where one can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount control groups")
    mounted = tmp_path / "cgroup"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "cgroup2", "none", str(mounted)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("control groups of version 2 cannot be mounted here")
    folder = mounted / f"tenure-test-{secrets.token_hex(6)}"
    try:
        folder.mkdir()
        yield folder
        folder.rmdir()
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.mark.requirement("LEASE-11")
async def test_a_real_group_leaves_nothing_of_an_attempt_also_not_what_left_its_process_group(
    delegated: Path, tmp_path: Path
) -> None:
    bench = Bench(
        work,
        task_type=JOB,
        place=Place(cgroup=delegated),
        runs_in="process",
        time_limit_seconds=60.0,
        limits=Limits(),
    )
    bench.reports.input = {"do": "leave", "path": str(tmp_path / "pid")}
    (report,) = await bench.run(assignment("job"))
    assert isinstance(report, Deliver), report
    assert report.enforced is not None
    assert report.enforced.cgroup is True
    assert not lives(int((tmp_path / "pid").read_text()))
    assert groups_of(delegated) == []
