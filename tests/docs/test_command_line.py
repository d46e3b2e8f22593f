"""docs/command-line.md has every command, and no option that there is none of."""

import re
from collections.abc import Iterator, Mapping

from cyclopts import App

from tenure.cli.main import build_app
from tests.support.repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "command-line.md"
Command = tuple[str, ...]


def commands(app: App, path: Command = ()) -> Iterator[tuple[Command, frozenset[str]]]:
    """Every command that does something, with its options."""
    for name in app:
        if name.startswith("-"):
            continue
        found = app[name]
        yield from commands(found, (*path, name))
        if found.default_command is not None:
            arguments = found.assemble_argument_collection(parse_docstring=False)
            names = {name for argument in arguments for name in argument.names}
            yield (*path, name), frozenset(name for name in names if name.startswith("--"))


def read(
    cell: str, known: Mapping[Command, frozenset[str]]
) -> tuple[list[Command], frozenset[str], list[str]]:
    """What the first column of a row names: commands, options, and what is neither.

    After the first command of a row the next may leave out the words of their group.
    """
    found: list[Command] = []
    options: set[str] = set()
    unknown: list[str] = []
    group: Command = ()
    for span in re.findall(r"`([^`]+)`", cell):
        options |= set(re.findall(r"--[a-z][a-z-]*", span))
        words = tuple(span.removeprefix("tenure ").split())
        tried = [(*before, *words[:length]) for before in (group, ()) for length in range(3, 0, -1)]
        command = next((each for each in tried if each in known), None)
        if command is not None:
            found.append(command)
            group = command[:-1]
        elif not words[0].startswith("--"):
            unknown.append(span)
    return found, frozenset(options), unknown


def test_the_page_has_every_command_and_only_options_that_there_are() -> None:
    known = dict(commands(build_app()))
    table = PAGE.read_text(encoding="utf-8").partition("| Command | Does |")[2]
    rows = re.findall(r"^\| (`.+?) \| ", table.partition("\n\n")[0], re.MULTILINE)
    listed: set[Command] = set()
    faults = []
    for row in rows:
        found, options, unknown = read(row, known)
        listed |= set(found)
        theirs = frozenset().union(*(known[command] for command in found))
        faults += [*unknown, *sorted(options - theirs if found else ())]
    assert faults == []
    assert set(known) - listed == set()
    assert len(known) > 50
