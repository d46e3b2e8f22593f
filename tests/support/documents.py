"""Code blocks of the Markdown pages, and what their readers are expected to do with them.

A block's language says how it is run (``tests/docs/test_pages.py``):

``console``  commands, typed one after the other into the reader's terminal
``python``   a file when its first line is ``# NAME.py``, else a script that is run
``toml``     a file when its first line is ``# NAME.toml``, else read as TOML
``sql``      statements for the database of the stack that runs in the terminal's folder
``json``     read as JSON
``text``     what the block before it prints; ``…`` stands for anything

Comments directly before a block say the rest:

``<!-- skip NAME: reason -->``  the block is not run; the numbers of each NAME are asserted
``<!-- keeps running -->``      the reader leaves it running; it gets Ctrl-C at the end of the page
``<!-- new terminal -->``       the reader opens another terminal, which knows nothing of the others
``<!-- another port for N -->`` the tests take a free port in place of N, here and further down
``<!-- after PAGE -->``         the reader has just done what that page says, and is where it ends
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.repository import REPOSITORY, tracked_files

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)\s*$")
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^ *<!-- (?P<text>.*?) -->$")
_SKIP = re.compile(r"skip (?P<name>[a-z-]+): (?P<reason>.+)")
_FILE = re.compile(r"# (?P<name>[\w./-]+\.(?:py|toml))\n")
KEEPS_RUNNING = "keeps running"
NEW_TERMINAL = "new terminal"
AFTER = "after "
ANOTHER_PORT = "another port for "


@dataclass(frozen=True)
class Block:
    """One code block. ``line`` is where its fence is; ``skip`` the name it is skipped under."""

    page: str
    line: int
    language: str
    text: str
    skip: str | None
    directions: frozenset[str]

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"

    @property
    def after(self) -> str | None:
        """The page that the reader comes from."""
        return self._direction(AFTER)

    @property
    def port(self) -> str | None:
        """The port that may be taken on this machine."""
        return self._direction(ANOTHER_PORT)

    def _direction(self, beginning: str) -> str | None:
        found = [text for text in self.directions if text.startswith(beginning)]
        return found[0].removeprefix(beginning) if found else None

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, as its first line says."""
        found = _FILE.match(self.text)
        return found["name"] if found else None


def blocks_of(page: str, text: str) -> list[Block]:
    """The code blocks of a page. Raises ValueError for directions that are not understood."""
    return list(_blocks(page, text.splitlines()))


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    directions: list[str] = []
    numbered = iter(enumerate(lines, start=1))
    for number, line in numbered:
        if comment := _COMMENT.match(line):
            directions.append(comment["text"])
            continue
        fence = _FENCE.match(line)
        if fence is None:
            if line.strip():
                directions.clear()
            continue
        body: list[str] = []
        for _, inner in numbered:
            if inner.strip() == "```":
                break
            body.append(inner)
        else:
            raise ValueError(f"{page}:{number}: the block does not end")
        skip, others = _understood(f"{page}:{number}", directions)
        directions.clear()
        text = textwrap.dedent("\n".join(body) + "\n")
        yield Block(page, number, fence["language"], text, skip, others)


def _understood(place: str, directions: list[str]) -> tuple[str | None, frozenset[str]]:
    skips = [found for text in directions if (found := _SKIP.fullmatch(text))]
    others = frozenset(text for text in directions if not _SKIP.fullmatch(text))
    unknown = {
        text
        for text in others - {KEEPS_RUNNING, NEW_TERMINAL}
        if not text.startswith((AFTER, ANOTHER_PORT))
    }
    if unknown or len(skips) > 1:
        raise ValueError(f"{place}: not understood: {sorted(unknown) or 'two skips'}")
    return (skips[0]["name"] if skips else None), others


def without_blocks(text: str) -> str:
    """A page without its code blocks."""
    return _BLOCK.sub("", text)


def without_code(text: str) -> str:
    """A page's prose: without its blocks, and without what is written as code in a line."""
    return re.sub(r"`[^`\n]+`", "", without_blocks(text))


def pages() -> dict[str, list[Block]]:
    """The code blocks of every tracked Markdown page that has any, by its path."""
    found = {}
    for path in sorted(tracked_files()):
        if path.suffix == ".md":
            name = str(path.relative_to(REPOSITORY))
            blocks = blocks_of(name, path.read_text(encoding="utf-8"))
            if blocks:
                found[name] = blocks
    return found


def predecessor(page: str) -> str | None:
    """The page that readers come from. Raises ValueError when it is none, or there are two."""
    found = {block.after for block in pages()[page] if block.after is not None}
    if len(found) > 1 or not found <= set(pages()) - {page}:
        raise ValueError(f"{page} comes after {sorted(found)}")
    return found.pop() if found else None


def skipped() -> Counter[str]:
    """How many blocks are skipped, by name."""
    return Counter(
        block.skip for blocks in pages().values() for block in blocks if block.skip is not None
    )


def summary() -> str:
    """One line for people: how many blocks there are, and how many of them are not run."""
    found = pages()
    number = sum(len(blocks) for blocks in found.values())
    names = ", ".join(f"{name} {times}" for name, times in sorted(skipped().items()))
    return f"code blocks: {number} in {len(found)} pages, skipped by name: {names or 'none'}"


def printed(expected: str) -> re.Pattern[str]:
    """What matches an output: ``…`` alone on a line stands for any lines, elsewhere for any text
    within the line."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == "…" else _line(line) + r"\n"
        for line in expected.splitlines()
    ]
    return re.compile("".join(lines))


def _line(text: str) -> str:
    return ".*".join(re.escape(part) for part in text.rstrip().split("…")) + r" *"
