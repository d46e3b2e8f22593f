"""``tenure outbox parked …``, ``tenure outbox retry`` and ``tenure outbox skip``."""

import asyncio
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter
from pydantic import ValidationError

from tenure.cli.connection import open_client
from tenure.cli.exits import UsageError
from tenure.cli.output import Output, ago, print_fields, print_json, print_table
from tenure.contract.parking import (
    ParkedAsked,
    ParkedReason,
    ParkedRetry,
    ParkedSkip,
    ParkedState,
    ParkedView,
)

app = App(name="parked", help="See messages that could not be published and are parked.")

Positions = Annotated[int, Parameter(help="As `tenure outbox parked list` shows them.")]
Reason = Annotated[str, Parameter(help="Why, for those who look at it later.")]


@app.command(name="list")
def list_parked(
    *,
    state: Annotated[ParkedState | None, Parameter(help="Only those in this state.")] = None,
    failed_as: Annotated[
        ParkedReason | None, Parameter(help="Only those that are parked for this reason.")
    ] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    after: Annotated[int | None, Parameter(help="The last one of the page before.")] = None,
    output: Output = "table",
) -> None:
    """List parked messages, oldest first."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.parked(state=state, reason=failed_as, limit=limit, after=after)

    page = asyncio.run(read())
    if output == "json":
        print_json(page)
        return
    print_table(
        ["position", "state", "reason", "stream", "to", "tries", "next try", "parked", "detail"],
        [
            (
                one.position,
                one.state.value,
                one.reason.value,
                f"{one.stream_type} {one.stream_id}",
                one.routing_key,
                one.tries,
                _next_try(one),
                ago(one.parked_at),
                one.detail or None,
            )
            for one in page.parked
        ],
    )
    if page.next is not None:
        print(f"There are more: --after {page.next}", file=sys.stderr)


@app.command
def show(position: int, /, *, output: Output = "table") -> None:
    """Show a parked message with its body, and what was asked about it."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.parked_message(position)

    found = asyncio.run(read())
    if output == "json":
        print_json(found)
        return
    if found.parked is None:
        print(f"{position}: is not parked any more")
    else:
        print_fields([(name.replace("_", " "), value) for name, value in found.parked])
        print_fields([("body", found.body)])
    if found.requests:
        print()
        print_table(
            ["asked for", "by", "when", "reason", "came of it"],
            [
                (one.action, one.requested_by, ago(one.requested_at), one.reason, one.result)
                for one in found.requests
            ],
        )


def retry(
    *positions: Positions,
    all_failed: Annotated[
        bool, Parameter(name="--all", negative="", help="Instead of positions: all that failed.")
    ] = False,
    failed_as: Annotated[
        ParkedReason | None, Parameter(help="Instead of positions: all that failed so.")
    ] = None,
    reason: Reason,
    output: Output = "table",
) -> None:
    """Try parked messages again now. Of one that is behind another, the first of its stream."""
    if [bool(positions), all_failed, failed_as is not None].count(True) != 1:
        raise UsageError("name either positions, --failed-as or --all.")
    try:
        request = ParkedRetry(positions=positions or None, failed_as=failed_as, reason=reason)
    except ValidationError as error:
        raise _usage(error) from error

    async def ask() -> Any:
        async with open_client() as client:
            return await client.retry_parked(request)

    _print(asyncio.run(ask()), "is tried again", output)


def skip(*positions: Positions, reason: Reason, output: Output = "table") -> None:
    """Never publish parked messages. Consumers see a hole in the stream, and reconcile."""
    try:
        request = ParkedSkip(positions=positions, reason=reason)
    except ValidationError as error:
        raise _usage(error) from error

    async def ask() -> Any:
        async with open_client() as client:
            return await client.skip_parked(request)

    _print(asyncio.run(ask()), "is skipped", output)


def _next_try(one: ParkedView) -> str | None:
    if one.due_at is not None:
        return one.due_at.isoformat(sep=" ", timespec="seconds")
    return "after others" if one.state is ParkedState.BEHIND else "on request"


def _print(asked: ParkedAsked, words: str, output: str) -> None:
    if output == "json":
        print_json(asked)
        return
    for position in asked.positions:
        print(f"{position}: {words}")
    if not asked.positions:
        print("nothing of this is parked")


def _usage(error: ValidationError) -> UsageError:
    found = error.errors()[0]
    where = ".".join(str(part) for part in found["loc"])
    return UsageError(f"{where}: {found['msg'].removeprefix('Value error, ')}.")
