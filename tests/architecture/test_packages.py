"""The tree keeps the layout that the tools rely on: one namespace package over six source roots."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ROOTS = ("contract", "coordinator", "relay", "executor", "client", "cli")


def package_folders(root: str) -> list[Path]:
    """All folders at and below the top package of a source root that are part of the program."""
    top = REPOSITORY / root / "tenure" / root
    below = (folder for folder in top.rglob("*") if folder.is_dir())
    return [top, *(folder for folder in below if "__pycache__" not in folder.parts)]


@pytest.mark.parametrize("root", ROOTS)
def test_every_folder_with_code_is_a_package(root: str) -> None:
    """import-linter silently leaves out a folder without `__init__.py`, and so its violations."""
    bare = [
        folder.relative_to(REPOSITORY)
        for folder in package_folders(root)
        if any(folder.rglob("*.py")) and not (folder / "__init__.py").is_file()
    ]
    assert bare == []


@pytest.mark.parametrize("root", ROOTS)
def test_a_source_root_holds_only_the_namespace(root: str) -> None:
    """A regular `tenure` package in one root would hide the five others."""
    assert not (REPOSITORY / root / "tenure" / "__init__.py").exists()
    visible = {entry.name for entry in (REPOSITORY / root).iterdir()} - {"README.md", "__pycache__"}
    assert visible == {"tenure"}
    inner = {entry.name for entry in (REPOSITORY / root / "tenure").iterdir()} - {"__pycache__"}
    assert inner == {root}


@pytest.mark.parametrize("root", ROOTS)
def test_every_package_is_marked_as_typed(root: str) -> None:
    assert (REPOSITORY / root / "tenure" / root / "py.typed").is_file()
