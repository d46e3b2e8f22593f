"""The tables in ``docs/settings.md`` that are made from the models."""

import re
import types
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from tenure.coordinator.config import CoordinatorSettings, MigrateSettings
from tenure.executor.config import ExecutorSettings
from tenure.executor.consumer_settings import ConsumerSettings
from tenure.relay.config import RelaySettings
from tenure.settings import names
from tenure.settings.process import ProcessSettings
from tenure.settings.secrets import Secret

MODELS: tuple[type[ProcessSettings], ...] = (
    CoordinatorSettings,
    RelaySettings,
    ExecutorSettings,
    ConsumerSettings,
    MigrateSettings,
)
_BLOCK = re.compile(r"(<!-- made from the code: settings of (\w+) -->\n)(.*?)(<!-- end -->)", re.S)
_WORDS = {"Path": "path", "str": "text", "int": "integer", "float": "number", "bool": "true/false"}


def filled_in(text: str) -> str:
    """The document with every block made anew. Raises KeyError for a block of no process."""
    models = {model.process: model for model in MODELS}
    return _BLOCK.sub(lambda found: f"{found[1]}{_table(models[found[2]])}{found[4]}", text)


def blocks(text: str) -> list[str]:
    """Processes that have a block in a document."""
    return [found[2] for found in _BLOCK.finditer(text)]


def _table(model: type[ProcessSettings]) -> str:
    lines = ["| Variable | Kind | Default | What it is |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        variable = f"`{names.variable(name)}`"
        if name in names.SECRETS:
            variable += f" or `{names.variable(name)}_FILE`"
        kind = _kind(field.annotation)
        default = _default(field.default, required=field.is_required())
        lines.append(f"| {variable} | {kind} | {default} | {field.description} |")
    return "\n".join(lines) + "\n"


def _default(value: object, *, required: bool) -> str:
    if required:
        return "**required**"
    match value:
        case None:
            return ""
        case bool():
            return "`true`" if value else "`false`"
        case _ if value is PydanticUndefined:  # made at the start
            return "number of cores"
        case _:
            return f"`{value}`"


def _kind(annotation: object) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _kind(next(one for one in get_args(annotation) if one is not type(None)))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    assert isinstance(annotation, type), annotation
    if issubclass(annotation, Secret):
        return "secret"
    return _WORDS[annotation.__name__]
