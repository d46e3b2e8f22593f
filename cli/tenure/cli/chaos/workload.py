"""What is submitted: lines of a file, one input again and again, or the application's examples."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tenure.cli.exits import UsageError

if TYPE_CHECKING:
    from tenure.executor import Executor


@dataclass(frozen=True, slots=True)
class Asked:
    """A task to submit. ``input`` is JSON that the type's model accepts."""

    type: str
    input: Any


def of_file(path: Path, app: "Executor") -> list[Asked]:
    """One task a line: ``{"type": …, "input": …}``; the type may be left out where the application
    has one. Raises UsageError that names the line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--input: {path} cannot be read: {error}.") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number} of {path}"
        try:
            one = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{where} is no JSON: {error}.") from error
        if not isinstance(one, dict) or not {"input"} <= one.keys() <= {"type", "input"}:
            raise UsageError(f'{where} is not written like {{"type": "…", "input": {{…}}}}.')
        type_name = one.get("type") or only_type(app, where)
        found.append(checked(app, type_name, one["input"], where))
    if not found:
        raise UsageError(f"--input: {path} holds no tasks.")
    return found


def of_examples(app: "Executor") -> list[Asked]:
    """The examples that the input models declare (``json_schema_extra={"examples": […]}``, as JSON
    Schema calls them). Raises UsageError where there are none."""
    found = list(_examples(app))
    if not found:
        raise UsageError(
            f"no input of executor {app.name!r} declares examples.",
            next_step="Give --input FILE, or --type T with --data JSON, or declare them:"
            ' model_config = ConfigDict(json_schema_extra={"examples": [{…}]}).',
        )
    return found


def _examples(app: "Executor") -> Iterator[Asked]:
    for name, declaration in app.handlers.items():
        schema = declaration.task_type.input.model_json_schema()
        for number, example in enumerate(schema.get("examples", ()), 1):
            yield checked(app, name, example, f"example {number} of task type {name!r}")


def checked(app: "Executor", type_name: str, value: Any, where: str) -> Asked:
    """A task that the application can read. Raises UsageError."""
    declaration = app.handlers.get(type_name)
    if declaration is None:
        known = ", ".join(sorted(app.handlers))
        raise UsageError(f"{where}: executor {app.name!r} runs no {type_name!r}, it runs {known}.")
    try:
        declaration.task_type.input.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise UsageError(
            f"{where} is no {declaration.task_type.input.__name__}: {place}: {first['msg']}."
        ) from error
    return Asked(type_name, value)


def only_type(app: "Executor", where: str) -> str:
    """The type of the application's only handler. Raises UsageError where it has several."""
    if len(app.handlers) != 1:
        raise UsageError(f"{where} names no type, and executor {app.name!r} runs several.")
    return next(iter(app.handlers))


def repeated(some: Sequence[Asked], tasks: int) -> list[Asked]:
    """So many, one after the other and from the beginning again."""
    return list(islice(cycle(some), tasks))
