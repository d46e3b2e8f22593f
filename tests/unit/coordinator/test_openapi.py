"""The OpenAPI document names every route and every code that the routes use."""

import re
from dataclasses import fields
from typing import Any, cast

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route

from tenure.contract.codes import Code
from tenure.coordinator.api.endpoint import Endpoint, Entrance
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.openapi import PAGES, document
from tenure.coordinator.api.routes import Handlers, application, endpoints
from tenure.coordinator.api.statuses import STATUS


class Anything:
    """Has every handler."""

    def __getattr__(self, name: str) -> Any:
        async def handler(_: Any) -> Any:
            raise AssertionError(name)

        return handler


@pytest.fixture(scope="module")
def handlers() -> Handlers:
    anything = cast(Any, Anything())
    return Handlers(*[anything] * len(fields(Handlers)))


@pytest.fixture(scope="module")
def table(handlers: Handlers) -> tuple[Endpoint, ...]:
    gate = Gate(max_requests=1, max_bytes=1)
    return endpoints(handlers, application_gate=gate, executor_gate=gate)


@pytest.fixture(scope="module")
def described(table: tuple[Endpoint, ...]) -> dict[str, Any]:
    return document(table)


def operation(described: dict[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = described["paths"][endpoint.path][endpoint.method.lower()]
    return found


def test_the_document_is_valid_openapi(described: dict[str, Any]) -> None:
    assert list(OpenAPIV31SpecValidator(described).iter_errors()) == []


def test_every_route_that_is_served_is_described_once(
    handlers: Handlers, table: tuple[Endpoint, ...], described: dict[str, Any]
) -> None:
    entrance = Entrance(
        identities=cast(Any, None),
        limits=cast(Any, None),
        check_usable=lambda: None,
        check_writable=lambda: None,
        observer=cast(Any, None),
    )
    served = [
        (method, route.path)
        for route in application(handlers, entrance, table).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    ]
    operations = {
        (method.upper(), path): operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }
    assert sorted(served) == sorted(operations)
    names = [operation["operationId"] for operation in operations.values()]
    assert len(set(names)) == len(names)


def test_only_pages_need_no_token(described: dict[str, Any]) -> None:
    assert described["security"] == [{"token": []}]
    open_to_all = {
        path
        for path, methods in described["paths"].items()
        for operation in methods.values()
        if operation.get("security") == []
    }
    assert open_to_all == {page.path for page in PAGES}


def test_every_code_is_named_under_its_status(
    table: tuple[Endpoint, ...], described: dict[str, Any]
) -> None:
    for endpoint in table:
        responses = operation(described, endpoint)["responses"]
        for code in endpoint.all_codes():
            schema = responses[str(STATUS[code])]["content"]["application/problem+json"]["schema"]
            assert code in schema["allOf"][1]["properties"]["code"]["enum"]


def test_every_code_is_used_by_some_route(table: tuple[Endpoint, ...]) -> None:
    assert set().union(*(endpoint.all_codes() for endpoint in table)) == set(Code)


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    references = set(re.findall(r"'\$ref': '#/components/schemas/([^']+)'", str(described)))
    assert references
    assert references <= set(schemas)


def test_parameters_are_described(table: tuple[Endpoint, ...], described: dict[str, Any]) -> None:
    for endpoint in table:
        parameters = operation(described, endpoint)["parameters"]
        in_path = {entry["name"] for entry in parameters if entry["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", endpoint.path))
        in_query = {entry["name"] for entry in parameters if entry["in"] == "query"}
        assert in_query == set(endpoint.query.model_fields if endpoint.query else ())


def test_routes_with_a_body_that_wait_for_the_lanes_pass_a_gate(
    table: tuple[Endpoint, ...],
) -> None:
    for endpoint in table:
        assert (endpoint.gate is not None) is (endpoint.method != "GET"), endpoint.path
