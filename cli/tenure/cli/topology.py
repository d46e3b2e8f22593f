"""``tenure topology …``."""

import asyncio
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

from tenure.cli.connection import open_client
from tenure.cli.exits import Exit
from tenure.cli.output import Output, print_json, print_table
from tenure.contract.broker_report import Fitness, TopologyRepair, TopologyReport

app = App(name="topology", help="Compare the broker with what must be on it.")


@app.command
def check(*, output: Output = "table") -> None:
    """Compare what is on the broker with what must be there, and change nothing.

    Exit code 1 when something is not as it must be.
    """

    async def read() -> Any:
        async with open_client() as client:
            return await client.topology()

    _print(asyncio.run(read()), output)


@app.command
def apply(
    *,
    replace: Annotated[
        tuple[str, ...],
        Parameter(
            help="What may be deleted and made anew, with what is in it, if it does not fit."
        ),
    ] = (),
    output: Output = "table",
) -> None:
    """Declare what is missing and state every binding. Exit code 1 when something still does not
    fit."""

    async def ask() -> Any:
        async with open_client() as client:
            return await client.apply_topology(TopologyRepair(replace=replace))

    _print(asyncio.run(ask()), output)


def _print(found: TopologyReport, output: str) -> None:
    wrong = [one for one in found.findings if one.fitness is not Fitness.OK]
    if output == "json":
        print_json(found)
    else:
        print_table(
            ["what", "name", "is", "messages", "consumers"],
            [
                (one.kind.value, one.name, one.fitness.value, one.messages, one.consumers)
                for one in found.findings
            ],
        )
        for one in wrong:
            print(f"{one.name}: {one.says or one.fitness.value}\n  To do: {one.next_step}")
    if wrong:
        sys.exit(Exit.REFUSED)
