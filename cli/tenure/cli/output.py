"""What reading commands print: a table for people, or JSON for programs."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter
from pydantic import BaseModel

from tenure.cli.exits import needs

if TYPE_CHECKING:
    from rich.console import Console

Format = Literal["table", "json"]
Output = Annotated[
    Format, Parameter(name=["--output", "-o"], help="A table for people, or JSON for programs.")
]

PIPED_WIDTH: Final = 10_000
"""Columns when nobody looks at a terminal: nothing is folded, so that grep and cut work."""


def print_json(value: BaseModel | Any) -> None:
    """One JSON document, two spaces deep."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    print(json.dumps(plain, indent=2, ensure_ascii=not _speaks_unicode()))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = ""
) -> None:
    """A table; None becomes ``-``."""
    with needs("cli"):
        from rich import box
        from rich.table import Table
        from rich.text import Text

    console = _console()
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        title=title or None,
        title_justify="left",
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # As Text: what users store may look like markup.
        table.add_row(*(Text(cell(value)) for value in row))
    console.print(table)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Names and values, one a line; fields without a value are left out."""
    shown = [(name, cell(value)) for name, value in fields if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name:<{width}}  {value}")


def cell(value: object) -> str:
    """One value as text: times in local time to the second, nothing as ``-``."""
    match value:
        case None:
            return "-"
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}"
        case tuple() | list():
            return ", ".join(cell(entry) for entry in value)
        case _:
            return str(value)


def ago(instant: datetime, now: datetime | None = None) -> str:
    """How long ago, in the largest unit that fits."""
    seconds = int(((now or datetime.now(UTC)) - instant).total_seconds())
    if seconds < 0:
        return f"in {roughly(-seconds)}"
    return f"{roughly(seconds)} ago"


def size(count: int) -> str:
    """Bytes in the largest unit that fits."""
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def length(seconds: int | None) -> str:
    """How long something lasts, exactly, in the largest unit that fits; None: for ever."""
    if seconds is None:
        return "for ever"
    for unit, unit_seconds in (("d", 86_400), ("h", 3600)):
        if seconds % unit_seconds == 0:
            return f"{seconds // unit_seconds} {unit}"
    return f"{seconds} s"


def roughly(seconds: int) -> str:
    """How long something lasts, in the largest unit of which there are two."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _console() -> "Console":
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(width=None if terminal else PIPED_WIDTH, highlight=False, soft_wrap=False)


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
