"""The OpenAPI document, made from the table of endpoints and the contract's models."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tenure.contract.codes import Code
from tenure.contract.tasks import Problem
from tenure.coordinator.api.endpoint import Endpoint
from tenure.coordinator.api.problems import MEDIA_TYPE
from tenure.coordinator.api.statuses import STATUS

_REFERENCE = "#/components/schemas/{model}"
_DESCRIPTION: Final = (
    "Tasks, leases and receipts. Every refusal is a problem with a stable `code` and a `next_step`;"
    " after `503` the same request, ids included, may be repeated. Leases, events and codes are"
    " explained in the documentation of Tenure."
)
_HEADERS_OF_STATUS: Final[Mapping[int, Mapping[str, str]]] = {
    401: {"WWW-Authenticate": "The scheme: Bearer."},
    405: {"Allow": "The methods that this path has."},
    503: {"Retry-After": "Seconds until the same request may be repeated."},
}


@dataclass(frozen=True, slots=True)
class Page:
    """A route outside ``/v1``: it needs no token and changes nothing."""

    path: str
    name: str
    summary: str
    media_type: str
    answers: Mapping[int, str]


PAGES: Final = (
    Page(
        "/healthz",
        "healthz",
        "Ask whether the process lives; judges its own event loop only",
        "text/plain",
        {200: "It lives"},
    ),
    Page(
        "/readyz",
        "readyz",
        "Ask whether it can serve: PostgreSQL and RabbitMQ answer",
        "text/plain",
        {200: "It can", 503: "It cannot, and why: one line for each condition"},
    ),
    Page(
        "/metrics",
        "metrics",
        "Read the metrics in the text format of Prometheus",
        "text/plain",
        {200: "The metrics"},
    ),
    Page(
        "/openapi.json", "openapi", "Read this document", "application/json", {200: "OpenAPI 3.1"}
    ),
)


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1 for ``endpoints`` and ``PAGES``; refusals are listed by status, with codes."""
    models: set[type[BaseModel]] = {Problem}
    for endpoint in endpoints:
        models.add(endpoint.reply)
        if endpoint.body is not None:
            models.add(endpoint.body)
    _, definitions = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template=_REFERENCE,
    )
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for endpoint in endpoints:
        paths[endpoint.path][endpoint.method.lower()] = _operation(endpoint)
    for page in PAGES:
        paths[page.path]["get"] = _page(page)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure coordinator",
            "version": "1",
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": dict(paths),
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": f"Roles: {', '.join(sorted(endpoint.roles))}.",
        "parameters": _parameters(endpoint),
        "responses": {
            str(status): {
                "description": "Done",
                "content": {"application/json": {"schema": _schema(endpoint.reply)}},
                **_headers(endpoint.reply_headers.get(status, {})),
            }
            for status in endpoint.replies
        }
        | _refusals(endpoint),
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": bool(endpoint.body.model_fields),
            "content": {"application/json": {"schema": _schema(endpoint.body)}},
        }
    return operation


def _page(page: Page) -> dict[str, Any]:
    return {
        "operationId": page.name,
        "summary": page.summary,
        "security": [],
        "responses": {
            str(status): {
                "description": text,
                "content": {
                    page.media_type: {
                        "schema": {
                            "type": "object" if page.media_type.endswith("json") else "string"
                        }
                    }
                },
            }
            for status, text in page.answers.items()
        },
    }


def _headers(texts: Mapping[str, str]) -> dict[str, Any]:
    """The ``headers`` of a response, where it has any."""
    if not texts:
        return {}
    return {
        "headers": {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in texts.items()
        }
    }


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]
    parameters += [
        {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.request_headers.items()
    ]
    if endpoint.query is not None:
        schema = endpoint.query.model_json_schema()
        shared = schema.get("$defs", {})
        for name, field in schema["properties"].items():
            parameters.append(
                {
                    "name": name,
                    "in": "query",
                    "required": name in schema.get("required", ()),
                    "schema": _inlined(field, shared),
                }
            )
    return parameters


def _inlined(schema: Any, shared: dict[str, Any]) -> Any:
    """The schema of a parameter with what it refers to put in place."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return shared[schema["$ref"].rsplit("/", 1)[-1]]
        return {name: _inlined(value, shared) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_inlined(entry, shared) for entry in schema]
    return schema


def _refusals(endpoint: Endpoint) -> dict[str, Any]:
    by_status: dict[int, list[Code]] = defaultdict(list)
    for code in sorted(endpoint.all_codes()):
        by_status[STATUS[code]].append(code)
    return {
        str(status): {
            "description": "Refused: " + ", ".join(codes),
            "content": {
                MEDIA_TYPE: {
                    "schema": {
                        "allOf": [
                            _schema(Problem),
                            {"properties": {"code": {"enum": [str(code) for code in codes]}}},
                        ]
                    }
                }
            },
            **_headers(_HEADERS_OF_STATUS.get(status, {})),
        }
        for status, codes in sorted(by_status.items())
    }


def _schema(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}
