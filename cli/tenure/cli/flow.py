"""``tenure pause``, ``tenure resume``, ``tenure pauses``."""

import asyncio
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import ValidationError

from tenure.cli.connection import open_client
from tenure.cli.exits import UsageError
from tenure.cli.instants import read_instant
from tenure.cli.output import Output, ago, print_json, print_table
from tenure.contract.flow import PauseList, PauseRequest, ResumeRequest
from tenure.contract.states import PauseScope

Scope = Annotated[PauseScope, Parameter(help="All, or what kind of part of it.")]
Name = Annotated[
    str, Parameter(help="Of the tenant, type or node; NAME=VALUE of the label; none for all.")
]


def pause(
    scope: Scope,
    name: Name = "",
    /,
    *,
    reason: Annotated[str, Parameter(help="Why, for those who find it paused.")],
    until: Annotated[
        str | None, Parameter(help="When it is over by itself, like 2h; none: when resumed.")
    ] = None,
    output: Output = "table",
) -> None:
    """Let nothing of a scope begin any more; what runs goes on. Again: replace reason and end."""
    end = None if until is None else read_instant(until, "--until")
    try:
        request = PauseRequest(scope=scope, name=name, reason=reason, until=end)
    except ValidationError as error:
        raise _usage(error) from error

    async def ask() -> Any:
        async with open_client() as client:
            return await client.pause(request)

    _print(asyncio.run(ask()), output)


def resume(scope: Scope, name: Name = "", /, *, output: Output = "table") -> None:
    """Let a paused scope begin again."""
    try:
        request = ResumeRequest(scope=scope, name=name)
    except ValidationError as error:
        raise _usage(error) from error

    async def ask() -> Any:
        async with open_client() as client:
            return await client.resume(request)

    found = asyncio.run(ask())
    if output == "json":
        print_json(found)
        return
    words = f"{scope.value} {name}".strip()
    print(f"{words}: resumed" if found.resumed else f"{words}: was not paused")


def pauses(*, output: Output = "table") -> None:
    """List what is paused now."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.pauses()

    _print(asyncio.run(read()), output)


def _print(found: PauseList, output: str) -> None:
    if output == "json":
        print_json(found)
        return
    print_table(
        ["scope", "name", "tenant", "until", "by", "since", "reason"],
        [
            (
                one.scope.value,
                one.name or None,
                one.tenant,
                one.until,
                one.paused_by,
                ago(one.paused_at),
                one.reason,
            )
            for one in found.pauses
        ],
    )


def _usage(error: ValidationError) -> UsageError:
    return UsageError(f"{error.errors()[0]['msg'].removeprefix('Value error, ')}.")
