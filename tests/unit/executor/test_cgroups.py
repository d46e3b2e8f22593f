"""Control groups: what is set in a delegated folder, and what is told where it cannot be."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tenure.contract.reports import Deliver
from tenure.executor import Resources, TaskType
from tenure.executor.isolation import process
from tenure.executor.isolation.cgroup import MAX_PROCESSES, Cgroup
from tenure.executor.isolation.place import Place
from tests.support.attempts import assignment
from tests.support.isolated_app import Done, Job, work
from tests.support.pipeline_bench import Bench

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


@pytest.mark.requirement("LEASE-11")
async def test_an_attempt_that_cannot_join_its_group_runs_and_its_receipt_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(folder: Path) -> None:
        with_files("pids.max")(folder)
        (folder / "cgroup.procs").mkdir()  # it is there, and cannot be written

    def make(parent: Path, name: str, resources: Resources) -> Cgroup:
        return Cgroup.make(parent, name, resources, create=create)

    monkeypatch.setattr(process, "Cgroup", SimpleNamespace(make=make))
    bench = Bench(work, task_type=JOB, place=Place(cgroup=tmp_path), runs_in="process")
    bench.reports.input = {"do": "add"}
    (report,) = await bench.run(assignment("job"))
    assert isinstance(report, Deliver), report
    assert report.enforced is not None
    assert report.enforced.cgroup is False
    assert report.enforced.not_enforced == ("cgroup: it cannot be joined: Is a directory",)


def test_a_process_that_was_ended_for_its_memory_is_told_by_the_kernel(tmp_path: Path) -> None:
    group = Cgroup.make(tmp_path, "a", Resources(), create=with_files("cgroup.procs"))
    assert not group.ran_out_of_memory()
    for text, expected in (("low 0\noom 1\noom_kill 0\n", False), ("oom_kill 2\n", True)):
        (group.folder / "memory.events").write_text(text)
        assert group.ran_out_of_memory() is expected
