"""Bodies are read strictly, item by item where there are many."""

import json
from typing import Any
from uuid import uuid4

import pytest
from starlette.requests import Request

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.contract.reports import Reports
from tenure.contract.tasks import TaskBatch, TaskSubmission
from tenure.coordinator.api.applications import TaskListQuery, WaitQuery
from tenure.coordinator.api.reading import Query, body_limit, read_items, read_model, read_query


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_a_good_body_becomes_its_model() -> None:
    body = encoded({"type": "a", "input": {"b": [None, 1.5]}, "deadline": "2100-01-01T00:00:00Z"})
    request = read_model(body, TaskSubmission)
    assert request.input == {"b": [None, 1.5]}
    assert request.deadline is not None


def queried(text: str) -> Request:
    return Request({"type": "http", "query_string": text.encode(), "headers": []})


@pytest.mark.parametrize(
    ("model", "query"),
    [
        (TaskListQuery, "limit=1_0"),
        (TaskListQuery, "limit=%2010"),
        (TaskListQuery, "limit=10%0A"),
        (TaskListQuery, "limit=%D9%A1"),  # a digit, but not one of ours
        (TaskListQuery, "limit="),
        (WaitQuery, "wait=1_0.5"),
        (WaitQuery, "wait=inf"),
        (WaitQuery, "wait=nan"),
    ],
)
def test_a_number_in_a_query_is_written_as_one(model: type[Query], query: str) -> None:
    with pytest.raises(TenureError, match="no number") as caught:
        read_query(queried(query), model)
    assert caught.value.code == Code.INVALID_FIELD


def test_numbers_in_a_query_are_read() -> None:
    listed = read_query(queried("limit=10&state=open"), TaskListQuery)
    assert (listed.limit, read_query(queried("wait=2.5"), WaitQuery).wait) == (10, 2.5)


def test_every_wrong_field_is_named() -> None:
    body = encoded({"type": "A", "priority": 1.5, "resources": {"cpu_millis": -1}, "extra": 0})
    with pytest.raises(TenureError) as caught:
        read_model(body, TaskSubmission)
    assert caught.value.code == Code.INVALID_FIELD
    fields = {entry["field"] for entry in caught.value.errors}  # type: ignore[attr-defined] # of InvalidRequest
    assert fields == {"type", "priority", "resources.cpu_millis", "extra"}


def test_one_bad_item_leaves_the_others() -> None:
    tasks = [{"type": "a"}, {"type": "B"}, {"type": "c", "input": {"x": None}}, 5]
    items = read_items(encoded({"tasks": tasks}), TaskBatch, "tasks")
    assert items.batch is not None
    assert [task.type for task in items.batch.tasks] == ["a", "c"]
    assert items.batch.tasks[1].input == {"x": None}
    assert set(items.faults) == {1, 3}
    assert items.faults[1].errors[0]["field"] == "type"
    assert items.raw == {1: {"type": "B"}, 3: 5}


def test_a_batch_of_bad_items_only_is_no_batch() -> None:
    items = read_items(encoded({"tasks": [1, 2]}), TaskBatch, "tasks")
    assert items.batch is None
    assert set(items.faults) == {0, 1}


def test_a_fault_outside_the_items_refuses_the_batch() -> None:
    report = {
        "kind": "take",
        "report_id": str(uuid4()),
        "task_id": str(uuid4()),
        "attempt_id": str(uuid4()),
        "fencing_token": 2**32,
    }
    for wrong in ({"incarnation": "none"}, {}):
        body = encoded({"reports": [report, {"kind": "dance"}]} | wrong)
        with pytest.raises(TenureError) as caught:
            read_items(body, Reports, "reports")
        assert caught.value.code == Code.INVALID_FIELD
        assert "incarnation" in caught.value.message


def test_a_report_of_unknown_kind_is_one_bad_item() -> None:
    body = encoded({"incarnation": str(uuid4()), "reports": [{"kind": "dance"}]})
    items = read_items(body, Reports, "reports")
    assert set(items.faults) == {0}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.MALFORMED_JSON),
        (b'{"type":"a","input":NaN}x', Code.MALFORMED_JSON),
        (b'{"type":"a","priority":NaN}', Code.MALFORMED_JSON),
        (b'{"type":"a","input":"\\udc00"}', Code.INVALID_CHARACTER),
        (b'"a"', Code.INVALID_FIELD),
    ],
)
def test_broken_json_is_told_from_json_that_does_not_fit(body: bytes, code: Code) -> None:
    with pytest.raises(TenureError) as caught:
        read_model(body, TaskSubmission)
    assert caught.value.code == code


def test_a_payload_at_its_limit_fits_when_it_is_escaped() -> None:
    limit = 3000
    text = "é" * (limit // 2)
    assert len(json.dumps({"type": "a", "input": text})) <= body_limit(limit)
