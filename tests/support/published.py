"""Real answers and messages held against the published documents (OpenAPI, AsyncAPI)."""

import json
import re
from functools import cache
from typing import Any

import httpx2
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from tests.support.asyncapi import message_name
from tests.support.repository import package

SCHEMAS = package("contract") / "schemas"


@cache
def published(name: str) -> Any:
    """A published document, as the repository holds it."""
    return json.loads((SCHEMAS / name).read_text(encoding="utf-8"))


@cache
def validator(name: str, pointer: str) -> Draft202012Validator:
    """What judges by the schema at ``pointer`` (``/components/…``) of a published document."""
    registry: Registry[Any] = Registry()
    registry = registry.with_resource(f"urn:{name}", DRAFT202012.create_resource(published(name)))
    return Draft202012Validator(
        {"$ref": f"urn:{name}#{pointer}"}, registry=registry, format_checker=FormatChecker()
    )


def escaped(*names: str) -> str:
    """A JSON pointer."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """Patterns of all paths; those without parameters first, as the router has it."""
    templates = sorted(published("openapi.json")["paths"], key=lambda path: path.count("{"))
    return [
        (re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template))), template)
        for template in templates
    ]


def _template(method: str, path: str) -> str | None:
    """The described path that a request goes to, if any."""
    paths = published("openapi.json")["paths"]
    for pattern, template in _patterns():
        if pattern.fullmatch(path) and method.lower() in paths[template]:
            return template
    return None


def check_answer(method: str, path: str, answer: httpx2.Response) -> None:
    """Whether OpenAPI has this answer: its status, media type, headers and body.

    What no path has is refused with a problem. Raises AssertionError and ValidationError.
    """
    media_type = answer.headers["content-type"].partition(";")[0]
    template = _template(method, path)
    if template is None:
        assert answer.status_code in (404, 405), f"{method} {path} is served and not described"
        assert media_type == "application/problem+json"
        validator("openapi.json", "/components/schemas/Problem").validate(answer.json())
        return
    responses = published("openapi.json")["paths"][template][method.lower()]["responses"]
    status = str(answer.status_code)
    assert status in responses, f"{method} {template} answers {status}, which is not described"
    assert media_type in responses[status]["content"], f"{method} {template}: {media_type}"
    missing = [name for name in responses[status].get("headers", {}) if name not in answer.headers]
    assert missing == [], f"{method} {template} answers {status} without {missing}"
    if media_type.endswith("json"):
        pointer = escaped(
            *("paths", template, method.lower(), "responses", status, "content", media_type),
            "schema",
        )
        validator("openapi.json", pointer).validate(answer.json())


async def check_response(answer: httpx2.Response) -> None:
    """``check_answer`` as an event hook of an HTTP client."""
    await answer.aread()
    check_answer(answer.request.method, answer.request.url.path, answer)


def check_message(body: bytes, channel: str) -> None:
    """Whether AsyncAPI has this message on this channel. Raises ValidationError, AssertionError."""
    name = message_name(body)
    assert name in published("asyncapi.json")["channels"][channel]["messages"], name
    pointer = escaped("components", "messages", name, "payload")
    validator("asyncapi.json", pointer).validate(json.loads(body))
