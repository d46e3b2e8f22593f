"""The OpenAPI document names every route and every code that the routes use."""

import re
from typing import Any, cast

import pytest

from tenure.contract.codes import Code
from tenure.coordinator.api.endpoint import Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.openapi import document
from tenure.coordinator.api.problems import STATUS
from tenure.coordinator.api.routes import Handlers, endpoints


class Anything:
    """Has every handler."""

    def __getattr__(self, name: str) -> Any:
        async def handler(_: Any) -> Any:
            raise AssertionError(name)

        return handler


@pytest.fixture(scope="module")
def table() -> tuple[Endpoint, ...]:
    anything = cast(Any, Anything())
    gate = Gate(max_requests=1, max_bytes=1)
    return endpoints(
        Handlers(anything, anything, anything, anything, anything, anything),
        application_gate=gate,
        executor_gate=gate,
    )


@pytest.fixture(scope="module")
def described(table: tuple[Endpoint, ...]) -> dict[str, Any]:
    return document(table)


def operation(described: dict[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = described["paths"][endpoint.path][endpoint.method.lower()]
    return found


def test_every_route_is_described_once(
    table: tuple[Endpoint, ...], described: dict[str, Any]
) -> None:
    operations = [
        (method.upper(), path) for path, methods in described["paths"].items() for method in methods
    ]
    assert sorted(operations) == sorted((entry.method, entry.path) for entry in table)
    names = [operation(described, endpoint)["operationId"] for endpoint in table]
    assert len(set(names)) == len(names)


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
        assert (endpoint.gate is not None) is (endpoint.method == "POST"), endpoint.path
