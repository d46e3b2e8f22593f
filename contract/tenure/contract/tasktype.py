"""A task type, declared once and imported by both sides: the application that submits and the
executor that runs it. Neither needs the other's code."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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


def named(task_type: TaskType[InputT, Any], value: InputT) -> tuple[str, Any]:
    """The name of the type, and the JSON that the executor will read back as the same input.

    Raises TypeError for what a type checker would have refused: the executor would only find out
    once it has the task.
    """
    if not isinstance(task_type, TaskType):
        raise TypeError(f"{task_type!r} is no TaskType; submit_json takes the name of one")
    if not isinstance(value, task_type.input):
        raise TypeError(
            f"the input of {task_type.name!r} has to be an instance of"
            f" {task_type.input.__name__}, not of {type(value).__name__}"
        )
    return task_type.name, value.model_dump(mode="json", by_alias=True, round_trip=True)
