"""``tenure limit …``."""

import asyncio
import re
from typing import Annotated, Any, Final

from cyclopts import App, Parameter
from pydantic import ValidationError

from tenure.cli.connection import open_client
from tenure.cli.exits import UsageError
from tenure.cli.output import Output, ago, print_json, print_table
from tenure.contract.limits import LimitChange, LimitList, LimitRemoval, LimitView, StartRate
from tenure.contract.states import LimitScope

app = App(name="limit", help="See and state how many tasks run at once, or start in a time.")

Scope = Annotated[LimitScope, Parameter(help="What counts together.")]
Name = Annotated[
    str,
    Parameter(help="Tenant, type or concurrency key; for each-key the type, or '*' for every one."),
]
_RATE: Final = re.compile(r"(\d{1,7})/(\d{0,6})(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command(name="set")
def set_limit(
    scope: Scope,
    name: Name,
    /,
    *,
    max_running: Annotated[
        int | None, Parameter(help="So many tasks at most are with nodes at once.")
    ] = None,
    rate: Annotated[
        str | None, Parameter(help="So many starts at most, like 100/m or 5/s.")
    ] = None,
    burst: Annotated[
        int | None, Parameter(help="With --rate: so many of them may come at once.")
    ] = None,
    output: Output = "table",
) -> None:
    """State a limit; again: replace it whole. What runs goes on."""
    if burst is not None and rate is None:
        raise UsageError("--burst belongs to --rate.")
    try:
        change = LimitChange(
            scope=scope,
            name=name,
            max_running=max_running,
            rate=None if rate is None else _rate(rate, burst),
        )
    except ValidationError as error:
        raise _usage(error) from error

    async def ask() -> Any:
        async with open_client() as client:
            return await client.set_limit(change)

    _print(asyncio.run(ask()), output)


@app.command
def remove(scope: Scope, name: Name, /, *, output: Output = "table") -> None:
    """Take a limit back."""
    try:
        request = LimitRemoval(scope=scope, name=name)
    except ValidationError as error:
        raise _usage(error) from error

    async def ask() -> Any:
        async with open_client() as client:
            return await client.remove_limit(request)

    found = asyncio.run(ask())
    if output == "json":
        print_json(found)
        return
    words = f"{scope.value} {name}"
    print(f"{words}: no longer limited" if found.removed else f"{words}: was not limited")


@app.command(name="list")
def list_limits(*, output: Output = "table") -> None:
    """List limits and what counts under them now."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.limits()

    _print(asyncio.run(read()), output)


def _rate(text: str, burst: int | None) -> StartRate:
    found = _RATE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--rate: {text!r} is no rate.", next_step="Give one like 5/s, 100/m or 20/10m."
        )
    starts, length, unit = found.groups()
    return StartRate(
        starts=int(starts), period_seconds=int(length or 1) * _SECONDS[unit], burst=burst
    )


def _print(found: LimitList, output: str) -> None:
    if output == "json":
        print_json(found)
        return
    print_table(
        ["scope", "name", "tenant", "running", "rate", "next start", "by", "since"],
        [_row(one) for one in found.limits],
    )


def _row(one: LimitView) -> tuple[object, ...]:
    running = str(one.running) if one.max_running is None else f"{one.running}/{one.max_running}"
    return (
        one.scope.value,
        one.name,
        one.tenant,
        running,
        None if one.rate is None else _said(one.rate),
        one.next_start,
        one.set_by,
        ago(one.set_at),
    )


def _said(rate: StartRate) -> str:
    unit = next(unit for unit in "dhms" if rate.period_seconds % _SECONDS[unit] == 0)
    length = rate.period_seconds // _SECONDS[unit]
    return f"{rate.starts}/{'' if length == 1 else length}{unit}, burst {rate.burst}"


def _usage(error: ValidationError) -> UsageError:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return UsageError(f"{where}: {message}." if where else f"{message}.")
