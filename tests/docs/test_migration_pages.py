"""The migration pages: the other side's programs are Python, and ours take their place.

Ours are run like every page's (``test_pages.py``). Theirs need packages that are no dependencies
here, and are parsed.
"""

import ast

import pytest

from tests.support.documents import Block, pages

PEERS = {"celery": "Celery", "dramatiq": "Dramatiq", "procrastinate": "Procrastinate"}


def theirs(page: str) -> list[Block]:
    return [block for block in pages()[page] if block.skip == "peer"]


@pytest.mark.parametrize("package", PEERS)
def test_the_other_sides_programs_are_python(package: str) -> None:
    blocks = theirs(f"docs/migrate-from-{package}.md")
    assert [block.text.splitlines()[0].endswith(f"with {PEERS[package]}") for block in blocks] == [
        True,
        True,
    ]
    imported = set()
    for block in blocks:
        for node in ast.walk(ast.parse(block.text, block.place)):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    assert package in imported
