"""The glossary has the words that the pages introduce, and the states that the code has."""

import re
from enum import StrEnum

import pytest

from tenure.contract.states import AttemptState, Effects, NodeState, Phase, TaskState
from tests.support.documents import without_code
from tests.support.repository import REPOSITORY

GLOSSARY = REPOSITORY / "docs" / "glossary.md"
ROW = re.compile(r"^\| (?P<first>.+?) \| (?P<second>.+) \|$", re.MULTILINE)
EMPHASISED = re.compile(r"(?<!\*)\*(?P<words>\w[\w -]*\w)\*(?!\*)")
STRESSED = {
    "after",
    "before",
    "behind",
    "delivers",
    "handled",
    "left out",
    "output",
    "running",
    "seals",
    "settled",
    "submitted",
    "taken",
    "whole",
}
"""Emphasised for another reason than to be introduced, or a form of a word that is listed."""


def table(heading: str) -> dict[str, str]:
    """The rows below a table's first heading, by their first column."""
    text = GLOSSARY.read_text(encoding="utf-8")
    _, found, rest = text.partition(f"| {heading} | ")
    assert found, heading
    rows = rest.partition("\n|---|---|\n")[2].partition("\n\n")[0]
    return {row["first"]: row["second"] for row in ROW.finditer(rows)}


def test_words_are_listed_once_and_in_order() -> None:
    rows = ROW.findall(GLOSSARY.read_text(encoding="utf-8").partition("## States")[0])
    words = [word for word, _ in rows if word != "Word"]
    assert words == sorted(set(words), key=str.lower)


def test_words_that_pages_introduce_are_listed() -> None:
    words = set(table("Word"))
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    introduced = {
        (" ".join(found["words"].lower().split()), page.name)
        for page in pages
        for found in EMPHASISED.finditer(without_code(page.read_text(encoding="utf-8")))
    }
    assert {word for word, _ in introduced} >= {"attempt", "fencing token", "subscription"}
    assert {pair for pair in introduced if pair[0] not in words | STRESSED} == set()


@pytest.mark.parametrize(
    ("heading", "states"),
    [
        ("A task is", TaskState),
        ("An attempt is", AttemptState),
        ("A start of a node is", NodeState),
        ("A phase is", Phase),
        ("Effects are", Effects),
    ],
)
def test_states_are_those_of_the_code(heading: str, states: type[StrEnum]) -> None:
    listed = [word for first in table(heading) for word in re.findall(r"`(\w+)`", first)]
    assert listed == [state.value for state in states]
