"""How many slots a node has when nobody says: what its container is granted."""

import os
from pathlib import Path

import pytest

from tenure.executor.config import load_settings
from tenure.executor.cores import available_cores

BOUND = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cgroups(folder: Path) -> tuple[Path, Path]:
    """A tree of control groups, and the file that says where in it the process is."""
    (folder / "fs").mkdir()
    own = folder / "own"
    own.write_text("0::/a/b\n")
    return folder / "fs", own


def quota(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("of_the_group", "above", "cores"),
    [
        ("max 100000", "max 100000", BOUND),
        ("100000 100000", "max 100000", 1),
        ("50000 100000", "max 100000", 1),
        ("150000 100000", "max 100000", min(2, BOUND)),
        ("max 100000", "100000 100000", 1),
        ("nonsense", "", BOUND),
    ],
)
def test_the_least_quota_counts(tmp_path: Path, of_the_group: str, above: str, cores: int) -> None:
    tree, own = cgroups(tmp_path)
    quota(tree, "a/b/cpu.max", of_the_group)
    quota(tree, "a/cpu.max", above)
    assert available_cores(tree, own) == cores


def test_the_first_version_is_read_too(tmp_path: Path) -> None:
    tree, own = cgroups(tmp_path)
    quota(tree, "cpu/cpu.cfs_quota_us", "100000")
    quota(tree, "cpu/cpu.cfs_period_us", "100000")
    assert available_cores(tree, own) == 1
    quota(tree, "cpu/cpu.cfs_quota_us", "-1")
    assert available_cores(tree, own) == BOUND


def test_without_control_groups_it_is_what_the_process_is_bound_to(tmp_path: Path) -> None:
    assert available_cores(tmp_path / "none", tmp_path / "nothing") == BOUND


@pytest.mark.parametrize("values", [{}, {"slots": "auto"}])
def test_that_is_what_auto_means_and_the_default(values: dict[str, str]) -> None:
    settings = load_settings(token="executor-token-0001", no_broker=True, **values)
    assert settings.slots == available_cores()
