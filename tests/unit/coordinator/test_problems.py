"""Every code has a status, and what ends a request says what to do next."""

import json
from http import HTTPStatus

import pytest

from tenure.contract.codes import Code
from tenure.contract.errors import InvalidPayload, TenureError
from tenure.coordinator.api.problems import (
    MEDIA_TYPE,
    NEXT_STEP,
    problem_of,
    response_of,
)
from tenure.coordinator.api.statuses import RETRYABLE, STATUS
from tenure.coordinator.errors import InvalidRequest, Overloaded, RequestRefused, Unavailable
from tenure.coordinator.store.errors import NotMigrated

ONLY_INSIDE_REPLIES = {
    Code.NOT_CURRENT,
    Code.STALE_TOKEN,
    Code.WRONG_NODE,
    Code.LEASE_EXPIRED,
    Code.WRONG_STATE,
    Code.ALREADY_DELIVERED,
    Code.CANCEL_REQUESTED,
    Code.UNKNOWN_ATTEMPT,
}


def test_every_code_has_a_status_and_a_next_step() -> None:
    assert set(STATUS) == set(Code)
    assert set(NEXT_STEP) == set(Code) - ONLY_INSIDE_REPLIES


def test_what_may_be_repeated_is_answered_503_with_a_time() -> None:
    assert {Code.UNAVAILABLE, Code.OVERLOADED, Code.AUTHORITY_UNCONFIRMED} <= RETRYABLE
    errors: list[TenureError] = [Unavailable("a"), Overloaded("b"), NotMigrated("c")]
    errors += [RequestRefused(code, "d") for code in RETRYABLE]
    for error in errors:
        response = response_of(error)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1


def test_a_problem_is_problem_json_with_its_code() -> None:
    error = InvalidRequest("wrong", errors=[{"field": "a", "message": "b"}] * 50)
    response = response_of(error)
    assert response.headers["content-type"] == MEDIA_TYPE
    body = json.loads(bytes(response.body))
    assert body["code"] == Code.INVALID_FIELD
    assert body["title"] == HTTPStatus.UNPROCESSABLE_ENTITY.phrase  # differs between Pythons
    assert len(body["errors"]) == 20


def test_an_error_of_its_own_keeps_its_next_step() -> None:
    assert problem_of(InvalidPayload("a", next_step="b")).next_step == "b"
    assert problem_of(InvalidPayload("a")).next_step == NEXT_STEP[Code.INVALID_FIELD]


@pytest.mark.parametrize("code", ["database_refused", "no code at all"])
def test_a_code_without_a_status_is_a_fault_of_ours(code: str) -> None:
    assert problem_of(TenureError("a", code=code)).code == Code.INTERNAL_ERROR
