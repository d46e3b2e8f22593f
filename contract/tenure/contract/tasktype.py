"""A task type, declared once and imported by both sides: the application that submits and the
executor that runs it. Neither needs the other's code."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from tenure.contract.ids import TASK_TYPE_PATTERN

InputT = TypeVar("InputT", bound=BaseModel)
OutputT = TypeVar("OutputT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class TaskType(Generic[InputT, OutputT]):
    """``TaskType("sha256", input=HashIn, output=HashOut)``.

    Raises ValueError for a name that is not lower case letters, digits, ``_``, ``.`` and ``-``.
    """

    name: str
    input: type[InputT]
    output: type[OutputT]

    def __post_init__(self) -> None:
        if not TASK_TYPE_PATTERN.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} is no task type: use lower case letters, digits, '_', '.', '-',"
                " beginning with a letter, at most 128 characters"
            )
