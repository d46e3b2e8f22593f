"""The command ``tenure``. Groups are imported when they are used: ``tenure --help`` stays quick,
and a group whose extra is not installed says so in one line."""

import os
import sys
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Final, NoReturn

from tenure.cli.exits import Exit, UsageError, needs, report, report_fault
from tenure.contract.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import App

GROUPS: Final = "tenure.cli."


def main() -> NoReturn:
    """Entry point: runs one command and ends the process with its exit code."""
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run(words: "Sequence[str]") -> int:
    """Run one command line and return its exit code; errors are said on standard error."""
    try:
        with needs("cli"):
            from cyclopts import CycloptsError
        try:
            build_app()(list(words), result_action="return_value")
        except CycloptsError as error:
            raise UsageError(str(error), next_step="See `tenure --help`.") from error
    except TenureError as error:
        return report(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return Exit.DONE
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else Exit.DONE
    except Exception as error:  # noqa: BLE001 - the outermost frame: what is left is our own fault
        return report_fault(error)
    return Exit.DONE


def build_app() -> "App":
    """The tree of commands, nothing of it imported yet."""
    from cyclopts import App

    app = App(
        name="tenure",
        help="A fleet of workers under leases and fencing tokens.",
        help_epilogue="Exit codes: 0 done, 1 refused or failed, 2 usage, 3 unreachable, 4 set-up,"
        " 5 not yet, 70 a fault of Tenure, 130 interrupted.",
        version=installed_version("tenure"),
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    app.command(show_version, name="version")
    app.command(
        f"{GROUPS}tasks:submit", name="submit", help="Make a task; --wait prints its output."
    )
    app.command(f"{GROUPS}tasks:app", name="task", help="See and cancel tasks.")
    app.command(f"{GROUPS}nodes:app", name="node", help="See the executors' processes.")
    app.command(f"{GROUPS}intake:app", name="intake", help="See what was enqueued.")
    app.command(f"{GROUPS}outbox:app", name="outbox", help="See how far publishing is.")
    app.command(f"{GROUPS}up:up", name="up", help="Run a whole local stack until Ctrl-C.")
    app.command(f"{GROUPS}processes:coordinator", name="coordinator", help="Run a coordinator.")
    app.command(f"{GROUPS}processes:relay", name="relay", help="Run a relay.")
    app.command(f"{GROUPS}processes:executor", name="executor", help="Run an executor.")
    app.command(f"{GROUPS}migrate:app", name="migrate", help="Bring the database up to date.")
    app.command(f"{GROUPS}config:app", name="config", help="Check and show settings.")
    app.command(f"{GROUPS}doctor:doctor", name="doctor", help="Say what is wrong, and what to do.")
    app.command(f"{GROUPS}guard:app", name="guard", help="What guarded databases need.")
    app.command(
        f"{GROUPS}completion:install",
        name="--install-completion",
        help="Let the shell complete commands and options.",
    )
    return app


def show_version() -> None:
    """Print the version of Tenure and of Python."""
    print(f"tenure {installed_version('tenure')}, Python {sys.version.split()[0]}")
