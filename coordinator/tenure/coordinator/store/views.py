"""What the reads of the API give, and how a row becomes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asyncpg import Record
from pydantic_core import from_json

from tenure.contract.codec import decode_event
from tenure.contract.codes import Code
from tenure.contract.ids import IncarnationId, NodeId, TaskId
from tenure.contract.reports import NodeFacts, Resources
from tenure.contract.states import (
    AttemptState,
    NodeState,
    TaskState,
    phase_of,
)
from tenure.contract.tasks import (
    NodeExecutable,
    NodeView,
    TaskResult,
    TimelineEntry,
)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of a task that was enqueued. ``code`` and ``message``: why it was refused."""

    state: str
    code: Code | None
    message: str | None


@dataclass(frozen=True, slots=True)
class ResultAt:
    """A result and the head of the log that it is valid for. ``enqueued``: it is no task so far."""

    result: TaskResult
    head: int
    enqueued: Enqueued | None


@dataclass(frozen=True, slots=True)
class Ended:
    """Tasks that ended or were held. ``position``: all up to there are among them."""

    position: int
    head: int
    task_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownIncarnation:
    """An incarnation as far as the API asks."""

    node_id: NodeId
    incarnation: IncarnationId
    state: NodeState
    queue: str
    under_review: bool


@dataclass(frozen=True, slots=True)
class BulkPage:
    """Tasks that match. ``next``: after which to read on; None: there are no more."""

    task_ids: tuple[TaskId, ...]
    matched: int
    next: str | None
    clock: datetime


def attempt_state(row: Record) -> AttemptState | None:
    return None if row["attempt_state"] is None else AttemptState(row["attempt_state"])


def enqueued(row: Record, state: str) -> Enqueued:
    return Enqueued(state, None if row["code"] is None else Code(row["code"]), row["message"])


def summary(row: Record) -> dict[str, Any]:
    """The fields of TaskSummary."""
    state = TaskState(row["state"])
    return {
        "task_id": row["task_id"],
        "type": row["type"],
        "state": state,
        "phase": phase_of(state, attempt_state(row)),
        "reason": row["reason"],
        "priority": row["priority"],
        "created_at": row["created_at"],
        "not_before": row["not_before"],
        "deadline": row["deadline"],
        "attempts": row["generation"],
        "node_id": row["node_id"],
    }


def timeline_entry(body: bytes) -> TimelineEntry:
    event = decode_event(body)
    return TimelineEntry(
        recorded_at=event.recorded_at,
        entity_type=event.entity_type,
        entity_id=event.entity_id,
        previous_state=event.previous_state,
        next_state=event.next_state,
        sequence=event.sequence,
        epoch=event.epoch,
        reason=event.data.reason,
        actor=event.actor,
        event_id=event.event_id,
    )


def node_view(row: Record) -> NodeView:
    """An incarnation as people see it."""
    limited = row["cpu_millis"] is not None and row["memory_bytes"] is not None
    return NodeView(
        node_id=row["node_id"],
        incarnation=row["incarnation"],
        state=row["state"],
        software=row["software"],
        protocol_version=row["protocol_version"],
        slots=row["slots"],
        slots_used=row["slots_used"],
        resources=Resources(cpu_millis=row["cpu_millis"], memory_bytes=row["memory_bytes"])
        if limited
        else None,
        resources_used=Resources(cpu_millis=row["cpu_used"], memory_bytes=row["memory_used"]),
        task_types=tuple(row["task_types"]),
        profiles={
            name: digest.hex()
            for name, digest in zip(row["task_types"], row["profile_digests"], strict=True)
        },
        concurrency={
            name: number
            for name, number in zip(row["task_types"], row["type_concurrency"] or (), strict=False)
            if number is not None
        },
        facts=NodeFacts.model_validate_json(row["facts"]),
        executable=None
        if row["executable_digest"] is None
        else NodeExecutable(
            name=row["executable_name"],
            version=row["executable_version"],
            digest=row["executable_digest"].hex(),
            withdrawn=row["executable_withdrawn"],
        ),
        registered_at=row["registered_at"],
        last_seen_at=row["last_seen_at"],
        seconds_since_seen=max(0.0, row["seconds_since_seen"]),
        under_review=row["under_review"],
    )


def oldest(shards: Sequence[Record]) -> float:
    return max((row["oldest_seconds"] or 0.0 for row in shards), default=0.0)


def parsed(text: str | None) -> Any:
    return None if text is None else from_json(text)
