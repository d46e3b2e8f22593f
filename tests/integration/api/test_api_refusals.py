"""Bad input over HTTP: each case has its own code, says what to do, and changes nothing."""

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import httpx2
import pytest

from tenure.contract.codes import Code
from tenure.coordinator.api.statuses import STATUS
from tests.support.coordinator import Fleet, fleet, registration
from tests.support.isolation import BrokerSpace, DatabaseServer

PAYLOAD_LIMIT = 4096
BATCH_LIMIT = 2**18
NOBODY = "0198c0de-0000-7000-8000-000000000000"
TABLES = (
    "tasks", "task_inputs", "attempts", "reservations", "nodes", "task_types", "receipts",
    "commands", "renewals", "log",
)  # fmt: skip


@pytest.fixture(scope="module")
async def api(
    database_server: DatabaseServer, database_template: str, broker_server: Any
) -> AsyncIterator[tuple[Fleet, asyncpg.Connection]]:
    """One coordinator for all cases: a case that changed something is found by the next look."""
    space = BrokerSpace(url=broker_server.url, name_prefix=f"refusals-{uuid4().hex[:8]}")
    async with (
        database_server.fresh(template=database_template) as database,
        fleet(
            database,
            space,
            payload_limit_bytes=PAYLOAD_LIMIT,
            batch_limit_bytes=BATCH_LIMIT,
            node_silence_seconds=3600,  # the node sends no heartbeats, and no review shall begin
        ) as found,
    ):
        await found.register()
        connection = await asyncpg.connect(database.owner_url)
        yield found, connection
        await connection.close()


async def everything(owner: asyncpg.Connection) -> dict[str, list[asyncpg.Record]]:
    """All state but the time a node was last heard of."""
    return {
        table: await owner.fetch(f"select * from tenure.{table} t order by t::text")
        for table in TABLES
    }


def refused(reply: httpx2.Response, code: Code) -> dict[str, Any]:
    """The problem details, which are complete."""
    assert reply.headers["content-type"] == "application/problem+json", reply.text
    problem: dict[str, Any] = reply.json()
    assert problem["code"] == code, problem
    assert problem["status"] == reply.status_code == STATUS[code]
    assert problem["type"] == f"urn:tenure:problem:{code}"
    assert problem["detail"]
    assert problem["next_step"]
    return problem


def submission(**values: Any) -> bytes:
    return json.dumps({"type": "sha256"} | values).encode()


SUBMISSIONS: dict[str, tuple[bytes, Code]] = {
    "an unknown task type": (submission(type="unheard-of"), Code.UNKNOWN_TASK_TYPE),
    "no JSON": (b"type=sha256", Code.MALFORMED_JSON),
    "cut JSON": (submission()[:-1], Code.MALFORMED_JSON),
    "nothing": (b"", Code.MALFORMED_JSON),
    "two values": (submission() * 2, Code.MALFORMED_JSON),
    "no UTF-8": (b'{"type":"sha256","input":"\xff"}', Code.MALFORMED_JSON),
    "NaN": (submission(input=float("nan")), Code.MALFORMED_JSON),
    "NaN in a number field": (submission(priority=float("nan")), Code.MALFORMED_JSON),
    "Infinity": (submission(input=[float("-inf")]), Code.MALFORMED_JSON),
    "a number beyond all": (b'{"type":"sha256","input":1e400}', Code.MALFORMED_JSON),
    "too deep": (submission(input=json.loads("[" * 70 + "]" * 70)), Code.MALFORMED_JSON),
    "deeper than parsers go": (
        b'{"type":"sha256","input":' + b"[" * 5000 + b"]" * 5000 + b"}",
        Code.MALFORMED_JSON,
    ),
    "a zero character": (submission(input={"a": ["b\u0000"]}), Code.INVALID_CHARACTER),
    "a zero character in a name": (submission(input={"a\u0000": 1}), Code.INVALID_CHARACTER),
    "a lone surrogate": (b'{"type":"sha256","input":"\\ud800"}', Code.INVALID_CHARACTER),
    "a zero character in the key": (submission(idempotency_key="\u0000"), Code.INVALID_CHARACTER),
    "an oversize input": (submission(input="x" * PAYLOAD_LIMIT), Code.PAYLOAD_TOO_LARGE),
    "an oversize body": (submission(input="x" * 20 * PAYLOAD_LIMIT), Code.PAYLOAD_TOO_LARGE),
    "an array": (b"[]", Code.INVALID_FIELD),
    "no type": (b"{}", Code.INVALID_FIELD),
    "a type with a space": (submission(type="sha 256"), Code.INVALID_FIELD),
    "an unknown field": (submission(prority=1), Code.INVALID_FIELD),
    "a number as text": (submission(priority="1"), Code.INVALID_FIELD),
    "a truth as number": (submission(priority=True), Code.INVALID_FIELD),
    "a priority out of range": (submission(priority=101), Code.INVALID_FIELD),
    "negative resources": (submission(resources={"cpu_millis": -1}), Code.INVALID_FIELD),
    "negative memory": (submission(resources={"memory_bytes": -1}), Code.INVALID_FIELD),
    "an instant without zone": (submission(deadline="2100-01-01T00:00:00"), Code.INVALID_FIELD),
    "an instant as number": (submission(deadline=4102444800), Code.INVALID_FIELD),
    "an instant after all": (submission(not_before="9999-12-31T00:00:00Z"), Code.INVALID_FIELD),
    "an instant before all": (submission(not_before="0001-01-01T00:00:00Z"), Code.INVALID_FIELD),
    "an instant before the first": (
        submission(not_before="0001-01-01T00:00:00+14:00"),
        Code.INVALID_FIELD,
    ),
    "an empty key": (submission(idempotency_key=""), Code.INVALID_FIELD),
    "a long key": (submission(idempotency_key="k" * 256), Code.INVALID_FIELD),
    "a start after the end": (
        submission(not_before="2101-01-01T00:00:00Z", deadline="2100-01-01T00:00:00Z"),
        Code.INVALID_FIELD,
    ),
    "a deadline in the past": (
        submission(deadline="2020-01-01T00:00:00Z"),
        Code.DEADLINE_IN_THE_PAST,
    ),
}


@pytest.mark.parametrize("case", SUBMISSIONS)
async def test_a_bad_submission_is_refused_and_changes_nothing(
    api: tuple[Fleet, asyncpg.Connection], case: str
) -> None:
    found, owner = api
    body, code = SUBMISSIONS[case]
    before = await everything(owner)
    problem = refused(await found.application.post("/v1/tasks", body), code)
    if code is Code.INVALID_FIELD and problem["errors"]:
        assert all(entry["message"] for entry in problem["errors"])
    assert await everything(owner) == before


async def test_an_oversize_body_without_a_length_is_refused(
    api: tuple[Fleet, asyncpg.Connection],
) -> None:
    found, owner = api

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"type":"sha256","input":"'
        for _ in range(64):
            yield b"x" * 1024
        yield b'"}'

    before = await everything(owner)
    reply = await found.application.http.post("/v1/tasks", content=pieces())
    refused(reply, Code.PAYLOAD_TOO_LARGE)
    assert await everything(owner) == before


async def test_a_key_used_for_another_body_is_refused(
    api: tuple[Fleet, asyncpg.Connection],
) -> None:
    found, owner = api
    headers = {"Idempotency-Key": f"key-{uuid4()}"}
    later = "2100-01-01T00:00:00Z"  # nobody allocates it while the other tests look
    content = submission(input=1, not_before=later)
    first = await found.application.post("/v1/tasks", content, headers=headers)
    assert first.status_code == 201
    before = await everything(owner)
    for changes in ({"input": 2}, {"input": 1, "priority": 1}):
        other = submission(not_before=later, **changes)
        reply = await found.application.post("/v1/tasks", other, headers=headers)
        refused(reply, Code.IDEMPOTENCY_CONFLICT)
    assert await everything(owner) == before


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([("Idempotency-Key", "a"), ("Idempotency-Key", "b")], id="twice"),
        pytest.param([("Idempotency-Key", "")], id="empty"),
        pytest.param([("Idempotency-Key", "k" * 256)], id="long"),
        pytest.param([("Idempotency-Key", b"\xff")], id="no UTF-8"),
        pytest.param([("Idempotency-Key", "other than in the body")], id="differs"),
    ],
)
async def test_a_bad_key_in_the_header_is_refused(
    api: tuple[Fleet, asyncpg.Connection], headers: list[tuple[str, str | bytes]]
) -> None:
    found, owner = api
    before = await everything(owner)
    reply = await found.application.http.post(
        "/v1/tasks",
        content=submission(idempotency_key="in the body"),
        headers=[(name.encode(), value.encode() if isinstance(value, str) else value)
                 for name, value in headers],
    )  # fmt: skip
    refused(reply, Code.INVALID_FIELD)
    assert await everything(owner) == before


@pytest.mark.parametrize("token", [None, "", "Basic abc", "Bearer", "Bearer not-a-known-token"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/tasks"), ("GET", "/v1/tasks"), ("POST", "/v1/nodes"), ("GET", "/v1/outbox")],
)
async def test_a_missing_or_wrong_token_is_refused(
    api: tuple[Fleet, asyncpg.Connection], token: str | None, method: str, path: str
) -> None:
    found, _ = api
    headers = {} if token is None else {"Authorization": token}
    reply = await found.nobody.http.request(method, path, headers=headers)
    problem = refused(reply, Code.UNAUTHENTICATED)
    assert reply.headers["www-authenticate"].startswith("Bearer")
    assert "not-a-known-token" not in problem["detail"]


ROLES_REFUSED = [
    ("fleet", "POST", "/v1/tasks"),
    ("eyes", "POST", "/v1/tasks"),
    ("eyes", "POST", "/v1/tasks/batch"),
    ("fleet", "GET", "/v1/tasks"),
    ("fleet", "GET", f"/v1/tasks/{NOBODY}"),
    ("fleet", "GET", f"/v1/tasks/{NOBODY}/result"),
    ("eyes", "POST", f"/v1/tasks/{NOBODY}/cancel"),
    ("fleet", "POST", f"/v1/tasks/{NOBODY}/cancel"),
    ("fleet", "GET", "/v1/nodes"),
    ("shop", "GET", "/v1/outbox"),
    ("fleet", "GET", "/v1/outbox"),
    ("shop", "POST", "/v1/nodes"),
    ("ops", "POST", "/v1/nodes"),
    ("shop", "POST", "/v1/nodes/node-1/reports"),
    ("ops", "POST", "/v1/nodes/node-1/renewals"),
    ("eyes", "GET", "/v1/nodes/node-1/assignments"),
    ("shop", "POST", "/v1/nodes/node-1/drain"),
    ("eyes", "POST", "/v1/nodes/node-1/drain"),
]


@pytest.mark.parametrize(("who", "method", "path"), ROLES_REFUSED)
async def test_a_wrong_role_is_refused(
    api: tuple[Fleet, asyncpg.Connection], who: str, method: str, path: str
) -> None:
    found, owner = api
    before = await everything(owner)
    reply = await found.callers[who].http.request(method, path, content=b"{}")
    problem = refused(reply, Code.FORBIDDEN_ROLE)
    assert "needs:" in problem["detail"]
    assert await everything(owner) == before


READS_REFUSED: list[tuple[str, str, Code]] = [
    ("shop", f"/v1/tasks/{NOBODY}", Code.NOT_FOUND),
    ("shop", "/v1/tasks/no-id", Code.NOT_FOUND),
    ("shop", "/v1/tasks/%00", Code.NOT_FOUND),
    ("shop", f"/v1/tasks/{NOBODY}/result", Code.NOT_FOUND),
    ("shop", f"/v1/tasks/{NOBODY}/result?wait=5", Code.NOT_FOUND),
    ("shop", f"/v1/streams/task/{NOBODY}", Code.NOT_FOUND),
    ("shop", f"/v1/streams/attempt/{NOBODY}", Code.NOT_FOUND),
    ("shop", f"/v1/streams/node/{NOBODY}", Code.NOT_FOUND),
    ("shop", "/v1/streams/node/node-1", Code.NOT_FOUND),
    ("shop", f"/v1/streams/lease/{NOBODY}", Code.NOT_FOUND),
    ("shop", "/v1/nothing", Code.NOT_FOUND),
    ("shop", f"/v1/tasks/{NOBODY}/result?wait=31", Code.INVALID_FIELD),
    ("shop", f"/v1/tasks/{NOBODY}/result?wait=-1", Code.INVALID_FIELD),
    ("shop", f"/v1/tasks/{NOBODY}/result?wait=nan", Code.INVALID_FIELD),
    ("shop", f"/v1/tasks/{NOBODY}/result?wait=1&wait=2", Code.INVALID_FIELD),
    ("shop", f"/v1/tasks/{NOBODY}?full=1", Code.INVALID_FIELD),
    ("shop", "/v1/tasks?limit=0", Code.INVALID_FIELD),
    ("shop", "/v1/tasks?limit=501", Code.INVALID_FIELD),
    ("shop", "/v1/tasks?state=asleep", Code.INVALID_FIELD),
    ("shop", "/v1/tasks?status=open", Code.INVALID_FIELD),
    ("shop", "/v1/tasks?type=%00", Code.INVALID_FIELD),
    ("shop", "/v1/tasks?after=yesterday", Code.INVALID_FIELD),
    ("shop", f"/v1/streams/task/{NOBODY}?after=-1", Code.INVALID_FIELD),
    ("shop", f"/v1/streams/task/{NOBODY}?after=99999999999999999999", Code.INVALID_FIELD),
    ("eyes", "/v1/nodes?all=1", Code.INVALID_FIELD),
    ("ops", "/v1/outbox?shard=1", Code.INVALID_FIELD),
    ("fleet", f"/v1/nodes/node-1/assignments?incarnation={NOBODY}", Code.UNKNOWN_NODE),
    ("fleet", f"/v1/nodes/-/assignments?incarnation={NOBODY}", Code.UNKNOWN_NODE),
    ("fleet", "/v1/nodes/node-1/assignments", Code.INVALID_FIELD),
    ("fleet", "/v1/nodes/node-1/assignments?incarnation=1", Code.INVALID_FIELD),
]


@pytest.mark.parametrize(("who", "path", "code"), READS_REFUSED)
async def test_a_bad_read_is_refused(
    api: tuple[Fleet, asyncpg.Connection], who: str, path: str, code: Code
) -> None:
    found, _ = api
    refused(await found.callers[who].get(path), code)


async def test_a_method_that_does_not_exist_is_refused(
    api: tuple[Fleet, asyncpg.Connection],
) -> None:
    found, _ = api
    reply = await found.application.http.delete("/v1/tasks")
    refused(reply, Code.METHOD_NOT_ALLOWED)
    assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


def node_call(path: str, **body: Any) -> tuple[str, bytes]:
    return path, json.dumps(body).encode()


UNKNOWN_REPORT = {
    "kind": "take",
    "report_id": str(uuid4()),
    "task_id": NOBODY,
    "attempt_id": NOBODY,
    "fencing_token": 2**32 + 1,
}
LEASE = {name: UNKNOWN_REPORT[name] for name in ("task_id", "attempt_id", "fencing_token")}
NODE_REFUSALS: dict[str, tuple[tuple[str, bytes], Code]] = {
    "another protocol": (
        node_call("/v1/nodes", protocol_version=2, whatever="new"),
        Code.UNSUPPORTED_PROTOCOL,
    ),
    "no slots": (node_call("/v1/nodes", **registration(slots=0)), Code.INVALID_FIELD),
    "negative resources": (
        node_call("/v1/nodes", **registration(resources={"memory_bytes": -1})),
        Code.INVALID_FIELD,
    ),
    "no task types": (node_call("/v1/nodes", **registration(types=())), Code.INVALID_FIELD),
    "a type twice": (node_call("/v1/nodes", **registration(types=("a", "a"))), Code.INVALID_FIELD),
    "a bad node name": (node_call("/v1/nodes", **registration("no name")), Code.INVALID_FIELD),
    "a zero character": (
        node_call("/v1/nodes", **registration(software="\u0000")),
        Code.INVALID_CHARACTER,
    ),
    "an oversize schema": (
        node_call(
            "/v1/nodes",
            **registration(task_types=[{"name": "a", "input_schema": {"x": "y" * PAYLOAD_LIMIT}}]),
        ),
        Code.PAYLOAD_TOO_LARGE,
    ),
    "renewals of a stranger": (
        node_call("/v1/nodes/node-1/renewals", incarnation=NOBODY),
        Code.UNKNOWN_NODE,
    ),
    "a drain of a stranger": (
        node_call("/v1/nodes/node-1/drain", incarnation=NOBODY),
        Code.UNKNOWN_NODE,
    ),
    "too many leases": (
        node_call("/v1/nodes/node-1/renewals", incarnation=NOBODY, leases=[LEASE] * 1025),
        Code.BATCH_TOO_LARGE,
    ),
    "no reports": (
        node_call("/v1/nodes/node-1/reports", incarnation=NOBODY, reports=[]),
        Code.INVALID_FIELD,
    ),
    "a report without an id": (
        node_call("/v1/nodes/node-1/reports", incarnation=NOBODY, reports=[{"kind": "take"}]),
        Code.INVALID_FIELD,
    ),
    "reports without an incarnation": (
        node_call("/v1/nodes/node-1/reports", reports=[UNKNOWN_REPORT]),
        Code.INVALID_FIELD,
    ),
    "too many reports": (
        node_call("/v1/nodes/node-1/reports", incarnation=NOBODY, reports=[UNKNOWN_REPORT] * 257),
        Code.BATCH_TOO_LARGE,
    ),
    "an oversize batch": (
        ("/v1/nodes/node-1/reports", b" " * (BATCH_LIMIT + 1)),
        Code.BATCH_TOO_LARGE,
    ),
}


@pytest.mark.parametrize("case", NODE_REFUSALS)
async def test_a_bad_request_of_an_executor_is_refused(
    api: tuple[Fleet, asyncpg.Connection], case: str
) -> None:
    found, owner = api
    (path, body), code = NODE_REFUSALS[case]
    before = await everything(owner)
    problem = refused(await found.executor.post(path, body), code)
    if code is Code.UNSUPPORTED_PROTOCOL:
        assert "1 to 1" in problem["detail"]
    assert await everything(owner) == before


async def test_a_report_about_nothing_is_refused_in_its_place(
    api: tuple[Fleet, asyncpg.Connection],
) -> None:
    found, owner = api
    before = await everything(owner)
    reply = await found.executor.post(
        "/v1/nodes/node-1/reports", {"incarnation": NOBODY, "reports": [UNKNOWN_REPORT]}
    )
    assert reply.status_code == 200
    (entry,) = reply.json()["replies"]
    assert (entry["outcome"], entry["code"]) == ("refused", "unknown_attempt")
    assert await everything(owner) == before


async def test_too_many_tasks_in_a_batch_are_refused(
    api: tuple[Fleet, asyncpg.Connection],
) -> None:
    found, _ = api
    tasks = b'{"tasks":[' + b'{"type":"sha256"},' * 1000 + b'{"type":"sha256"}]}'
    refused(await found.application.post("/v1/tasks/batch", tasks), Code.BATCH_TOO_LARGE)
    refused(await found.application.post("/v1/tasks/batch", {"tasks": []}), Code.INVALID_FIELD)


async def test_a_cancellation_takes_no_body(api: tuple[Fleet, asyncpg.Connection]) -> None:
    found, _ = api
    path = f"/v1/tasks/{NOBODY}/cancel"
    refused(await found.application.post(path, {"force": True}), Code.INVALID_FIELD)
    refused(await found.application.post(path), Code.NOT_FOUND)
    refused(await found.application.post("/v1/tasks/x/cancel"), Code.NOT_FOUND)
