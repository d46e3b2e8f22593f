"""Handlers are declared once, and wrong declarations fail when the module is imported."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.contract.states import Effects
from tenure.executor import Context, Executor, Resources, TaskType
from tenure.executor.errors import DeclarationError
from tests.support.type_checks import errors_of


class HashIn(BaseModel):
    path: str


class HashOut(BaseModel):
    digest: str


SHA256 = TaskType("sha256", input=HashIn, output=HashOut)


def test_a_handler_is_declared_with_its_effects_limits_and_schemas() -> None:
    app = Executor("hasher", version="1.0")

    @app.task(SHA256, effects="none", max_attempts=3, resources=Resources(cpu_millis=500))
    async def sha256(input: HashIn, context: Context[None]) -> HashOut:
        return HashOut(digest=input.path)

    declared = app.handlers["sha256"]
    assert declared.is_async
    wire = declared.to_wire()
    assert (wire.name, wire.effects, wire.max_attempts) == ("sha256", Effects.NONE, 3)
    assert wire.resources.cpu_millis == 500
    assert wire.input_schema is not None
    assert wire.input_schema["required"] == ["path"]


def test_a_plain_function_is_a_handler_too() -> None:
    app = Executor("hasher", version="1.0")

    @app.task(SHA256)
    def sha256(input: HashIn, context: Context[None]) -> HashOut:
        return HashOut(digest=input.path)

    assert not app.handlers["sha256"].is_async
    assert app.handlers["sha256"].effects is Effects.IDEMPOTENT


def test_a_decorator_without_its_task_type_is_refused() -> None:
    app: Any = Executor("hasher", version="1.0")
    with pytest.raises(DeclarationError, match="_good is no task type"):
        app.task(_good)


async def test_the_lifespan_yields_the_resources() -> None:
    app = Executor("hasher", version="1.0")
    async with app.open_resources() as nothing:
        assert nothing is None

    @app.lifespan
    @asynccontextmanager
    async def resources() -> AsyncIterator[str]:
        yield "pool"

    async with app.open_resources() as opened:
        assert opened == "pool"
    with pytest.raises(DeclarationError, match="one lifespan"):
        app.lifespan(resources)


async def _good(input: HashIn, context: Context[Any]) -> HashOut:
    return HashOut(digest="")


async def _one_argument(input: HashIn) -> HashOut:
    return HashOut(digest="")


async def _other_input(input: HashOut, context: Context[Any]) -> HashOut:
    return input


async def _other_output(input: HashIn, context: Context[Any]) -> HashIn:
    return input


async def _no_output(input: HashIn, context: Context[Any]) -> None:
    return None


async def _yields(input: HashIn, context: Context[Any]) -> AsyncIterator[HashOut]:
    yield HashOut(digest="")


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (_one_argument, "two arguments"),
        (_other_input, "takes HashOut, the task type's input is HashIn"),
        (_other_output, "returns HashIn, the task type's output is HashOut"),
        (_no_output, "returns None"),
        (_yields, "yields"),
        ("text", "no function"),
    ],
)
def test_a_handler_that_does_not_fit_is_refused(handler: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        Executor("hasher", version="1.0").task(SHA256)(handler)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"effects": "guarded"}, "names no guard"),
        ({"effects": "often"}, "is not known: it is one of 'none', 'guarded'"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"environment": {"A": "b"}}, "runs in the executor, in the executor's"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        Executor("hasher", version="1.0").task(SHA256, **options)(_good)


def test_two_handlers_of_one_type_are_refused() -> None:
    app = Executor("hasher", version="1.0")
    app.task(SHA256)(_good)
    with pytest.raises(DeclarationError, match="two handlers"):
        app.task(SHA256)(_good)


def test_an_executor_has_a_name_and_a_version() -> None:
    make: Callable[..., Executor] = Executor
    for name, version in (("", "1"), ("hasher", "")):
        with pytest.raises(DeclarationError):
            make(name, version=version)


TYPED = """
from pydantic import BaseModel
from tenure.executor import Context, Executor, TaskType

class In(BaseModel):
    a: int

class Out(BaseModel):
    b: int

T = TaskType("t", input=In, output=Out)
app = Executor("x", version="1")

@app.task(T)
async def good(input: In, context: Context[str]) -> Out:
    return Out(b=input.a + len(context.resources))

@app.task(T)
def good_too(input: In, context: Context[None]) -> Out:
    return Out(b=1)

async def use(context: Context[str]) -> int:
    return (await good(In(a=1), context)).b
"""


ADDITIONS = [
    ("", True),
    ("@app.task(T)\nasync def bad(input: Out, context: Context[None]) -> Out: ...", False),
    ("@app.task(T)\nasync def bad(input: In, context: Context[None]) -> In: ...", False),
    ("@app.task(T)\ndef bad(input: In, context: Context[None]) -> In: ...", False),
    ("@app.task(T)\nasync def bad(input: In) -> Out: ...", False),
    ("@app.task(T, effects='often')\nasync def bad(i: In, c: Context[None]) -> Out: ...", False),
]


def test_mypy_judges_whether_a_handler_fits_its_task_type(tmp_path: Path) -> None:
    programs = [f"{TYPED}{addition}\n" for addition, _ in ADDITIONS]
    errors = errors_of(programs, tmp_path, "--disable-error-code", "empty-body")
    for (addition, fits), found in zip(ADDITIONS, errors, strict=True):
        assert (found == []) == fits, (addition, found)
