"""What the repository holds in a form that other languages and people read, made from the code.

``python -m tests.support.exported`` (``make schemas``) writes it anew; tests fail when it is stale:

- ``contract/tenure/contract/schemas/event.json``    JSON Schema of an event
- ``contract/tenure/contract/schemas/http.json``     JSON Schemas of what HTTP carries
- ``contract/tenure/contract/schemas/openapi.json``  the HTTP interface, as a coordinator serves it
- ``contract/tenure/contract/schemas/asyncapi.json`` what is sent through RabbitMQ
- ``contract/tenure/contract/schemas/events.jsonl``  golden messages, one a line, byte for byte
- the tables in ``docs/wire.md`` and ``docs/settings.md`` between their marks
"""

import json
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from tenure.contract import (
    bulk,
    dead_letters,
    flow,
    limits,
    parking,
    replay,
    reports,
    retention,
    scheduling,
    subscriptions,
    tasks,
)
from tenure.contract.events import Event
from tenure.coordinator.api import openapi
from tenure.coordinator.api.endpoint import Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.routes import Handlers, endpoints
from tests.support import asyncapi, golden, settings_tables, wire_tables
from tests.support.repository import REPOSITORY, package

SCHEMAS = package("contract") / "schemas"
WIRE = REPOSITORY / "docs" / "wire.md"
SETTINGS = REPOSITORY / "docs" / "settings.md"


def table() -> tuple[Endpoint, ...]:
    """Every endpoint of the coordinator, without anything behind it."""
    handlers = cast(
        Handlers,
        Mock(
            spec=[
                "applications",
                "executors",
                "progress",
                "operators",
                "leases",
                "scheduling",
                "interventions",
                "bulk",
                "programs",
                "flow",
                "subscriptions",
                "dead_letters",
                "topology",
                "parking",
                "retention",
                "limits",
                "replays",
            ]
        ),
    )
    gate = cast(Gate, Mock())
    return endpoints(handlers, application_gate=gate, executor_gate=gate)


def http_models() -> list[type[BaseModel]]:
    """Public models of requests and replies, by name."""
    found = {
        model.__name__: model
        for module in (
            tasks,
            bulk,
            bulk,
            reports,
            scheduling,
            flow,
            limits,
            subscriptions,
            dead_letters,
            parking,
            retention,
            replay,
        )
        for model in vars(module).values()
        if isinstance(model, type)
        and issubclass(model, reports.Frozen)
        and model is not reports.Frozen
        and not model.__name__.startswith("_")
    }
    return [found[name] for name in sorted(found)]


def exported() -> dict[Path, str]:
    """Texts of all files that are made from the code."""
    _, http = models_json_schema([(model, "validation") for model in http_models()])
    dialect = {"$schema": GenerateJsonSchema.schema_dialect}
    return {
        SCHEMAS / "event.json": _json(dialect | Event.model_json_schema()),
        SCHEMAS / "http.json": _json(dialect | http),
        SCHEMAS / "openapi.json": _json(openapi.document(table())),
        SCHEMAS / "asyncapi.json": _json(asyncapi.document()),
        SCHEMAS / "events.jsonl": "".join(
            message.decode() + "\n" for message in golden.messages().values()
        ),
        WIRE: wire_tables.filled_in(WIRE.read_text(encoding="utf-8"), table()),
        SETTINGS: settings_tables.filled_in(SETTINGS.read_text(encoding="utf-8")),
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, text in exported().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
