"""Values on the command line: JSON, and what others must not see there."""

import sys
from pathlib import Path
from typing import Any, overload

from tenure.cli.exits import UsageError
from tenure.contract.codec import parse_json
from tenure.contract.errors import InvalidPayload
from tenure.settings.secrets import read_text


def read_json_argument(argument: str) -> Any:
    """JSON itself, or of ``@FILE``, or ``-`` for standard input. Raises UsageError and
    InvalidPayload."""
    try:
        return parse_json(_read_input(argument))
    except InvalidPayload as error:
        if not argument.startswith(("@", "-")):  # a shell has had its hands on it
            error.next_step = """Quote it like '{"name": "value"}', or use @FILE."""
        raise


@overload
def read_secret_argument(option: str, value: str) -> str: ...
@overload
def read_secret_argument(option: str, value: None) -> None: ...
def read_secret_argument(option: str, value: str | None) -> str | None:
    """The value, or the content of the file that ``@FILE`` names: a command line can be seen by
    others. Raises UsageError, naming ``option``."""
    if value is None or not value.startswith("@"):
        return value
    try:
        return read_text(Path(value[1:]))
    except ValueError as error:
        raise UsageError(f"{option} {value}: {error}.") from error


def _read_input(argument: str) -> bytes:
    """The bytes of the input. Raises UsageError for a file that cannot be read."""
    if argument == "-":
        return sys.stdin.buffer.read()
    if argument.startswith("@"):
        try:
            return Path(argument[1:]).read_bytes()
        except OSError as error:
            raise UsageError(f"{argument[1:]}: {error.strerror}.") from error
    return argument.encode(errors="surrogateescape")
