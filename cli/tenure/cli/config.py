"""``tenure config …``: what each process would be told, and whether it could start with it."""

import sys
from typing import Annotated, Final

from cyclopts import App, Parameter

from tenure.cli.exits import Exit
from tenure.cli.output import Output, print_json, print_table
from tenure.cli.settings import Config, Process, given, is_incomplete, read
from tenure.contract.errors import TenureError

app = App(name="config", help="Check and show settings.")

PROCESSES: Final[tuple[Process, ...]] = ("coordinator", "relay", "executor", "consumer", "migrate")

Which = Annotated[Process, Parameter(help="Whose settings.")]


@app.command
def check(
    process: Annotated[
        Process | None, Parameter(help="Whose settings. [default: of all that have any]")
    ] = None,
    /,
    *,
    config: Config = None,
    output: Output = "table",
) -> None:
    """Say whether processes could start with the settings there are. Nothing is connected to.

    Without PROCESS, one that lacks what it needs is left out, as long as another one is complete.
    Exit code 4 when something is wrong.
    """
    outcomes = {one: _outcome(one, given(config=config)) for one in _chosen(process)}
    usable = any(error is None for error in outcomes.values())
    left_out = {
        one
        for one, error in outcomes.items()
        if error is not None and process is None and usable and is_incomplete(error)
    }
    rows = [
        {
            "process": one,
            "ok": error is None,
            "code": None if error is None else str(error.code),
            "says": "" if error is None else str(error),
        }
        for one, error in outcomes.items()
    ]
    if output == "json":
        print_json(rows)
    else:
        print_table(
            ["process", "settings"],
            [(one, _words(error, left_out=one in left_out)) for one, error in outcomes.items()],
        )
    if any(error is not None and one not in left_out for one, error in outcomes.items()):
        sys.exit(Exit.SETUP)


@app.command
def show(process: Which, /, *, config: Config = None, output: Output = "table") -> None:
    """Show every setting of a process, its value, and where that was found. Secrets are masked."""
    settings, places = read(process, given(config=config))
    from tenure.settings.explain import explain
    from tenure.settings.names import variable

    found = explain(settings, places)
    if output == "json":
        print_json([{"name": one.name, "value": one.value, "from": one.place} for one in found])
        return
    print_table(
        ["variable", "value", "from"],
        [(variable(one.name), one.value, one.place) for one in found],
    )


def _words(error: TenureError | None, *, left_out: bool) -> str:
    if error is None:
        return "ok"
    if left_out:
        return f"left out: {error.message.removeprefix('The settings cannot be used: ')}"
    return str(error)


def _chosen(process: Process | None) -> tuple[Process, ...]:
    return PROCESSES if process is None else (process,)


def _outcome(process: Process, values: dict[str, object]) -> TenureError | None:
    """What keeps the process from starting with its settings, if anything does."""
    try:
        read(process, values)
    except TenureError as error:
        return error
    return None
