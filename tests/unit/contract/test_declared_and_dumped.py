"""Task types are declared with models, and models become JSON without losing a value."""

from typing import Any

import pytest
from pydantic import BaseModel

from tenure.contract.codec import json_value
from tenure.contract.codes import Code
from tenure.contract.errors import InvalidPayload, InvalidTaskType
from tenure.contract.tasktype import TaskType


class Anything(BaseModel):
    value: Any = None


@pytest.mark.parametrize("model", [Any, int, dict, None, "Anything", Anything()])
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_task_type_is_declared_with_models(model: Any, side: str) -> None:
    models: dict[str, Any] = {"input": Anything, "output": Anything} | {side: model}
    with pytest.raises(InvalidTaskType, match=side) as caught:
        TaskType("a", **models)
    assert (caught.value.code, "BaseModel" in caught.value.next_step) == (
        "invalid_declaration",
        True,
    )


def test_a_name_that_is_none_is_refused_in_the_same_way() -> None:
    with pytest.raises(InvalidTaskType, match="lower case"):
        TaskType("Not A Type", input=Anything, output=Anything)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), [float("-inf")], {"a": {"b": (1, float("nan"))}}], ids=str
)
def test_nan_in_a_field_of_any_kind_is_refused_and_does_not_become_null(value: Any) -> None:
    with pytest.raises(InvalidPayload, match="NaN") as caught:
        json_value(Anything(value=value), "the output")
    assert caught.value.code == Code.MALFORMED_JSON


def test_what_is_json_stays_as_it_is() -> None:
    value = {"a": [1, 2.5, None, "x"], "b": True}
    assert json_value(Anything(value=value), "the output") == {"value": value}
