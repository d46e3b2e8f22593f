"""``tenure retention …``."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from tenure.cli.connection import open_client
from tenure.cli.exits import UsageError
from tenure.cli.instants import read_instant
from tenure.cli.output import Output, ago, length, print_json, print_table, roughly, size
from tenure.contract.retention import RetentionChange, RetentionRunRequest, RetentionView
from tenure.contract.states import RetentionKind

app = App(name="retention", help="See and set how long what has ended is kept.")

FOR_EVER: Final = "forever"
Kind = Annotated[RetentionKind, Parameter(help="Of these kinds only; none: of every kind.")]


@app.command
def show(*, output: Output = "table") -> None:
    """Show how long each kind of rows is kept after its end, and what was removed."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.retention()

    _print(asyncio.run(read()), output)


@app.command(name="set")
def set_retention(
    *changes: Annotated[
        str, Parameter(help="KIND=LENGTH, like tasks=90d or log=12h; LENGTH forever: never remove.")
    ],
    reason: Annotated[str, Parameter(help="Why, for those who read the history.")],
    if_version: Annotated[int | None, Parameter(help="Only if this version is in force.")] = None,
    output: Output = "table",
) -> None:
    """Set how long kinds of rows are kept after their end. The others stay as they are."""
    if not changes:
        raise UsageError("There is nothing to change: name at least one KIND=LENGTH.")
    keep = dict(_read(change) for change in changes)

    async def change() -> Any:
        async with open_client() as client:
            after = if_version or (await client.retention()).version
            return await client.set_retention(
                RetentionChange(after_version=after, keep_seconds=keep, reason=reason)
            )

    _print(asyncio.run(change()), output)


@app.command
def plan(*, output: Output = "table") -> None:
    """Show what a run would remove now. Changes nothing."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.retention_plan()

    found = asyncio.run(read())
    if output == "json":
        print_json(found)
        return
    print_table(
        ["kind", "ended before", "rows", "about", "kept back"],
        [
            (one.kind.value, one.before, f"{one.rows:,}", size(one.bytes), one.kept_back)
            for one in found.kinds
        ],
    )


@app.command
def run(*kinds: Kind, output: Output = "table") -> None:
    """Remove now what is older than it is kept. The coordinators do the same by themselves."""
    request = RetentionRunRequest(kinds=kinds) if kinds else RetentionRunRequest()

    async def remove() -> dict[str, int]:
        removed: dict[str, int] = {}
        async with open_client() as client:
            while True:
                found = await client.run_retention(request)
                for kind, rows in found.removed_rows.items():
                    removed[kind.value] = removed.get(kind.value, 0) + rows
                if not found.more:
                    return removed
                if sys.stderr.isatty():
                    print(f"\r\033[K{sum(removed.values()):,} removed", end="", file=sys.stderr)

    removed = asyncio.run(remove())
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if output == "json":
        print_json({"removed_rows": removed})
    else:
        print_table(["kind", "removed"], [(kind, f"{rows:,}") for kind, rows in removed.items()])


def _read(change: str) -> tuple[RetentionKind, int | None]:
    name, _, text = change.partition("=")
    try:
        kind = RetentionKind(name)
    except ValueError:
        known = ", ".join(one.value for one in RetentionKind)
        raise UsageError(f"{name!r} is no kind of rows.", next_step=f"One of: {known}.") from None
    if text == FOR_EVER:
        return kind, None
    now = datetime.now(UTC)
    seconds = int((read_instant(text, name, now=now) - now).total_seconds())
    if seconds < 3600:
        raise UsageError(f"{name}: {text!r} is less than an hour.")
    return kind, seconds


def _print(found: RetentionView, output: str) -> None:
    if output == "json":
        print_json(found)
        return
    print(f"version {found.version}, set by {found.set_by}: {found.reason}\n")
    print_table(
        ["kind", "kept", "removed", "all that ended before", "last", "overdue"],
        [
            (
                one.kind.value,
                length(one.keep_seconds),
                f"{one.removed_rows:,}",
                one.removed_to,
                None if one.removed_at is None else ago(one.removed_at),
                None if one.overdue_seconds is None else roughly(int(one.overdue_seconds)),
            )
            for one in found.kinds
        ],
    )
