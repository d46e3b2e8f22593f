"""Requests become commands that may be repeated safely; outcomes become replies."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.contract.ids import (
    CommandId,
    IncarnationId,
    NodeId,
    ReportId,
    TaskId,
    TenantId,
)
from tenure.contract.reports import Deliver, Fail, Registration, TaskTypeDeclaration
from tenure.contract.states import AttemptState, TaskState
from tenure.contract.tasks import TaskSubmission
from tenure.coordinator.api import wire
from tenure.coordinator.core import commands, decisions
from tenure.coordinator.identities import Identity, Role
from tenure.coordinator.submission import derived_id
from tenure.coordinator.submission import submission as make

SHOP = Identity("shop", TenantId("acme"), Role.APPLICATION)
FLEET = Identity("fleet", TenantId("acme"), Role.EXECUTOR)
UUID = "0198c0de-0000-7000-8000-000000000000"
NOW = 1_800_000_000_000_000


def submission(key: str | None = "k", identity: Identity = SHOP, **values: Any) -> commands.Submit:
    return make(
        TaskSubmission.model_validate({"type": "a"} | values),
        task_id=TaskId(UUID),
        fallback_id=CommandId("fallback"),
        key=key,
        identity=identity,
        payload_limit_bytes=100,
    )


def test_the_same_key_gives_the_same_command_within_a_tenant() -> None:
    other = Identity("shop", TenantId("other"), Role.APPLICATION)
    assert submission().command_id == submission().command_id
    assert submission(identity=other).command_id != submission().command_id
    assert submission("l").command_id != submission().command_id
    assert submission(None).command_id == "fallback"
    assert len(submission().command_id) == 36


def test_tenant_and_key_cannot_be_shifted_into_each_other() -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("a-submit", "b"), ('a","submit', "b")]
    ids = {derived_id(TenantId(tenant), "submit", key) for tenant, key in pairs}
    assert len(ids) == len(pairs)


@pytest.mark.parametrize(
    "change",
    [
        {"type": "b"},
        {"input": 1},
        {"priority": 1},
        {"not_before": "2100-01-01T00:00:00Z"},
        {"deadline": "2100-01-01T00:00:00Z"},
        {"resources": {"cpu_millis": 1}},
        {"resources": {}},
    ],
)
def test_whatever_is_meant_changes_the_fingerprint(change: dict[str, Any]) -> None:
    assert submission(**change).fingerprint != submission().fingerprint


def test_what_is_written_otherwise_but_means_the_same_keeps_the_fingerprint() -> None:
    first = submission(input={"a": 1, "b": 2}, deadline="2100-01-01T00:00:00Z")
    second = submission(input={"b": 2, "a": 1}, deadline="2100-01-01T01:00:00+01:00")
    assert first.fingerprint == second.fingerprint


def test_instants_are_exact_microseconds() -> None:
    command = submission(deadline="2026-11-29T17:00:00.123457Z")
    assert command.deadline is not None
    assert wire.moment(command.deadline) == datetime(2026, 11, 29, 17, 0, 0, 123457, tzinfo=UTC)


def test_an_input_over_the_limit_is_refused_by_its_stored_size() -> None:
    submission(input="x" * 98)
    with pytest.raises(TenureError) as caught:
        submission(input="x" * 99)
    assert caught.value.code == Code.PAYLOAD_TOO_LARGE


def report(request: Any, node: str = "n", incarnation: str = UUID) -> commands.AttemptCommand:
    return wire.report(
        request,
        node_id=NodeId(node),
        incarnation=IncarnationId(incarnation),
        identity=FLEET,
        payload_limit_bytes=100,
    )


def about(**values: Any) -> dict[str, Any]:
    return {
        "report_id": ReportId(UUID),
        "task_id": UUID,
        "attempt_id": UUID,
        "fencing_token": 2**32 + 1,
    } | values


@pytest.mark.requirement("LATE-04")
def test_a_report_is_known_by_its_id_and_all_its_content() -> None:
    first = report(Deliver(**about(output={"a": 1})))
    assert first.command_id == derived_id(FLEET.tenant, "report", UUID)
    for other in (
        report(Deliver(**about(output={"a": 2}))),
        report(Deliver(**about(output={"a": 1}, fencing_token=2**32 + 2))),
        report(Fail(**about(reason="handler_failed"))),
        report(Deliver(**about(output={"a": 1})), node="m"),
        report(Deliver(**about(output={"a": 1})), incarnation=UUID[:-1] + "1"),
    ):
        assert other.command_id == first.command_id
        assert other.fingerprint != first.fingerprint


def test_equal_outputs_have_one_digest() -> None:
    first, second = (report(Deliver(**about(output={"a": [1, None]}))) for _ in range(2))
    assert isinstance(first, commands.Deliver)
    assert isinstance(second, commands.Deliver)
    assert first.content_digest == second.content_digest
    assert first.output_text == '{"a":[1,null]}'


def test_a_type_declared_twice_is_refused() -> None:
    request = Registration(
        node_id="n",
        incarnation=UUID,
        protocol_version=1,
        software="tests",
        slots=1,
        task_types=(TaskTypeDeclaration(name="a"), TaskTypeDeclaration(name="a")),
    )
    with pytest.raises(TenureError, match="twice"):
        wire.registration(request, queue="q", identity=FLEET, schema_limit_bytes=100)


def outcome(**values: Any) -> decisions.Outcome:
    return decisions.Outcome(NOW, NOW - 1_000_000, **values)


@pytest.mark.requirement("LEASE-09")
def test_what_remains_is_counted_at_the_moment_of_the_answer() -> None:
    reply = decisions.Reply(
        "applied", attempt_state=AttemptState.RUNNING, expires_at=NOW + 2_500_000
    )
    answer = wire.report_reply(UUID, outcome(reply=reply, replayed=True, input_text='{"a":null}'))
    assert answer.remaining_seconds == 2.5
    assert answer.expires_at == wire.moment(NOW) + timedelta(seconds=2.5)
    assert answer.input == {"a": None}
    over = wire.report_reply(UUID, outcome(reply=decisions.Reply("applied", expires_at=NOW - 1)))
    assert over.remaining_seconds == 0


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.STALE_TOKEN, "refused"),
        (Code.INTERNAL_REFUSED, "refused"),
        (Code.AUTHORITY_UNCONFIRMED, "retry"),
        (Code.UNAVAILABLE, "retry"),
        (Code.OVERLOADED, "retry"),
    ],
)
def test_only_what_may_be_repeated_says_so(code: Code, expected: str) -> None:
    refused = outcome(refused=decisions.Refused(code, "no"))
    assert wire.report_reply(UUID, refused).outcome == expected
    assert wire.renewal_reply(UUID, refused).outcome == expected


@pytest.mark.requirement("LATE-02")
def test_evidence_is_recorded_with_the_reason() -> None:
    reply = decisions.Reply(
        "recorded", code=Code.LEASE_EXPIRED, receipt_id=UUID, state_version=4, generation=2
    )
    answer = wire.report_reply(UUID, outcome(reply=reply))
    assert (answer.outcome, answer.code) == ("recorded", Code.LEASE_EXPIRED)
    assert answer.admitted_at == wire.moment(NOW - 1_000_000)
    assert (answer.state_version, answer.generation) == (4, 2)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (decisions.Reply("applied", task_state=TaskState.CANCELLED), "cancelled"),
        (decisions.Reply("applied", task_state=TaskState.OPEN), "requested"),
        (decisions.Reply("ended", task_state=TaskState.CANCELLED), "already_ended"),
        (decisions.Reply("ended", task_state=TaskState.DELIVERED), "already_ended"),
    ],
)
def test_a_cancellation_says_what_became_of_it(reply: decisions.Reply, expected: str) -> None:
    assert wire.cancel_reply(TaskId(UUID), outcome(reply=reply)).outcome == expected
