"""States of tasks, attempts and nodes, and the moves an attempt may make.

Standard library only, so that the pure cores may import it.

Three axes never share a figure (STATE-03): *execution* is the attempt's state below; acceptance and
payment are state machines of their own. ``DELIVERED`` therefore says that an authorized output was
durably recorded, not that anybody accepted or paid for it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class EntityType(StrEnum):
    """What a stream of events is about. A stream is ``(entity_type, entity_id)``."""

    TASK = "task"
    ATTEMPT = "attempt"
    NODE = "node"


class TaskState(StrEnum):
    """State of the request itself. Whether an open task waits or runs is told by its attempt."""

    OPEN = "open"  # waiting for a node, or under an attempt that has not ended
    HELD = "held"  # needs a person: the reason says why -> open, cancelled
    DELIVERED = "delivered"  # terminal: an attempt delivered under valid authority
    FAILED = "failed"  # terminal: no retry left, or the handler said so
    CANCELLED = "cancelled"  # terminal: cancellation confirmed
    EXPIRED = "expired"  # terminal: the deadline passed


class AttemptState(StrEnum):
    """State of one execution opportunity (STATE-04)."""

    SUBMITTED = "submitted"  # recorded; the executor has not answered yet
    ACCEPTED = "accepted"  # the executor accepted valid work and authority ("taken by node")
    RUNNING = "running"  # work has started under the lease
    DELIVERED = "delivered"  # terminal: an authorized output was durably recorded
    REJECTED = "rejected"  # terminal: the executor did not accept; another node may
    FAILED = "failed"  # terminal: ended with a recorded reason
    CANCELLED = "cancelled"  # terminal: cancellation confirmed for the attempt
    EXPIRED = "expired"  # terminal: the authority or the deadline ran out


class NodeState(StrEnum):
    """State of one incarnation of a node (one start of one executor process)."""

    ACTIVE = "active"  # may be given work
    DRAINING = "draining"  # finishes what it has, gets nothing new
    QUARANTINED = "quarantined"  # taken out of service by an operator; its leases are revoked
    GONE = "gone"  # terminal: ended, or replaced by a newer incarnation


class Effects(StrEnum):
    """What a handler declares about its effects on other systems (STATE-05)."""

    NONE = "none"  # reads only: losing it costs time
    GUARDED = "guarded"  # every effect goes through a receiver that checks the fencing token
    IDEMPOTENT = "idempotent"  # doing it again changes nothing more (the default)
    UNGUARDED = "unguarded"  # nobody can tell: a lost attempt holds the task


class Match(StrEnum):
    """Which builds may take a task that was submitted under a profile (SCHED-01)."""

    COMPATIBLE = "compatible"  # any that runs the type and is no more dangerous (the default)
    EXACT = "exact"  # the very build that the profile was made from


class PauseScope(StrEnum):
    """What is paused: nothing of it begins, what runs goes on (FLOW-01)."""

    ALL = "all"  # every tenant's tasks
    TENANT = "tenant"
    TYPE = "type"  # of one tenant
    NODE = "node"  # it takes nothing; unlike a draining one it stays
    LABEL = "label"  # all nodes that have it


class RetentionKind(StrEnum):
    """What is kept for a time after it ended, and then removed (OPS-08)."""

    LOG = "log"  # the events, by whole partitions
    TASKS = "tasks"  # ended ones, with input, attempts and receipts
    COMMANDS = "commands"  # stored outcomes: so long a repeated request gets its first answer
    INTAKE = "intake"  # decided rows of what was enqueued
    RENEWALS = "renewals"
    REVIEWS = "reviews"  # closed health reviews
    NODES = "nodes"  # starts of nodes that are gone
    DEAD_LETTERS = "dead_letters"  # since they came back last or were settled
    CHANGES = "changes"  # who stated which fact, and who paused, replayed, retried or skipped what
    PROFILES = "profiles"  # that no task, type or start of a node names
    EXECUTABLES = "executables"  # programs that no start of a node has run


class LimitScope(StrEnum):
    """What is counted together under a limit (FLOW-01). Types and keys are those of one tenant."""

    TENANT = "tenant"  # all its tasks
    TYPE = "type"  # those of a type
    KEY = "key"  # those with one concurrency key, of whatever type
    EACH_KEY = "each_key"  # those of a type, with each concurrency key by itself


class ReplayState(StrEnum):
    """What a replay does now."""

    RUNNING = "running"  # a relay works on it, or will
    PAUSED = "paused"  # until somebody resumes it: the pause says why
    COMPLETED = "completed"  # everything in its bounds that matches was published
    CANCELLED = "cancelled"  # by an operator; what was published stays published


class ReplayPause(StrEnum):
    """Why a replay is paused."""

    OPERATOR = "operator"
    QUEUE_MISSING = "queue_missing"  # there is no such queue: nothing is dropped
    NOT_SENDABLE = "not_sendable"  # a row is too large for this relay, or cannot be encoded
    BEHIND_DEDUPE_RETENTION = "behind_dedupe_retention"  # consumers would take it for new


class TenantState(StrEnum):
    """Whether a tenant's tasks are given to nodes."""

    AUTHORIZED = "authorized"
    SUSPENDED = "suspended"  # tasks wait; what runs goes on


class Phase(StrEnum):
    """What people are shown for a task: its state, and for an open one its attempt's."""

    WAITING = "waiting"  # open, no attempt: see not_before, or no node can take it
    ASSIGNED = "assigned"  # an attempt was recorded, the node has not answered
    TAKEN = "taken"  # taken by node
    RUNNING = "running"
    HELD = "held"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


ATTEMPT_MOVES: Final[Mapping[AttemptState, frozenset[AttemptState]]] = {
    AttemptState.SUBMITTED: frozenset(
        {AttemptState.ACCEPTED, AttemptState.REJECTED, AttemptState.CANCELLED}
    ),
    AttemptState.ACCEPTED: frozenset(
        {
            AttemptState.RUNNING,
            AttemptState.FAILED,
            AttemptState.CANCELLED,
            AttemptState.EXPIRED,
        }
    ),
    AttemptState.RUNNING: frozenset(
        {
            AttemptState.DELIVERED,
            AttemptState.FAILED,
            AttemptState.CANCELLED,
            AttemptState.EXPIRED,
        }
    ),
    AttemptState.DELIVERED: frozenset(),
    AttemptState.REJECTED: frozenset(),
    AttemptState.FAILED: frozenset(),
    AttemptState.CANCELLED: frozenset(),
    AttemptState.EXPIRED: frozenset(),
}
"""Every permitted move of an attempt and no other (STATE-04)."""

TERMINAL_ATTEMPT_STATES: Final = frozenset(
    state for state, following in ATTEMPT_MOVES.items() if not following
)
TERMINAL_TASK_STATES: Final = frozenset(
    {TaskState.DELIVERED, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED}
)


def phase_of(task: TaskState, attempt: AttemptState | None) -> Phase:
    """The one word shown for a task. ``attempt`` is the state of its current attempt, if any."""
    if task is not TaskState.OPEN:
        return Phase(task.value)
    match attempt:
        case AttemptState.SUBMITTED:
            return Phase.ASSIGNED
        case AttemptState.ACCEPTED:
            return Phase.TAKEN
        case AttemptState.RUNNING:
            return Phase.RUNNING
        case _:
            return Phase.WAITING
