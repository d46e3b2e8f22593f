"""A task type, declared once and imported by both sides: the application that submits and the
executor that runs it. Neither needs the other's code."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from tenure.contract.codec import json_value
from tenure.contract.errors import InvalidTaskType
from tenure.contract.ids import TASK_TYPE_PATTERN

InputT = TypeVar("InputT", bound=BaseModel)
OutputT = TypeVar("OutputT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class TaskType(Generic[InputT, OutputT]):
    """``TaskType("sha256", input=HashIn, output=HashOut)``.

    Raises InvalidTaskType (a ValueError) for a name that is not lower case letters, digits, ``_``,
    ``.`` and ``-``, and for an input or output that is no pydantic model.
    """

    name: str
    input: type[InputT]
    output: type[OutputT]

    def __post_init__(self) -> None:
        if not TASK_TYPE_PATTERN.fullmatch(self.name):
            raise InvalidTaskType(
                f"{self.name!r} is no task type: use lower case letters, digits, '_', '.', '-',"
                " beginning with a letter, at most 128 characters"
            )
        for side in ("input", "output"):
            model: object = getattr(self, side)
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                raise InvalidTaskType(
                    f"the {side} of task type {self.name!r} is {model!r}, which is no model.",
                    next_step="Declare a class that derives from pydantic.BaseModel.",
                )


def named(task_type: TaskType[InputT, Any], value: InputT) -> tuple[str, Any]:
    """The name of the type, and the JSON that the executor will read back as the same input.

    Raises TypeError for what a type checker would have refused: the executor would only find out
    once it has the task. Raises InvalidPayload for NaN and Infinity.
    """
    if not isinstance(task_type, TaskType):
        raise TypeError(f"{task_type!r} is no TaskType; submit_json of a client takes a name")
    if not isinstance(value, task_type.input):
        raise TypeError(
            f"the input of {task_type.name!r} has to be an instance of"
            f" {task_type.input.__name__}, not of {type(value).__name__}"
        )
    return task_type.name, json_value(value, "the input", round_trip=True)
