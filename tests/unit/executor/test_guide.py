"""The programs in the guide for executors are what they claim to be."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tenure.executor import Executor
from tests.support.repository import REPOSITORY

GUIDE = REPOSITORY / "docs" / "executors.md"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The guide's Python as one module."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "bookkeeper.py"
    file.write_text("\n".join(blocks))
    return file


def imported(file: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module
    try:
        specification.loader.exec_module(module)
    finally:
        del sys.modules[file.stem]
    return module


def test_the_guides_program_is_an_executor(program: Path) -> None:
    app = imported(program).app
    assert isinstance(app, Executor)
    assert app.handlers["book"].guards is not None


def test_the_guides_program_is_well_typed(program: Path) -> None:
    settings = str(REPOSITORY / "pyproject.toml")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", settings, str(program)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
