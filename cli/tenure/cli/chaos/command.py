"""``tenure chaos``: try somebody's own handlers under kills, suspensions and poisoned wires."""

import asyncio
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from tenure.cli.applications import load_application, load_function
from tenure.cli.arguments import read_json_argument
from tenure.cli.exits import CommandError, Exit, UsageError, needs
from tenure.cli.output import Output, print_fields, print_json, print_table

if TYPE_CHECKING:
    from tenure.cli.chaos.trial import Report
    from tenure.cli.chaos.workload import Asked
    from tenure.executor import Executor


DEFAULT_TASKS: Final = 100


class ChaosFailed(CommandError):
    """Something was not as it must be, whatever is killed."""

    code = "chaos_failed"


def chaos(
    *,
    app: Annotated[str, Parameter(name="--app", help="The executor on trial (MODULE:NAME).")],
    input_: Annotated[
        Path | None,
        Parameter(name="--input", help='Tasks, one a line: {"type": "…", "input": {…}}.'),
    ] = None,
    type_: Annotated[
        str | None, Parameter(name="--type", help="Task type of --data. [default: the only one]")
    ] = None,
    data: Annotated[
        str | None, Parameter(help="Input of every task, as JSON, @FILE or - for standard input.")
    ] = None,
    tasks: Annotated[
        int | None, Parameter(help="How many. [default: the lines of --input, else 100]")
    ] = None,
    check: Annotated[
        str | None,
        Parameter(help="MODULE:FUNCTION that counts each task's effects, or says what is wrong."),
    ] = None,
    executors: Annotated[int, Parameter(help="Processes that run the executor.")] = 3,
    slots: Annotated[int, Parameter(help="Tasks that each runs at once.")] = 4,
    seconds: Annotated[float, Parameter(help="How long the storm lasts.")] = 60.0,
    strike_every: Annotated[float, Parameter(help="Seconds from one strike to the next.")] = 2.0,
    settle_seconds: Annotated[
        float, Parameter(help="How long tasks may take to end when the storm is over.")
    ] = 120.0,
    seed: Annotated[
        int | None, Parameter(help="Decides what befalls whom. [default: drawn, and printed]")
    ] = None,
    keep: Annotated[
        bool, Parameter(negative="", help="Keep the stack's folder at the end.")
    ] = False,
    output: Output = "table",
) -> None:
    """Run an executor's own handlers while processes are killed and suspended and wires fail.

    Starts a stack of its own, submits the tasks, and compares the books at the end: every task has
    ended or is held with a reason, tokens grow, the database keeps its invariants, and each effect
    is there once, by --check. Exit code 1 when anything is wrong, and when no handler was
    interrupted.
    """
    if min(executors, slots) < 1:
        raise UsageError("--executors and --slots: at least 1.")
    if min(seconds, strike_every) <= 0 or settle_seconds < 0:
        raise UsageError("--seconds and --strike-every: above 0; --settle-seconds: not below.")
    if tasks is not None and tasks < 1:
        raise UsageError("--tasks: at least 1.")
    with needs("all"):
        from tenure.cli.chaos.trial import Options, Trial, run_trial
        from tenure.settings.sources import refuse_unknown_variables
    refuse_unknown_variables()
    found = load_application(app)
    asked = _asked(found, input_, type_, data, tasks)
    trial = Trial(
        app,
        asked,
        Options(
            seed=secrets.randbelow(2**32) if seed is None else seed,
            seconds=seconds,
            executors=executors,
            slots=slots,
            strike_every_seconds=strike_every,
            settle_seconds=settle_seconds,
        ),
        check=None if check is None else load_function(check),
        say=_say,
    )
    report = asyncio.run(run_trial(trial, keep=keep))
    if report is None:
        sys.exit(Exit.INTERRUPTED)
    if output == "json":
        print_json(report.as_json())
    else:
        _print(report, checked=check is not None)
    if not report.passed:
        raise ChaosFailed(
            f"{report.faults_in_all} faults." if report.faults else f"{report.too_little[0]}.",
            next_step=f"The same plan again: --seed {report.seed}.",
        )


def _asked(
    app: "Executor",
    file: Path | None,
    type_name: str | None,
    data: str | None,
    tasks: int | None,
) -> "list[Asked]":
    from tenure.cli.chaos import workload

    if file is not None:
        if data is not None or type_name is not None:
            raise UsageError("--input says everything: leave --type and --data out.")
        some = workload.of_file(file, app)
        return workload.repeated(some, tasks or len(some))
    if data is None:
        if type_name is not None:
            raise UsageError("--type needs --data.")
        some = workload.of_examples(app)
    else:
        type_name = type_name or workload.only_type(app, "--data")
        some = [workload.checked(app, type_name, read_json_argument(data), "--data")]
    return workload.repeated(some, tasks or DEFAULT_TASKS)


def _print(report: "Report", *, checked: bool) -> None:
    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none"

    print_fields(
        [
            ("seed", report.seed),
            ("storm", f"{report.seconds:g} s"),
            ("tasks", f"{report.submitted} submitted: {listed(report.tasks)}"),
            ("reasons", listed(report.reasons) if report.reasons else None),
            ("attempts", listed(report.attempts)),
            ("because", listed(report.attempt_reasons) if report.attempt_reasons else None),
            ("interrupted", f"{report.interrupted} handlers in their middle"),
        ]
    )
    print()
    print_table(["what was done", "times"], list(report.strikes.items()))
    print()
    for fault in report.faults:
        print(f"WRONG: {fault}")
    if report.faults_in_all > len(report.faults):
        print(f"… and {report.faults_in_all - len(report.faults)} more")
    for words in report.advice:
        print(f"hint: {words}")
    for words in report.too_little:
        print(f"says too little: {words}")
    if report.passed:
        print("passed" + ("" if checked else ": nobody was asked about effects, see --check"))


def _say(name: str, words: str) -> None:
    for line in words.splitlines():
        print(f"{name}: {line}", file=sys.stderr, flush=True)
