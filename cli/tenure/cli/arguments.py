"""JSON on the command line."""

import sys
from pathlib import Path
from typing import Any

from tenure.cli.exits import UsageError
from tenure.contract.codec import parse_json
from tenure.contract.errors import InvalidPayload


def read_json_argument(argument: str) -> Any:
    """JSON itself, or of ``@FILE``, or ``-`` for standard input. Raises UsageError and
    InvalidPayload."""
    try:
        return parse_json(_read_input(argument))
    except InvalidPayload as error:
        if not argument.startswith(("@", "-")):  # a shell has had its hands on it
            error.next_step = """Quote it like '{"name": "value"}', or use @FILE."""
        raise


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
