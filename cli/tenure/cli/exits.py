"""How a command ends: exit codes, and the one line that says what went wrong.

| exit | means | for example |
|---|---|---|
| 0 | done | |
| 1 | refused | the server said no, or the task ended otherwise than delivered |
| 2 | usage | an unknown option, JSON that is none |
| 3 | unreachable | no coordinator or database answers |
| 4 | set-up | a missing extra, server program, token or migration; a wrong setting or declaration |
| 5 | not yet | the result was not there within the time given |
| 70 | a fault of Tenure itself | the traceback is on standard error |
| 130 | interrupted | Ctrl-C |

The line is ``error: CODE: message next step`` on standard error; codes are stable.
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

from tenure.contract.codes import Code
from tenure.contract.errors import ContractError, TenureError, sentences


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    SETUP = 4
    NOT_YET = 5
    FAULT = 70
    INTERRUPTED = 130


class CommandError(TenureError):
    """A command cannot do what it was asked to. ``exit_code`` is how the process ends.

    CommandError
    ├── UsageError      usage           the command line does not make sense
    └── SetupError      …               something this machine lacks
        └── MissingExtra  missing_extra an extra of the distribution is not installed
    """

    exit_code = Exit.REFUSED


class UsageError(CommandError):
    """The command line does not make sense."""

    code = "usage"
    exit_code = Exit.USAGE


class SetupError(CommandError):
    """Something is missing or in the way on this machine."""

    code = "setup"
    exit_code = Exit.SETUP


class MissingExtra(SetupError):
    """An extra of the distribution is not installed."""

    code = "missing_extra"

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(
            f"this needs the extra {extra!r}: the module {module!r} is not installed.",
            next_step=f"Install it with: pip install 'tenure[{extra}]'",
        )
        self.extra = extra


# What an error of another part means for the exit code: by its stable code, so that nothing has to
# be imported here. Whatever is not named is a refusal.
_EXITS: Final = {
    "unreachable": Exit.UNREACHABLE,
    Code.UNAVAILABLE.value: Exit.UNREACHABLE,
    Code.OVERLOADED.value: Exit.UNREACHABLE,
    "result_timeout": Exit.NOT_YET,
    "broker_unreachable": Exit.UNREACHABLE,
    "not_configured": Exit.SETUP,
    "settings_invalid": Exit.SETUP,
    "certificate_untrusted": Exit.SETUP,
    "listen_refused": Exit.SETUP,
    "application_broken": Exit.SETUP,
    "invalid_declaration": Exit.SETUP,
    "database_refused": Exit.SETUP,
    "broker_refused": Exit.SETUP,
    "server_too_old": Exit.SETUP,
    "roles_needed": Exit.SETUP,
    Code.UNAUTHENTICATED.value: Exit.SETUP,
    Code.NOT_MIGRATED.value: Exit.SETUP,
    Code.SCHEMA_TOO_NEW.value: Exit.SETUP,
    "migration_edited": Exit.SETUP,
}


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around imports: a module that is not installed becomes MissingExtra.

    A missing module of Tenure itself is a fault, not a missing extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = error.name or ""
        if module.split(".")[0] in ("", "tenure"):
            raise
        raise MissingExtra(extra, module) from error


def exit_code_of(error: TenureError) -> Exit:
    """The exit code that belongs to an error of any part."""
    if isinstance(error, CommandError):
        return error.exit_code
    if str(error.code).startswith("local_"):
        return Exit.SETUP
    otherwise = Exit.USAGE if isinstance(error, ContractError) else Exit.REFUSED
    return _EXITS.get(str(error.code), otherwise)


def say_error(code: str, message: str, next_step: str = "") -> None:
    """One line on standard error. What a longer message shows besides (the end of a log) goes
    before it, so that the last line is the one that says what to do."""
    first, *rest = message.splitlines() or [""]
    for line in rest:
        print(f"  {line}", file=sys.stderr)
    print(f"error: {code}: {sentences(first, next_step)}", file=sys.stderr)


def report(error: TenureError) -> Exit:
    """Say what went wrong and return how the process should end."""
    say_error(str(error.code), error.message, error.next_step)
    return exit_code_of(error)


def report_fault(error: BaseException) -> Exit:
    """Something nobody foresaw: the traceback is what a report about it needs."""
    traceback.print_exception(error)
    say_error(Code.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
    return Exit.FAULT
