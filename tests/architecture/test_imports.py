"""The import rules hold, and each of them notices a violation."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY, ROOTS, package

PURE_IMPORTS = frozenset(
    {
        "__future__", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib",
        "heapq", "itertools", "math", "operator", "re", "typing",
    }
)  # fmt: skip
"""Modules of the standard library that give the same answer for the same arguments."""

PURE_CONTRACT = ("tenure.contract.states", "tenure.contract.ids", "tenure.contract.codes")


def lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter over the sources of `checkout` with the rules of its pyproject.toml."""
    sources = os.pathsep.join(str(checkout / root) for root in ROOTS)
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": sources, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the sources and their rules, to plant violations in."""
    for root in ROOTS:
        shutil.copytree(
            REPOSITORY / root, tmp_path / root, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def test_import_rules_hold(copied: Path) -> None:
    """Over a copy, as in the planted cases: so the copy is what those cases judge."""
    outcome = lint_imports(copied)
    assert outcome.returncode == 0, outcome.stdout
    assert " 0 broken" in outcome.stdout


@pytest.mark.parametrize(
    ("module", "line", "rule"),
    [
        pytest.param(
            "relay/tenure/relay/planted.py",
            "import tenure.coordinator",
            "The processes and the client never import each other",
            id="process imports process",
        ),
        pytest.param(
            "contract/tenure/contract/planted.py",
            "import tenure.client",
            "The contract is a leaf",
            id="contract imports a process",
        ),
        pytest.param(
            "executor/tenure/executor/planted.py",
            "import tenure.cli",
            "Only cli may import all: nobody imports cli",
            id="process imports cli",
        ),
        pytest.param(
            "coordinator/tenure/coordinator/core/planted.py",
            "import time",
            "Cores, states and ids are pure",
            id="core reads a clock",
        ),
        pytest.param(
            "coordinator/tenure/coordinator/core/planted.py",
            "import tenure.coordinator.planted_beside",
            "Cores, states and ids are pure",
            id="core reaches a clock through another module",
        ),
        pytest.param(
            "client/tenure/client/planted.py",
            "import asyncpg",
            "Few modules know the database driver",
            id="driver outside its modules",
        ),
        pytest.param(
            "executor/tenure/executor/planted.py",
            "import sqlalchemy",
            "Only guards know the libraries of receivers",
            id="a receiver's library outside the guards",
        ),
        pytest.param(
            "executor/tenure/executor/planted.py",
            "import aio_pika",
            "Few modules know AMQP",
            id="amqp outside its modules",
        ),
    ],
)
def test_a_planted_violation_is_noticed(copied: Path, module: str, line: str, rule: str) -> None:
    (copied / "coordinator/tenure/coordinator/planted_beside.py").write_text("import random\n")
    (copied / module).write_text(f"{line}\n")
    outcome = lint_imports(copied)
    assert outcome.returncode == 1, outcome.stdout
    assert f"{rule} BROKEN" in outcome.stdout


def core_files() -> list[Path]:
    """All files that must be pure."""
    cores = [file for root in ROOTS for file in (package(root) / "core").rglob("*.py")]
    contract = [package("contract") / "states.py", package("contract") / "ids.py"]
    return [*cores, *contract]


def impure_imports(source: str, core: str) -> list[str]:
    """Imports in `source` beyond the pure standard library, the pure contract and the own core."""
    wanted: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            wanted += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "tenure.contract":
            wanted += [f"tenure.contract.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            wanted.append(node.module or "")
    own = (*PURE_CONTRACT, core)
    return [
        name
        for name in wanted
        if name.partition(".")[0] not in PURE_IMPORTS
        and not any(name == allowed or name.startswith(f"{allowed}.") for allowed in own)
    ]


@pytest.mark.parametrize("file", core_files(), ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_pure_files_import_only_what_is_listed(file: Path) -> None:
    """A list of what is allowed also stops what nobody thought of forbidding."""
    root = file.relative_to(REPOSITORY).parts[0]
    assert impure_imports(file.read_text(encoding="utf-8"), f"tenure.{root}.core") == []


def test_an_impure_import_is_noticed() -> None:
    source = (
        "import enum\nimport platform\nfrom tenure.contract import ids, codec\n"
        "from tenure.relay.core.plan import Plan\nfrom tenure.relay.log import Log\n"
    )
    assert impure_imports(source, "tenure.relay.core") == [
        "platform",
        "tenure.contract.codec",
        "tenure.relay.log",
    ]
