"""Which tests prove which requirement: ``docs/requirements.md``, and a table on the terminal.

The rules are written in the page by hand, a row each; which tests there are and how they ended is
filled in. ``make conformance`` runs the tests that carry a requirement's id and writes the page;
``python -m tests.support.conformance`` only says anew which tests there are.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "requirements.md"
NOT_RUN = "not run yet"
NO_TEST = "no test yet"
_BUILT = re.compile(r"\*\*Built so far: (.+?)\.?\*\*")
_ROW = re.compile(r"^\| ([A-Z]+-\d+) \| (.+) \| (.*) \| ([a-z ]+) \|$")


@dataclass(frozen=True)
class Row:
    """A requirement, and how its tests ended when they were run last."""

    identity: str
    rule: str
    result: str

    @property
    def built(self) -> str | None:
        """What is built of a requirement that is only built in part."""
        found = _BUILT.search(self.rule)
        return None if found is None else found[1]

    def line(self, tests: int) -> str:
        """The requirement in a table for a terminal, with as many tests as were run."""
        result = self.result
        if self.built is not None and result == "passed":
            result = "passed in part"  # what is not built has no test that could fail
        rule = self.rule[:60] if self.built is None else f"built so far: {self.built}"
        return f"{self.identity:10} {tests:4} tests  {result:14}  {rule}"


def rows(page: str) -> list[Row]:
    """The requirements that a page lists."""
    found = (_ROW.match(line) for line in page.splitlines())
    return [Row(one[1], one[2], one[4]) for one in found if one is not None]


def filled_in(page: str, results: Mapping[str, str] | None = None) -> str:
    """The page with the tests there are, and with ``results`` where these say something."""
    files = tests_by_requirement()
    lines = []
    for line in page.splitlines():
        found = _ROW.match(line)
        if found is not None:
            identity, result = found[1], (results or {}).get(found[1], found[4])
            paths = files.get(identity, ())
            if not paths:
                result = NO_TEST
            elif result == NO_TEST:
                result = NOT_RUN
            tests = ", ".join(f"[{Path(path).stem}](../{path})" for path in paths)
            line = f"| {identity} | {found[2]} | {tests} | {result} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def tests_by_requirement() -> dict[str, tuple[str, ...]]:
    """Files with tests that carry a requirement's id, by the id."""
    files: dict[str, set[str]] = defaultdict(set)
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        for identity in _marks(ast.parse(path.read_text(encoding="utf-8"))):
            files[identity].add(path.relative_to(REPOSITORY).as_posix())
    return {identity: tuple(sorted(found)) for identity, found in files.items()}


def _marks(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "requirement"
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value)


def conclude(reporter: pytest.TerminalReporter) -> None:
    """Print the table of a run, and write the results into the page."""
    ended: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in reporter.getreports(outcome):
            for name, value in getattr(report, "user_properties", ()):
                if name == "requirement":
                    ended[str(value)][outcome].add(report.nodeid)
    files = tests_by_requirement()
    results = {
        identity: _result(outcomes)
        for identity, outcomes in ended.items()
        if {one.partition("::")[0] for one in set[str]().union(*outcomes.values())}
        >= {*files.get(identity, ())}  # a part of its tests says nothing
    }
    page = filled_in(PAGE.read_text(encoding="utf-8"), results)
    PAGE.write_text(page, encoding="utf-8")
    reporter.section("requirements")
    for row in rows(page):
        tests = len(set[str]().union(*ended[row.identity].values()))
        reporter.write_line(row.line(tests))


def _result(outcomes: Mapping[str, set[str]]) -> str:
    if outcomes.get("failed") or outcomes.get("error"):
        return "failed"
    return "passed" if outcomes.get("passed") else "skipped"


if __name__ == "__main__":
    PAGE.write_text(filled_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
