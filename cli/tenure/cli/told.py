"""Values that may be secrets: a command line can be seen by others."""

from pathlib import Path
from typing import overload

from tenure.cli.exits import UsageError
from tenure.settings.secrets import read_text


@overload
def told(option: str, value: str) -> str: ...
@overload
def told(option: str, value: None) -> None: ...
def told(option: str, value: str | None) -> str | None:
    """The value, or the content of the file that ``@FILE`` names. Raises UsageError."""
    if value is None or not value.startswith("@"):
        return value
    try:
        return read_text(Path(value[1:]))
    except ValueError as error:
        raise UsageError(f"{option} {value}: {error}.") from error
