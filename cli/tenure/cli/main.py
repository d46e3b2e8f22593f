"""The command ``tenure``. Groups are imported when they are used: ``tenure --help`` stays quick,
and a group whose extra is not installed says so in one line."""

import os
import sys
from importlib.metadata import version as installed_version
from itertools import count
from typing import TYPE_CHECKING, Final, NoReturn

from tenure.cli.exits import Exit, UsageError, needs, report, report_fault
from tenure.contract.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import App, CycloptsError

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
            build_app(words)(_hyphen_last(words), result_action="return_value")
        except CycloptsError as error:
            command = " ".join(("tenure", *(error.command_chain or ())))
            raise UsageError(_what_is_wrong(error), next_step=f"See `{command} --help`.") from error
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


def _hyphen_last(words: "Sequence[str]") -> list[str]:
    """``-`` of ``tenure submit TYPE -`` is standard input: the parser takes it for an option unless
    it follows ``--``."""
    if list(words[:1]) != ["submit"] or words.count("-") != 1 or "--" in words:
        return list(words)
    return [*(word for word in words if word != "-"), "--", "-"]


def _what_is_wrong(error: "CycloptsError") -> str:
    """In words of the command line where the parser's are about its own parts."""
    from cyclopts.exceptions import UnusedCliTokensError

    if isinstance(error, UnusedCliTokensError):
        return f"unexpected argument: {' '.join(error.unused_tokens or ())}."
    return str(error)


def _default_to_show(value: object) -> object:
    """Flags are off and lists are empty unless they are given: help need not say so."""
    return None if value is False or value == () else value


def build_app(words: "Sequence[str]" = ()) -> "App":
    """The tree of commands, nothing of it imported yet.

    The list of commands has a line for each; the one that ``words`` name explains itself.
    """
    from cyclopts import App, Group, Parameter

    asked = words[0] if words else ""
    places = count()
    begin = Group("To begin with", sort_key=1)
    work = Group("What may run", sort_key=2)
    events = Group("Events and messages", sort_key=3)
    run = Group("Processes and their servers", sort_key=4)
    rest = Group("This command", sort_key=5)

    def add(group: Group, target: str, name: str, line: str) -> None:
        line_of_list = None if name == asked else line
        app.command(
            f"{GROUPS}{target}",
            name=name,
            help=line_of_list,
            group=group,
            sort_key=next(places),
        )

    app = App(
        name="tenure",
        help="A fleet of workers under leases and fencing tokens.",
        help_epilogue="Exit codes: 0 done, 1 refused or failed, 2 usage, 3 unreachable, 4 set-up,"
        " 5 not yet, 70 a fault of Tenure, 130 interrupted.",
        version=installed_version("tenure"),
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(negative_iterable=(), show_default=_default_to_show),
    )
    add(begin, "up:up", "up", "Run a whole local stack until Ctrl-C.")
    add(begin, "tasks:submit", "submit", "Make a task; --wait prints its output.")
    add(begin, "tasks:app", "task", "See tasks, and cancel, hold, release and retry them.")
    add(begin, "why:why", "why", "Say why a task is not running.")
    add(begin, "nodes:app", "node", "See the executors' processes; drain and quarantine them.")
    add(begin, "processes:executor", "executor", "Run an executor.")
    add(begin, "doctor:doctor", "doctor", "Say what is wrong, and what to do.")
    add(work, "tenants:app", "tenant", "See and state what tenants may use.")
    add(work, "programs:profiles", "profile", "See and register workload profiles.")
    add(work, "programs:executables", "executable", "See and withdraw the programs of nodes.")
    add(work, "policy:app", "policy", "See and set the terms of leases.")
    add(work, "flow:pause", "pause", "Let nothing of a scope begin any more.")
    add(work, "flow:resume", "resume", "Let a paused scope begin again.")
    add(work, "flow:pauses", "pauses", "See what is paused.")
    add(work, "limits:app", "limit", "See and set how many tasks run at once, or start in a time.")
    add(work, "retention:app", "retention", "See and set how long what has ended is kept.")
    add(
        events, "subscriptions:app", "subscription", "See and state which events reach which queue."
    )
    add(events, "consumers:app", "consumer", "Run a consumer of events; see what it keeps.")
    add(events, "dead_letters:app", "dead-letter", "See what queues gave up, and send it again.")
    add(events, "intake:app", "intake", "See what was enqueued.")
    add(events, "outbox:app", "outbox", "See how far publishing is, and publish once more.")
    add(events, "topology:app", "topology", "Compare the broker with what must be on it.")
    add(run, "processes:coordinator", "coordinator", "Run a coordinator.")
    add(run, "processes:relay", "relay", "Run a relay.")
    add(run, "migrate:app", "migrate", "Bring the database up to date.")
    add(run, "config:app", "config", "Check and show settings.")
    add(run, "verify:verify", "verify", "Find what breaks an invariant in the database.")
    add(run, "authority:app", "authority", "See who decides, and whether it may.")
    add(run, "authority:recover", "recover", "Make a restored database the authority.")
    add(run, "guard:app", "guard", "What guarded receivers need; whether they refuse.")
    add(run, "chaos.command:chaos", "chaos", "Try an executor under kills and poisoned wires.")
    app.command(show_version, name="version", group=rest, sort_key=next(places))
    line = "Let the shell complete commands and options."
    add(rest, "completion:install", "--install-completion", line)
    for name in ("--help", "--version"):
        app[name].group = rest
    return app


def show_version() -> None:
    """Print the version of Tenure and of Python."""
    print(f"tenure {installed_version('tenure')}, Python {sys.version.split()[0]}")
