"""What a program's digest covers: its Python files, and nothing of the machine."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tenure.executor.executable import executable_of, inventory_digest


def program(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with a handler and a helper, imported from ``folder``."""
    package = folder / name
    (package / "inner").mkdir(parents=True, exist_ok=True)
    for path in ("__init__.py", "inner/__init__.py"):
        (package / path).write_text("", encoding="utf-8")
    (package / "helper.py").write_text(text, encoding="utf-8")
    (package / "inner" / "work.py").write_text("def handler(a, b): ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    for known in [one for one in sys.modules if one.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, known)
    return importlib.import_module(f"{name}.inner.work")


def digest(module: ModuleType) -> str:
    found = executable_of("p", "1", [module.handler])
    assert found is not None
    return found.digest


@pytest.mark.requirement("OPS-02")
def test_the_digest_is_of_every_file_of_the_package_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digest(program(tmp_path / "a", "sample_program", "X = 1\n", monkeypatch))
    assert digest(program(tmp_path / "b", "sample_program", "X = 1\n", monkeypatch)) == first
    assert digest(program(tmp_path / "c", "sample_program", "X = 2\n", monkeypatch)) != first


def test_a_digest_that_is_given_stands_for_the_build() -> None:
    found = executable_of("p", "1", [], build_digest="ab" * 32)
    assert found is not None
    assert (found.name, found.version, found.digest) == ("p", "1", "ab" * 32)
    assert found.inventory_digest == inventory_digest()


def test_a_program_without_files_is_unknown() -> None:
    namespace: dict[str, object] = {"__name__": "nowhere"}
    exec("def handler(a, b): ...", namespace)
    assert executable_of("p", "1", [namespace["handler"]]) is None  # type: ignore[list-item]
