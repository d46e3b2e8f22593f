"""The testing kit stands beside the processes: none of them loads it, and it needs no server's
library (decision 0070)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY, ROOTS, package

KIT = "tenure.executor.testing"
MODEL = "tenure.coordinator.model"
MAY_USE = {
    KIT: (
        "executor/tenure/executor/testing/",
        "cli/tenure/cli/pytest_plugin.py",
        "cli/tenure/cli/testing/",
    ),
    MODEL: ("coordinator/tenure/coordinator/model/", "executor/tenure/executor/testing/memory/"),
}
"""Who may import them, among what is shipped."""


def imported_by(file: Path) -> set[str]:
    """The modules that a file names in its imports, wherever they stand."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("kept_apart", [KIT, MODEL])
def test_no_process_loads_it(kept_apart: str) -> None:
    users = {
        str(file.relative_to(REPOSITORY))
        for root in ROOTS
        for file in package(root).rglob("*.py")
        if any(
            name == kept_apart or name.startswith(f"{kept_apart}.") for name in imported_by(file)
        )
    }
    assert users != set()
    assert {user for user in users if not user.startswith(MAY_USE[kept_apart])} == set()


def test_it_needs_what_executors_need_and_no_more() -> None:
    """An environment with the extra `executor` has none of the coordinator's libraries."""
    program = (
        "import sys;"
        "sys.modules.update(dict.fromkeys(('asyncpg', 'starlette', 'uvicorn', 'uuid_utils')));"
        "import tenure.executor.testing"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
