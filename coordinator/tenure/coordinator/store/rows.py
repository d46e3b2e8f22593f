"""Records of the driver -> rows of the core. Instants become integer microseconds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from asyncpg import Record
from pydantic_core import from_json, to_json

from tenure.contract.ids import (
    AttemptId,
    CommandId,
    FencingToken,
    IncarnationId,
    LeaseId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import (
    AttemptState,
    Effects,
    LimitScope,
    Match,
    NodeState,
    PauseScope,
    TaskState,
    TenantState,
)
from tenure.coordinator.core.decisions import Reply
from tenure.coordinator.core.rows import (
    AttemptRow,
    IncarnationRow,
    LimitRow,
    NodeFacts,
    PauseRow,
    ProfileRow,
    ReceiptRow,
    Requirements,
    ResourceAmounts,
    RunProfile,
    TaskRow,
    TaskTypeRow,
    TenantRow,
)
from tenure.coordinator.core.snapshot import StoredCommand

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_microseconds(instant: datetime) -> int:
    """Microseconds since 1970 of an aware datetime."""
    return (instant - _EPOCH) // _MICROSECOND


def to_datetime(microseconds: int) -> datetime:
    """The instant, in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def optional_microseconds(instant: datetime | None) -> int | None:
    """As ``to_microseconds``; None stays None."""
    return None if instant is None else to_microseconds(instant)


def optional_datetime(microseconds: int | None) -> datetime | None:
    """As ``to_datetime``; None stays None."""
    return None if microseconds is None else to_datetime(microseconds)


def optional_task_id(value: UUID | None) -> TaskId | None:
    """The id of a task; None stays None."""
    return None if value is None else TaskId(str(value))


def optional_incarnation(value: UUID | None) -> IncarnationId | None:
    """The id of an incarnation; None stays None."""
    return None if value is None else IncarnationId(str(value))


def task_row(record: Record) -> TaskRow | None:
    """The task of a loaded record, if there was one."""
    if record["task_id"] is None:
        return None
    attempt_id = record["current_attempt_id"]
    return TaskRow(
        task_id=TaskId(str(record["task_id"])),
        tenant=TenantId(record["tenant"]),
        type=record["type"],
        state=TaskState(record["state"]),
        version=record["version"],
        sequence=record["sequence"],
        generation=record["generation"],
        current_attempt_id=None if attempt_id is None else AttemptId(str(attempt_id)),
        failures=record["failures"],
        losses=record["losses"],
        not_before=optional_microseconds(record["not_before"]),
        deadline=optional_microseconds(record["deadline"]),
        effects=Effects(record["effects"]),
        max_attempts=record["max_attempts"],
        resources=ResourceAmounts(record["cpu_millis"], record["memory_bytes"]),
        cancel_requested_at=optional_microseconds(record["cancel_requested_at"]),
        cancel_delivered_at=optional_microseconds(record["cancel_delivered_at"]),
        rejected_by=tuple(IncarnationId(str(node)) for node in record["rejected_by"]),
        decided_at=to_microseconds(record["decided_at"]),
        concurrency_key=record["concurrency_key"],
        traceparent=record["traceparent"],
    )


def judged_task_row(record: Record) -> TaskRow | None:
    """As ``task_row``, with the profile that nodes are judged by."""
    task = task_row(record)
    return None if task is None else replace(task, profile=profile_row(record))


def waiting_task_row(record: Record, profile: ProfileRow | None) -> TaskRow:
    """A task that waits, with its place and its profile."""
    task = task_row(record)
    assert task is not None
    return replace(task, profile=profile, queued_as_of=to_microseconds(record["queued_as_of"]))


def profile_row(record: Record) -> ProfileRow | None:
    """The profile of a loaded record, if it is known."""
    if record["match"] is None:
        return None
    locations = record["profile_locations"]
    return ProfileRow(
        digest=record["profile_digest"].hex(),
        type=record["profile_type"],
        effects=Effects(record["profile_effects"]),
        max_attempts=record["profile_max_attempts"],
        resources=ResourceAmounts(record["profile_cpu_millis"], record["profile_memory_bytes"]),
        requirements=Requirements(
            locations=None if locations is None else frozenset(locations),
            networks=frozenset(record["profile_networks"]),
            labels=frozenset(from_json(record["profile_labels"]).items()),
        ),
        match=Match(record["match"]),
        cost_minor=record["cost_minor"],
        operations=tuple(record["operations"]),
        objects=tuple(record["objects"]),
    )


def tenant_row(record: Record) -> TenantRow | None:
    """What is stated about the tenant of a loaded record, if anything is."""
    if record["fact_tenant"] is None:
        return None
    return TenantRow(
        tenant=TenantId(record["fact_tenant"]),
        version=record["tenant_version"],
        authorized=record["tenant_state"] == TenantState.AUTHORIZED,
        weight=record["weight"],
        node_pools=_optional_set(record["node_pools"]),
        locations=_optional_set(record["tenant_locations"]),
        networks=_optional_set(record["tenant_networks"]),
        budget_minor=record["budget_minor"],
        budget_unlimited=record["budget_unlimited"],
        held_minor=record["held_minor"],
        spent_minor=record["spent_minor"],
        pauses=pause_rows(record["pauses"]),
        limits=limit_rows(record["limits"]),
    )


@lru_cache(maxsize=1000)
def limit_rows(text: str | None) -> tuple[LimitRow, ...]:
    """Limits as they are kept with a tenant."""
    if text is None:
        return ()
    return tuple(
        LimitRow(
            scope=LimitScope(fields["scope"]),
            name=fields["name"],
            max_running=fields["max_running"],
            interval=fields["interval"],
            burst=fields["burst"] or 1,
        )
        for fields in from_json(text)
    )


def pause_rows(text: str | None) -> tuple[PauseRow, ...]:
    """Pauses as they are kept with a tenant."""
    if text is None:
        return ()
    return tuple(
        PauseRow(**(fields | {"scope": PauseScope(fields["scope"])})) for fields in from_json(text)
    )


def node_facts(text: str) -> NodeFacts:
    """What counts of what was stated about a node."""
    stated = from_json(text)
    return NodeFacts(
        pool=stated.get("pool"),
        location=stated.get("location"),
        zone=stated.get("zone"),
        networks=_optional_set(stated.get("networks")),
        labels=frozenset(stated.get("labels", {}).items()),
    )


def _optional_set(values: Sequence[str] | None) -> frozenset[str] | None:
    return None if values is None else frozenset(values)


def attempt_row(record: Record) -> AttemptRow | None:
    """The attempt of a loaded record, if there was one."""
    if record["attempt_id"] is None:
        return None
    return AttemptRow(
        attempt_id=AttemptId(str(record["attempt_id"])),
        task_id=TaskId(str(record["attempt_task_id"])),
        tenant=TenantId(record["attempt_tenant"]),
        ordinal=record["ordinal"],
        state=AttemptState(record["attempt_state"]),
        version=record["attempt_version"],
        sequence=record["attempt_sequence"],
        node_id=NodeId(record["node_id"]),
        incarnation=IncarnationId(str(record["incarnation"])),
        lease_id=LeaseId(str(record["lease_id"])),
        fencing_token=FencingToken(record["fencing_token"]),
        policy_version=record["policy_version"],
        lease_microseconds=record["lease_microseconds"],
        expires_at=to_microseconds(record["expires_at"]),
        decided_at=to_microseconds(record["attempt_decided_at"]),
    )


def receipt_row(record: Record) -> ReceiptRow | None:
    """The receipt of a loaded record, if there was one."""
    if record["receipt_id"] is None:
        return None
    return ReceiptRow(
        receipt_id=str(record["receipt_id"]),
        attempt_id=AttemptId(str(record["attempt_id"])),
        admitted=record["admitted"],
        code=record["code"],
        admitted_at=to_microseconds(record["admitted_at"]),
        state_version=record["state_version"],
        generation=record["receipt_generation"],
        content_digest=record["content_digest"],
    )


def incarnation_row(record: Record) -> IncarnationRow | None:
    """The incarnation of a loaded record, if there was one."""
    if record["incarnation"] is None:
        return None
    executable = record["executable_digest"]
    types = record["task_types"]
    return IncarnationRow(
        incarnation=IncarnationId(str(record["incarnation"])),
        tenant=TenantId(record["node_tenant"]),
        node_id=NodeId(record["node_id"]),
        state=NodeState(record["node_state"]),
        version=record["node_version"],
        sequence=record["node_sequence"],
        slots=record["slots"],
        cpu_millis=record["node_cpu_millis"],
        memory_bytes=record["node_memory_bytes"],
        slots_used=record["slots_used"],
        cpu_used=record["cpu_used"],
        memory_used=record["memory_used"],
        task_types=frozenset(types),
        last_seen_at=to_microseconds(record["last_seen_at"]),
        facts=node_facts(record["node_facts"]),
        profiles=tuple(
            RunProfile(type_name, digest.hex(), Effects(effects), concurrency)
            for type_name, digest, effects, concurrency in zip(
                types,
                record["profile_digests"],
                record["type_effects"],
                record["type_concurrency"] or [None] * len(types),
                strict=True,
            )
        ),
        executable_digest=None if executable is None else executable.hex(),
        executable_withdrawn=record["executable_withdrawn"],
        under_review=record["under_review"],
        running={} if record["running_types"] is None else from_json(record["running_types"]),
    )


@dataclass(frozen=True, slots=True)
class IntakeRow:
    """What an application asked for in a transaction of its own. ``input_text`` is JSON."""

    intake_id: int
    tenant: TenantId
    command_id: CommandId
    task_id: TaskId
    type: str
    input_text: str
    priority: int
    not_before: datetime | None
    deadline: datetime | None
    cpu_millis: int | None
    memory_bytes: int | None
    concurrency_key: str | None
    scope_text: str | None
    traceparent: str | None
    enqueued_by: str


def intake_row(record: Record) -> IntakeRow:
    """A waiting row of the intake."""
    return IntakeRow(
        intake_id=record["intake_id"],
        tenant=TenantId(record["tenant"]),
        command_id=CommandId(str(record["command_id"])),
        task_id=TaskId(str(record["task_id"])),
        type=record["type"],
        input_text=record["input"],
        priority=record["priority"],
        not_before=record["not_before"],
        deadline=record["deadline"],
        cpu_millis=record["cpu_millis"],
        memory_bytes=record["memory_bytes"],
        concurrency_key=record["concurrency_key"],
        scope_text=record["scope"],
        traceparent=record["traceparent"],
        enqueued_by=record["enqueued_by"],
    )


def task_type_row(record: Record) -> TaskTypeRow | None:
    """The declaration of a loaded record, if there was one."""
    if record["name"] is None:
        return None
    return TaskTypeRow(
        name=record["name"],
        profile_digest=record["profile_digest"].hex(),
        effects=Effects(record["effects"]),
        max_attempts=record["max_attempts"],
        resources=ResourceAmounts(record["cpu_millis"], record["memory_bytes"]),
    )


def stored_command(record: Record) -> StoredCommand | None:
    """The stored outcome of a loaded record, if the command was seen before."""
    if record["command_id"] is None:
        return None
    return StoredCommand(
        command_id=CommandId(str(record["command_id"])),
        tenant=TenantId(record["command_tenant"]),
        fingerprint=record["fingerprint"],
        reply=reply_from_text(record["reply"]),
        at=to_microseconds(record["command_at"]),
    )


def reply_to_text(reply: Reply) -> str:
    """A reply as it is stored with its command; fields at their default are left out."""
    fields: dict[str, Any] = {
        name: value
        for name in Reply.__slots__
        if (value := getattr(reply, name)) is not None and value is not False
    }
    return to_json(fields).decode()


def reply_from_text(text: str) -> Reply:
    """The reply of ``reply_to_text``."""
    fields: dict[str, Any] = from_json(text)
    if "task_state" in fields:
        fields["task_state"] = TaskState(fields["task_state"])
    if "attempt_state" in fields:
        fields["attempt_state"] = AttemptState(fields["attempt_state"])
    return Reply(**fields)
