"""``python -m tenure.cli.demo``, which is `make demo`."""

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

from tenure.cli.exits import Exit, UsageError, needs, report, report_fault
from tenure.contract.errors import TenureError

if TYPE_CHECKING:
    from tenure.cli.demo.files import FrozenFile
    from tenure.cli.demo.run import Demo


def main() -> NoReturn:
    """Run the demo and end the process with its exit code (``tenure.cli.exits``)."""
    sys.exit(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Parse the words, run the demo, print the report. Errors are said on standard error."""
    began = time.monotonic()
    try:
        with needs("cli"):
            from cyclopts import App, CycloptsError, Parameter
        app = App(name="demo", print_error=False, exit_on_error=False, version_flags=[])

        @app.default
        def demo(
            *,
            input_: Annotated[
                Path | None,
                Parameter(
                    name="--input", help="Folder. [default: the standard library of this Python]"
                ),
            ] = None,
            executors: Annotated[int, Parameter(help="Executor processes.")] = 2,
            slots: Annotated[int, Parameter(help="Tasks that each runs at once.")] = 16,
            limit_seconds: Annotated[float, Parameter(help="Give up after so long.")] = 900.0,
            calm: Annotated[
                bool, Parameter(negative="", help="Kill and stop nothing while it works.")
            ] = False,
            weaken: Annotated[
                Literal["expiry", "fence"] | None,
                Parameter(
                    help="Take a check out of the downstream's guard: without expiry the token"
                    " alone refuses, without fence the demo must fail."
                ),
            ] = None,
            keep: Annotated[
                bool, Parameter(negative="", help="Keep the stack's folder at the end.")
            ] = False,
        ) -> int:
            """Hash every file of a folder, one task each, and compare with a direct computation.

            Meanwhile the relay is killed twice and the coordinator once, and an executor is stopped
            in front of its write until another has replaced it.

            The last line on standard output is the report as one JSON object.
            """
            if executors < 1 or slots < 1:
                raise UsageError("--executors and --slots: at least 1.")
            if executors < 2 and not calm:
                raise UsageError("--executors: at least 2, so that one can be replaced; or --calm.")
            if weaken and calm:
                raise UsageError("--weaken shows nothing with --calm.")
            files = _files(input_)
            with needs("all"):
                from tenure.cli.demo.downstream import Weakened
                from tenure.cli.demo.run import Demo

            return _run(
                Demo(
                    files,
                    executors=executors,
                    slots=slots,
                    limit_seconds=limit_seconds,
                    began=began,
                    calm=calm,
                    weakened=None if weaken is None else Weakened(weaken),
                ),
                keep=keep,
            )

        try:
            code = app(words, result_action="return_value")
        except CycloptsError as error:
            raise UsageError(str(error), next_step="See --help.") from error
    except TenureError as error:
        return report(error)
    except Exception as error:  # noqa: BLE001 - the outermost frame: what is left is our own fault
        return report_fault(error)
    return code if isinstance(code, int) else Exit.DONE


def _files(folder: Path | None) -> "list[FrozenFile]":
    from tenure.cli.demo.files import NOT_THE_LIBRARY, freeze, standard_library

    if folder is None:
        return freeze(standard_library(), without=NOT_THE_LIBRARY)
    return freeze(folder)


def _run(demo: "Demo", *, keep: bool) -> int:
    from tenure.cli.demo.check import exit_of
    from tenure.cli.demo.run import run_demo

    result = asyncio.run(run_demo(demo, keep=keep))
    if result is None:
        return Exit.INTERRUPTED
    print(result.as_json(), flush=True)
    return exit_of(result)


if __name__ == "__main__":
    main()
