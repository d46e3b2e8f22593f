"""Tracked files are tidy, name no machine, and lock dependencies by hash only."""

import re
from pathlib import Path

import pytest

from tests.support.documents import without_blocks
from tests.support.repository import REPOSITORY, tracked_files

# Put together from parts, so that this file does not match itself.
MACHINE_PATH = re.compile(
    r"(?<![\w.}/~-])/(?:"
    + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me", "Us" + "ers"])
    + r")/[\w.]"
)
ADDRESS = re.compile(r"\w+://|--(?:extra-)?index|--find-links|(?<!\w)-[if] |@ ?file:")
BINARY = frozenset({".png", ".ico", ".woff2"})
TABS_MEAN_SOMETHING = frozenset({"Makefile", ".gitmodules"})

LOCKS = sorted((REPOSITORY / "requirements").glob("*.txt"))


def texts() -> list[tuple[str, str]]:
    """Name and text of every tracked text file; raises UnicodeDecodeError for another coding."""
    return [
        (str(path.relative_to(REPOSITORY)), path.read_bytes().decode("utf-8"))
        for path in tracked_files()
        if path.suffix not in BINARY
    ]


def untidy(name: str, text: str) -> list[str]:
    """What is wrong with the look of a text file."""
    faults = []
    if text and not text.endswith("\n"):
        faults.append("no newline at the end")
    if text.endswith("\n\n"):
        faults.append("empty lines at the end")
    if "\r" in text:
        faults.append("carriage return")
    if "\t" in text and Path(name).name not in TABS_MEAN_SOMETHING:
        faults.append("tab")
    if re.search(r"[ \t]$", text, re.MULTILINE):
        faults.append("space at the end of a line")
    if re.search(r"^(?:<{7}|>{7}) ", text, re.MULTILINE):
        faults.append("marks of a merge conflict")
    return faults


def test_tracked_files_are_tidy() -> None:
    faults = {name: untidy(name, text) for name, text in texts()}
    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.parametrize("text", ["a", "a\n\n", "a\r\n", "a\tb\n", "a \n", f"a\n{'<' * 7} HEAD\n"])
def test_an_untidy_file_is_noticed(text: str) -> None:
    assert untidy("file.py", text) != []


def test_tracked_files_name_no_machine_path() -> None:
    found = {name: match.group() for name, text in texts() if (match := MACHINE_PATH.search(text))}
    assert found == {}


def test_a_machine_path_is_noticed() -> None:
    assert MACHINE_PATH.search("see /" + "home/someone/notes")
    assert MACHINE_PATH.search('"/' + 'root/.cache"')
    assert not MACHINE_PATH.search("/v1/" + "work/items")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_dependency_is_exact_and_hashed(lock: Path) -> None:
    """No address, so the lock says what is installed and never from where."""
    text = lock.read_text(encoding="utf-8")
    assert ADDRESS.search(text) is None
    entries = re.findall(r"^(?:[^\s#].*\n)(?:[ \t].*\n)*", text, re.MULTILINE)
    assert entries != []
    loose = [
        entry.splitlines()[0]
        for entry in entries
        if not re.match(r"^[a-z0-9-]+(?:\[[a-z0-9,-]+\])?==\S+", entry)
        or not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)
    ]
    assert loose == []


def test_all_locks_exist() -> None:
    assert [lock.name for lock in LOCKS] == ["bench.txt", "bootstrap.txt", "dev.txt", "image.txt"]


def test_the_image_has_the_versions_that_are_tested() -> None:
    pins = {
        lock.name: set(
            re.findall(r"^[a-z0-9-]+==\S+(?: ;.*)?", lock.read_text("utf-8"), re.MULTILINE)
        )
        for lock in LOCKS
    }
    versions = {name: {pin.partition(" ")[0] for pin in found} for name, found in pins.items()}
    assert versions["image.txt"] <= versions["dev.txt"]


HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(document: Path) -> set[str]:
    """What a link may name in a Markdown document: its headings as GitHub writes them."""
    text = without_blocks(document.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def broken_links(document: Path) -> list[str]:
    """Relative links of a Markdown document that lead to no file, folder or heading."""
    text = without_blocks(document.read_text(encoding="utf-8"))
    broken = []
    for target, anchor in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        found = document.parent / target if target else document
        if not found.exists():
            broken.append(target)
        elif anchor and found.suffix == ".md" and anchor not in anchors(found):
            broken.append(f"{target}#{anchor}")
    return broken


def test_documents_link_to_what_exists() -> None:
    found = {
        str(path.relative_to(REPOSITORY)): broken_links(path)
        for path in tracked_files()
        if path.suffix == ".md"
    }
    assert {name: links for name, links in found.items() if links} == {}


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "# The `top`, here\n[self](page.md#the-top-here) [none](#nothing) [gone](gone.md)"
        " [web](https://example.org#x)\n```\n# no heading\n```\n[code](page.md#no-heading)\n"
    )
    assert broken_links(document) == ["#nothing", "gone.md", "page.md#no-heading"]


def test_the_map_of_the_documentation_has_every_page() -> None:
    folder = REPOSITORY / "docs"
    named = {target for target, _ in LINK.findall((folder / "README.md").read_text("utf-8"))}
    pages = {path.name for path in tracked_files() if path.parent == folder} - {"README.md"}
    assert len(pages) >= 20
    assert pages - named == set()


def test_each_decision_has_a_number_of_its_own() -> None:
    numbers = [path.name[:4] for path in tracked_files() if path.parent.name == "decisions"]
    assert len(numbers) >= 16
    assert sorted(numbers) == sorted(set(numbers))
