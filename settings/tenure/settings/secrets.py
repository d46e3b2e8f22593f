"""Secrets: given as they are, or in a file that is read anew each time.

So a new password needs no restart.
"""

import json
import logging
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from pydantic import GetCoreSchemaHandler, SecretStr
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")

MASK: Final = "********"

log = logging.getLogger("tenure.settings")


class SecretFile:
    """Says that a secret is in a file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)


class Secret(Generic[T]):
    """One secret setting; ``current`` is its value now.

    A file that cannot be read or used at some later moment leaves the last good value in force, and
    that is said in the log: whoever replaces a file may take a moment for it.
    """

    def __init__(self, text: str, file: Path | None = None) -> None:
        """Raises ValueError, which never holds the text."""
        self.file = file
        self._text = text
        self._value = self.parse(text)
        self._fault = ""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """The secret in a file. Raises ValueError when it cannot be read or used."""
        return cls(read_text(path), path)

    @classmethod
    def parse(cls, text: str) -> T:
        """The value that a text stands for. Raises ValueError, which never holds the text."""
        raise NotImplementedError

    def current(self) -> T:
        """The value; from a file as it is at this moment."""
        if self.file is not None:
            try:
                text = read_text(self.file)
                if text != self._text:
                    self._value = self.parse(text)
                    self._text = text
                    log.info("a secret was read anew: %s", self.file)
            except ValueError as error:
                self._say(str(error))
            else:
                self._fault = ""
        return self._value

    def shown(self) -> str:
        """What may be shown to people."""
        return MASK

    def _say(self, fault: str) -> None:
        if fault != self._fault:
            self._fault = fault
            log.warning("%s: %s; its last value stays in force", self.file, fault)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({MASK!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._accept)

    @classmethod
    def _accept(cls, value: object) -> Self:
        match value:
            case cls():
                return value
            case SecretFile():
                return cls.from_file(value.path)
            case SecretStr():
                return cls(value.get_secret_value())
            case str():
                return cls(value.strip())
            case list() | tuple() | dict():  # a configuration file's own lists and tables
                return cls(json.dumps(value))
        raise ValueError("write a text")


class Password(Secret[str]):
    """A password or token as it is."""

    @classmethod
    def parse(cls, text: str) -> str:
        """The text itself, which must not be empty."""
        if not text:
            raise ValueError("it is empty")
        if not text.isprintable():
            raise ValueError("it holds characters that cannot be typed")
        return text


def read_text(path: Path) -> str:
    """The content of a file without white space around it. Raises ValueError, with the reason."""
    try:
        return path.read_text("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError("the file cannot be read: it is no text in UTF-8") from error
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror or error}") from error
