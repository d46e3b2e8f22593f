"""The documentation does what it says: every code block of every page is run, in order.

A page is one reader with terminals, a clone of this repository as ``tenure`` in the folder of the
first one, and a local stack where the page starts one. How a block is run is said in
``tests/support/documents.py``.
"""

import json
import os
import re
import secrets
import shutil
import signal
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from tenure.cli.local.ports import PortReservation, reserve_port
from tests.support.documents import (
    KEEPS_RUNNING,
    NEW_TERMINAL,
    Block,
    blocks_of,
    pages,
    predecessor,
    printed,
    skipped,
    without_blocks,
)
from tests.support.repository import REPOSITORY, tracked_files
from tests.support.terminals import CommandFailed, Running, Terminal, fresh_environment

SKIPPED = {
    "containers": 3,  # tests/integration/servers/test_compose.py runs them where Docker answers
    "demo": 1,  # make demo: tests/integration/cli/test_demo.py runs it
    "develop": 1,  # what runs these tests cannot be run by them
    "elsewhere": 9,  # another test runs the very block
    "install": 1,  # these tests run in what it made
    "peer": 6,  # tests/docs/test_migration_pages.py parses them
    "picture": 2,
    "trial": 4,  # minutes each: other tests run seconds of them
}
"""How many blocks are not run, by name. To skip one more is to change this line."""


class Reader:
    """Somebody who does what a page says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = folder / "home"
        self.terminal: Terminal | None = None
        self._left_running: list[tuple[Block, Running]] = []
        self._last: str | Running | None = None
        self._ports: dict[str, PortReservation] = {}

    async def follow(self, block: Block) -> None:
        """Do what one block says. Raises AssertionError where something else comes out."""
        if block.port is not None:
            self._ports[block.port] = reserve_port()
        for number, reservation in self._ports.items():
            block = replace(block, text=block.text.replace(number, str(reservation.port)))
        if NEW_TERMINAL in block.directions:
            self.terminal = None
        if block.language == "text":
            await self._compare(block)
            return
        self._last = None
        match block.language:
            case "console" if KEEPS_RUNNING in block.directions:
                self._last = await self._here(block).leave_running(block.text)
                self._left_running.append((block, self._last))
                self.terminal = None  # it is taken: the page has to open another one
            case "console":
                self._last = await self._here(block).run(block.text)
            case "python" | "toml" if block.file is not None:
                file = self._here(block).folder / block.file
                file.write_text(block.text, encoding="utf-8")
            case "python":
                script = self._home / "script.py"
                script.write_text(block.text, encoding="utf-8")
                self._last = await self._here(block).run(f"PYTHONPATH=. python {script}")
            case "toml":
                tomllib.loads(block.text)
            case "json":
                json.loads(block.text)
            case "sql":
                await self._query(block)
            case _:
                raise AssertionError(f"nobody knows what to do with {block.language!r}")

    def _here(self, block: Block) -> Terminal:
        if self.terminal is None:
            opened = not self._left_running or NEW_TERMINAL in block.directions
            assert opened, "the terminal is taken"
            self.terminal = Terminal(self._folder / "tenure", fresh_environment(self._home))
        return self.terminal

    async def _compare(self, block: Block) -> None:
        expected = printed(block.text)
        if isinstance(self._last, Running):
            await self._last.prints(expected)
        else:
            assert self._last is not None, "it follows nothing that prints"
            if expected.fullmatch(self._last.rstrip() + "\n") is None:
                raise AssertionError(f"expected:\n{block.text}\nprinted:\n{self._last}")

    async def _query(self, block: Block) -> None:
        file = self._here(block).folder / ".tenure" / "connection.json"
        connection = await asyncpg.connect(json.loads(file.read_text())["database_url"])
        try:
            await connection.execute(block.text)
        finally:
            await connection.close()

    async def leave(self) -> None:
        """Ctrl-C in every terminal where something runs; it has to end well."""
        while self._left_running:
            block, running = self._left_running.pop()
            code = await running.interrupt()
            # Other people's programs may end by the signal.
            ours = block.text.strip().splitlines()[-1].startswith("tenure ")
            well = (0,) if ours else (0, -signal.SIGINT)
            assert code in well, f"{block.place} ended with {code}:\n{running.output}"

    async def kill(self) -> None:
        """Leave nothing behind."""
        for _, running in self._left_running:
            await running.kill()
        for reservation in self._ports.values():
            reservation.release()


@asynccontextmanager
async def reader(base: Path) -> AsyncIterator[Reader]:
    """A reader with a clone of this repository in which ``make install`` was run."""
    folder = base / f"page-{secrets.token_hex(3)}"
    clone = folder / "tenure"
    (folder / "home").mkdir(parents=True)
    for path in tracked_files():
        copy = clone / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    (clone / ".venv").symlink_to(sys.prefix)
    found = Reader(folder)
    try:
        yield found
        await found.leave()
    finally:
        await found.kill()
        shutil.rmtree(folder, ignore_errors=True)


async def read(somebody: Reader, page: str) -> None:
    """Do everything that a page says, then what the pages say that come after it."""
    for block in pages()[page]:
        if block.skip is None:
            try:
                await somebody.follow(block)
            except AssertionError as error:
                raise AssertionError(f"{block.place}: {error}") from error
    here = somebody.terminal
    for following in pages():
        if predecessor(following) == page:
            somebody.terminal = copy(here)
            await read(somebody, following)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", [page for page in pages() if predecessor(page) is None])
async def test_a_page_does_what_it_says(page: str, server_directory: Path) -> None:
    """With the pages that come after it, so that they share its stack."""
    async with reader(server_directory) as somebody:
        await read(somebody, page)


def test_every_page_is_read() -> None:
    """Also those that come after another."""
    for page in pages():
        before = [page]
        while (found := predecessor(before[-1])) is not None:
            assert found not in before, f"{page} comes after itself"
            before.append(found)


def test_a_reader_is_told_where_to_come_from() -> None:
    """The direction is a comment, which nobody sees: the prose above has to link to that page."""
    for page, blocks in pages().items():
        lines = (REPOSITORY / page).read_text(encoding="utf-8").splitlines()
        for block in blocks:
            if block.after is not None:
                above = without_blocks("\n".join(lines[: block.line - 1]))
                assert block.after in links(page, above), f"{block.place}: after {block.after}"


def links(page: str, prose: str) -> set[str]:
    """The files that a page's prose links to, as paths in the repository."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose)
    return {os.path.normpath(Path(page).parent / target) for target in targets}


def test_blocks_are_skipped_by_name_and_counted() -> None:
    assert skipped() == SKIPPED


def files(blocks: list[Block]) -> dict[str, str]:
    return {
        block.file or f"script_in_line_{block.line}.py": block.text
        for block in blocks
        if block.language == "python" and block.skip is None
    }


@pytest.mark.timeout(300)
async def test_programs_on_the_pages_are_typed(tmp_path: Path) -> None:
    """As a reader's editor would judge them, under ``mypy --strict``."""
    for page, blocks in pages().items():
        if not (programs := files(blocks)):
            continue
        if (before := predecessor(page)) is not None:
            programs = files(pages()[before]) | programs
        folder = tmp_path / page.replace("/", "-")
        folder.mkdir()
        for name, text in programs.items():
            (folder / name).write_text(text, encoding="utf-8")
        command = f"{sys.executable} -m mypy --strict --cache-dir {tmp_path / 'cache'} ."
        try:
            await Terminal(folder, fresh_environment(tmp_path)).run(command)
        except CommandFailed as error:
            pytest.fail(f"{page}: {error}")


PAGE = """\
# Page

<!-- keeps running -->

```console
sleep 1
```

- indented:

  <!-- skip picture: a drawing -->
  ```
  a -> b
  ```
"""


def test_blocks_are_found_with_their_directions() -> None:
    first, second = blocks_of("page.md", PAGE)
    assert (first.line, first.language, first.text) == (5, "console", "sleep 1\n")
    assert first.directions == {KEEPS_RUNNING}
    assert (second.line, second.language, second.skip) == (12, "", "picture")
    assert second.text == "a -> b\n"


@pytest.mark.parametrize(
    "text",
    [
        "```text\nnever ends\n",
        "<!-- keep running -->\n```console\na\n```\n",
        "<!-- skip: without a name -->\n```console\na\n```\n",
        "<!-- skip picture -->\n```console\na\n```\n",
        "<!-- skip a: b -->\n<!-- skip b: c -->\n```console\na\n```\n",
    ],
)
def test_what_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"page\.md:\d+"):
        blocks_of("page.md", text)


def test_a_file_is_named_in_its_first_line() -> None:
    (block,) = blocks_of("page.md", "```python\n# jobs.py\nimport os\n```\n")
    assert block.file == "jobs.py"
    (script,) = blocks_of("page.md", "```python\n# prints the time\nimport os\n```\n")
    assert script.file is None


@pytest.mark.parametrize(
    ("expected", "output", "fits"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a …\n", "a 12 b\n", True),
        ("a …\n", "a 1\nb\n", False),
        ("a\n…\nz\n", "a\nb\nc\nz\n", True),
        ("a\n…\nz\n", "a\nz\n", True),
        ("a\n…\nz\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_an_output_is_compared_line_by_line(expected: str, output: str, fits: bool) -> None:
    assert (printed(expected).fullmatch(output) is not None) is fits


async def follow(text: str, folder: Path) -> None:
    """A page of a test's own."""
    async with reader(folder) as somebody:
        for block in blocks_of("page.md", text):
            await somebody.follow(block)


ENDS_BADLY = (
    'python3 -c "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(3));'
    " print('up', flush=True); signal.pause()\""
)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```console\nfalse\n```\n", "exit status 1"),
        ("```console\necho a | grep b\necho c\n```\n", "exit status 1"),
        ("```console\necho a\n```\n```text\nb\n```\n", "printed:\na"),
        ("```text\nb\n```\n", "follows nothing"),
        ("```ruby\nb\n```\n", "nobody knows"),
        ("```python\nraise SystemExit(3)\n```\n", "exit status"),
        ("<!-- keeps running -->\n```console\necho a\n```\n```text\nb\n```\n", "without printing"),
        (
            f"<!-- keeps running -->\n```console\n{ENDS_BADLY}\n```\n```text\nup\n```\n",
            "ended with 3",
        ),
        (
            "<!-- keeps running -->\n```console\nsleep 60\n```\n```console\npwd\n```\n",
            "the terminal is taken",
        ),
    ],
)
async def test_a_page_that_is_wrong_is_noticed(
    text: str, complaint: str, server_directory: Path
) -> None:
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        await follow(text, server_directory)


async def test_a_terminal_keeps_its_folder_and_its_exports(server_directory: Path) -> None:
    text = """\
```console
mkdir there
cd there
export WORD='a b'
```
```python
# program.py
import os

print(os.environ["WORD"], os.path.basename(os.getcwd()))
```
```console
python3 program.py
```
```text
a b there
```
<!-- new terminal -->
```console
basename "$PWD"
echo "word: ${WORD:-none}"
```
```text
tenure
word: none
```
"""
    assert "WORD" not in os.environ
    await follow(text, server_directory)
