"""What a lease permits: operations on objects (LEASE-11). Sender and receiver judge by this.

Patterns are texts in which ``*`` stands for any characters, none included, and ``{name}`` for the
field of that name in the task's input. Everything else stands for itself.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

ANY: Final = "*"
MAX_PATTERNS: Final = 100
MAX_PATTERN_CHARACTERS: Final = 300
_FIELD: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PARTS: Final = re.compile(r"\*|\{[A-Za-z_][A-Za-z0-9_]*\}|[^*{}]+|[{}]")


def _checked(pattern: str) -> str:
    if any(part in "{}" for part in _PARTS.findall(pattern)):
        raise ValueError(f"{pattern!r}: a brace begins or ends the name of a field, like {{name}}")
    return pattern


Pattern = Annotated[
    str,
    Field(min_length=1, max_length=MAX_PATTERN_CHARACTERS, pattern=r"^[^\x00-\x1f\x7f]+$"),
    AfterValidator(_checked),
]


class Scope(BaseModel):
    """Operations and objects, each as patterns of which one has to fit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operations: tuple[Pattern, ...] = Field(default=(ANY,), min_length=1, max_length=MAX_PATTERNS)
    objects: tuple[Pattern, ...] = Field(default=(ANY,), min_length=1, max_length=MAX_PATTERNS)

    def fields(self) -> frozenset[str]:
        """The fields of the input that its patterns name."""
        return frozenset(
            name
            for pattern in (*self.operations, *self.objects)
            for name in _FIELD.findall(pattern)
        )

    def permits(self, operation: str, target: str, *, input: Mapping[str, Any] = {}) -> bool:
        """Whether the operation on the object is within the scope of a task with that ``input``.

        A pattern that names a field which the input lacks, or which has no ``field_text``, fits
        nothing.
        """
        return _fits(self.operations, operation, input) and _fits(self.objects, target, input)


UNLIMITED: Final = Scope()


def field_text(value: object) -> str | None:
    """A field of an input as patterns read it: texts, numbers and truth values (``true``); None for
    what is empty or anything else, and for texts with a NUL, which not every receiver can hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return None
    text = str(value)
    return text if text and "\0" not in text else None


def _fits(patterns: tuple[str, ...], text: str, input: Mapping[str, Any]) -> bool:
    return any(_one_fits(pattern, text, input) for pattern in patterns)


def _one_fits(pattern: str, text: str, input: Mapping[str, Any]) -> bool:
    literals = [""]  # what stands between the stars
    for part in _PARTS.findall(pattern):
        if part == ANY:
            literals.append("")
        elif part.startswith("{"):
            value = field_text(input.get(part[1:-1]))
            if value is None:
                return False
            literals[-1] += value  # a value never becomes a pattern
        else:
            literals[-1] += part
    return _in_order(literals, text)


def _in_order(literals: list[str], text: str) -> bool:
    """Whether the text has them one after another, the first at its beginning, the last at its end.

    The earliest place for each is as good as any other, so nothing is tried twice: a regular
    expression of many stars would try for hours.
    """
    first, *others = literals
    if not others:
        return text == first
    *middle, last = others
    at, end = len(first), len(text) - len(last)
    if end < at or not (text.startswith(first) and text.endswith(last)):
        return False
    for literal in middle:
        found = text.find(literal, at, end)
        if found < 0:
            return False
        at = found + len(literal)
    return True
