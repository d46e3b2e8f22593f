"""The tree keeps the layout that the tools rely on: one namespace package over several roots."""

from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY, ROOTS, package


def code_folders(top: Path) -> list[Path]:
    """The folder `top` and all below it that hold Python files, at any depth."""
    below = (folder for folder in top.rglob("*") if folder.is_dir())
    folders = [top, *(folder for folder in below if "__pycache__" not in folder.parts)]
    return [folder for folder in folders if any(folder.rglob("*.py"))]


def folders_without_init(top: Path) -> list[Path]:
    """Folders with code that import-linter would silently leave out, violations included."""
    return [folder for folder in code_folders(top) if not (folder / "__init__.py").is_file()]


@pytest.mark.parametrize("root", ROOTS)
def test_every_folder_with_code_is_a_package(root: str) -> None:
    assert code_folders(package(root)) != []
    assert folders_without_init(package(root)) == []


def test_a_folder_without_init_is_noticed(tmp_path: Path) -> None:
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").touch()
    (inner / "module.py").touch()
    assert folders_without_init(tmp_path / "package") == [inner]


@pytest.mark.parametrize("root", ROOTS)
def test_a_source_root_holds_only_its_package(root: str) -> None:
    """A regular `tenure` package in one root would hide the others."""
    caches = {"__pycache__"}
    outer = {entry.name for entry in (REPOSITORY / root).iterdir()}
    assert outer - caches - {"README.md"} == {"tenure"}
    inner = {entry.name for entry in (REPOSITORY / root / "tenure").iterdir()}
    assert inner - caches == {root}


@pytest.mark.parametrize("root", ROOTS)
def test_a_source_root_says_what_is_in_it(root: str) -> None:
    assert (REPOSITORY / root / "README.md").is_file()


@pytest.mark.parametrize("root", ROOTS)
def test_every_package_is_marked_as_typed(root: str) -> None:
    assert (package(root) / "py.typed").is_file()


def test_test_folders_are_not_packages() -> None:
    """Without `__init__.py` two folders may hold test files of the same name."""
    assert list((REPOSITORY / "tests").rglob("__init__.py")) == []
