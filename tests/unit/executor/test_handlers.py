"""What people read of an error that their handler raised."""

import traceback
from typing import Any, cast

import pytest

from tenure.executor import Context, Executor, TaskType
from tenure.executor.handlers import call, within_handler
from tests.unit.executor.test_declarations import HashIn, HashOut

app = Executor("hasher", version="1.0")


@app.task(TaskType("plain", input=HashIn, output=HashOut))
def plain(input: HashIn, context: Context[Any]) -> HashOut:
    return deeper()


@app.task(TaskType("coroutine", input=HashIn, output=HashOut))
async def coroutine(input: HashIn, context: Context[Any]) -> HashOut:
    return deeper()


def deeper() -> HashOut:
    raise KeyError("nothing here")


@pytest.mark.parametrize("name", ["plain", "coroutine"])
async def test_a_traceback_begins_in_the_handler(name: str) -> None:
    with pytest.raises(KeyError) as caught:
        await call(app.handlers[name], HashIn(path="a"), cast(Any, None))
    whole = caught.value.__traceback__
    assert whole is not None
    frames = traceback.extract_tb(within_handler(whole.tb_next))
    assert [frame.name for frame in frames] == [name, "deeper"]


def test_an_error_that_no_handler_raised_has_no_such_part() -> None:
    assert within_handler(None) is None
