"""What to do with a message, and when it may be acknowledged. Pure: decisions are values.

A message is a notification (OPS-01): it gives no authority and no time. An assignment is written to
the inbox before it is acknowledged; whether it is new is known once it is stored, since the same
event may come as often as the broker, the relay or the comparison with the coordinator likes
(EVENT-03).
"""

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum

from tenure.contract.codes import Reason
from tenure.contract.ids import AttemptId, EventId, FencingToken, IncarnationId, TaskId


class Kind(StrEnum):
    """What a message is about."""

    ASSIGNMENT = "assignment"
    CANCELLATION = "cancellation"
    OTHER = "other"  # an event that executors have no use for


class Step(StrEnum):
    """What to do."""

    START = "start"  # store it; when it is new, run it
    CANCEL = "cancel"  # end the attempt's handler
    REJECT = "reject"  # tell the coordinator that another node may have it
    NOTHING = "nothing"


class Ack(StrEnum):
    """When the message may leave the queue."""

    AFTER_STORING = "after_storing"  # the inbox row must be durable first
    NOW = "now"  # nothing is lost with it
    DEAD_LETTER = "dead_letter"  # somebody must look at it: it is recorded by the coordinator


@dataclass(frozen=True, slots=True)
class Notice:
    """A message, as far as it could be understood. Fields that it lacked are None."""

    kind: Kind
    event_id: EventId
    task_id: TaskId | None = None
    attempt_id: AttemptId | None = None
    fencing_token: FencingToken | None = None
    task_type: str | None = None
    incarnation: IncarnationId | None = None
    ordinal: int | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """An attempt that this incarnation was given; every field is known."""

    event_id: EventId
    task_id: TaskId
    attempt_id: AttemptId
    fencing_token: FencingToken
    task_type: str
    ordinal: int | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """What this process knows when it judges."""

    incarnation: IncarnationId
    task_types: Set[str]
    draining: bool


@dataclass(frozen=True, slots=True)
class Intake:
    """What to do with one message. ``why`` is a word for the log and the metrics."""

    step: Step
    ack: Ack
    why: str
    assignment: Assignment | None = None
    attempt_id: AttemptId | None = None


UNDECODABLE = Intake(Step.NOTHING, Ack.DEAD_LETTER, "undecodable")
"""For bytes that are no event this reader knows: never guessed at, never dropped."""


def judge(notice: Notice, situation: Situation) -> Intake:
    """What to do with a message that could be decoded."""
    if notice.incarnation is not None and notice.incarnation != situation.incarnation:
        return Intake(Step.NOTHING, Ack.NOW, "other_incarnation")
    if notice.kind is Kind.CANCELLATION and notice.attempt_id is not None:
        return Intake(Step.CANCEL, Ack.NOW, "cancel", attempt_id=notice.attempt_id)
    if notice.kind is not Kind.ASSIGNMENT:
        return Intake(Step.NOTHING, Ack.NOW, "not_for_executors")
    assignment = _complete(notice)
    if assignment is None:
        return UNDECODABLE
    if assignment.task_type not in situation.task_types:
        return Intake(Step.REJECT, Ack.NOW, Reason.UNKNOWN_TYPE, assignment)
    if situation.draining:
        return Intake(Step.REJECT, Ack.NOW, Reason.NODE_DRAINING, assignment)
    return Intake(Step.START, Ack.AFTER_STORING, "assignment", assignment)


def may_start(*, stored_now: bool, known_here: bool) -> bool:
    """Whether a stored assignment is run: only the first copy, and none that this process has.

    The inbox forgets when its file is lost, the process when it ends; each covers the other.
    """
    return stored_now and not known_here


def _complete(notice: Notice) -> Assignment | None:
    if (
        notice.task_id is None
        or notice.attempt_id is None
        or notice.fencing_token is None
        or notice.task_type is None
    ):
        return None
    return Assignment(
        event_id=notice.event_id,
        task_id=notice.task_id,
        attempt_id=notice.attempt_id,
        fencing_token=notice.fencing_token,
        task_type=notice.task_type,
        ordinal=notice.ordinal,
    )
