"""What a lease permits: operations on objects (LEASE-11). Sender and receiver judge by this.

Patterns are texts in which ``*`` stands for any characters, none included, and ``{name}`` for the
field of that name in the task's input. Everything else stands for itself.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
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

        A pattern that names a field which the input lacks, or which is no text, number or truth
        value, fits nothing.
        """
        return _fits(self.operations, operation, input) and _fits(self.objects, target, input)


UNLIMITED: Final = Scope()


def _fits(patterns: tuple[str, ...], text: str, input: Mapping[str, Any]) -> bool:
    return any(_one_fits(pattern, text, input) for pattern in patterns)


def _one_fits(pattern: str, text: str, input: Mapping[str, Any]) -> bool:
    if pattern == ANY:
        return True
    values: list[str] = []
    for name in _FIELD.findall(pattern):
        value = input.get(name)
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, str | int | float) or value == "":
            return False
        values.append(str(value))
    return _compiled(pattern, tuple(values)).fullmatch(text) is not None


@lru_cache(maxsize=10_000)
def _compiled(pattern: str, values: tuple[str, ...]) -> re.Pattern[str]:
    rest = iter(values)
    parts = []
    for part in _PARTS.findall(pattern):
        if part == "*":
            parts.append(".*")
        elif part.startswith("{"):
            parts.append(re.escape(next(rest)))  # a value never becomes a pattern
        else:
            parts.append(re.escape(part))
    return re.compile("".join(parts), re.DOTALL)
