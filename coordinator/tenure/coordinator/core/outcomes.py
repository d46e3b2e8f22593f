"""What becomes of a task when one of its attempts ends (STATE-05).

One table: the way an attempt ended, by the effects its handler declares.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final

from tenure.contract.codes import Reason
from tenure.contract.states import Effects, TaskState
from tenure.coordinator.core.decisions import TaskChanged
from tenure.coordinator.core.happenings import ended, unchanged
from tenure.coordinator.core.retry import retry_delay
from tenure.coordinator.core.rows import TaskRow
from tenure.coordinator.core.snapshot import LeasePolicy

LOSSES_UNTIL_HELD: Final = 10
"""A task that takes its process down with it must not take down the fleet."""

LOSSES_OF_A_DEATH_ALONE: Final = 3
"""What one counts that nobody else can be blamed for: after the first loss, the third holds it."""


class End(StrEnum):
    """How an attempt ended, as far as its task is concerned."""

    DELIVERED = "delivered"
    FAILED = "failed"  # the handler failed, or asked for another attempt
    FAILED_FOR_GOOD = "failed_for_good"  # another attempt would not help
    DIED_ALONE = "died_alone"  # it ended its own process, in which nothing else ran
    HANDED_BACK = "handed_back"  # ended in the middle of its work by its executor
    REJECTED = "rejected"  # not taken; another node may
    CANCEL_CONFIRMED = "cancel_confirmed"
    NOT_TAKEN = "not_taken"  # its authority ended before anybody had answered
    LOST = (
        "lost"  # its authority ended while a node had it: expiry, revocation, a node that is gone
    )


class Then(StrEnum):
    """What becomes of its task."""

    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HELD = "held"  # a person decides
    TRIED_AGAIN = "tried_again"  # after a delay, until its type's ``max_attempts`` have failed
    RUN_AGAIN = "run_again"  # it has not failed; after a delay from the second time on
    ANOTHER_NODE = "another_node"  # nothing has been begun
    AT_ONCE = "at_once"  # nothing has been begun


def _whatever(then: Then) -> Mapping[Effects, Then]:
    return dict.fromkeys(Effects, then)


TABLE: Final[Mapping[End, Mapping[Effects, Then]]] = {
    End.DELIVERED: _whatever(Then.DELIVERED),
    End.FAILED: _whatever(Then.TRIED_AGAIN),
    End.FAILED_FOR_GOOD: _whatever(Then.FAILED),
    End.DIED_ALONE: {**_whatever(Then.RUN_AGAIN), Effects.UNGUARDED: Then.HELD},
    End.HANDED_BACK: {**_whatever(Then.RUN_AGAIN), Effects.UNGUARDED: Then.HELD},
    End.REJECTED: _whatever(Then.ANOTHER_NODE),
    End.CANCEL_CONFIRMED: _whatever(Then.CANCELLED),
    End.NOT_TAKEN: _whatever(Then.AT_ONCE),
    End.LOST: {**_whatever(Then.RUN_AGAIN), Effects.UNGUARDED: Then.HELD},
}
"""Unless somebody asked to cancel the task: then any end but a delivery ends it cancelled. Unless
its deadline has passed with the attempt's authority: then it ends expired."""

HANDED_BACK: Final = frozenset({Reason.AUTHORITY_LOST.value, Reason.NODE_DRAINING.value})
"""Reasons of a failure that is none of the task's: it counts as lost."""


def end_of_failure(reason: str, *, retryable: bool) -> End:
    """How an attempt ended that was reported as failed."""
    if not retryable:
        return End.FAILED_FOR_GOOD
    if reason == Reason.DIED_ALONE:
        return End.DIED_ALONE
    return End.HANDED_BACK if reason in HANDED_BACK else End.FAILED


def consequence(
    task: TaskRow,
    end: End,
    policy: LeasePolicy,
    jitter: float,
    *,
    reason: str | None = None,
    message: str | None = None,
    asked_delay: int | None = None,
    past_deadline: bool = False,
) -> TaskChanged:
    """The change of the task. ``reason`` and ``message`` are the attempt's, ``asked_delay`` what
    its handler wants to wait in microseconds."""
    then = TABLE[end][task.effects]
    failures = task.failures + (then is Then.TRIED_AGAIN or then is Then.FAILED)
    counted = replace(task, failures=failures)
    if then is Then.DELIVERED:
        return ended(task, TaskState.DELIVERED, None, None)
    if task.cancel_requested_at is not None:
        return ended(counted, TaskState.CANCELLED, Reason.CANCEL_REQUESTED, message)
    if past_deadline:
        return ended(counted, TaskState.EXPIRED, Reason.DEADLINE_PASSED, None)
    match then:
        case Then.FAILED:
            return ended(counted, TaskState.FAILED, reason, message)
        case Then.TRIED_AGAIN if failures >= task.max_attempts:
            return ended(counted, TaskState.FAILED, Reason.ATTEMPTS_EXHAUSTED, message)
        case Then.TRIED_AGAIN:
            drawn = retry_delay(policy, failures, jitter)
            return _open(counted, drawn if asked_delay is None else asked_delay)
        case Then.RUN_AGAIN:
            weight = LOSSES_OF_A_DEATH_ALONE if end is End.DIED_ALONE else 1
            return _run_again(task, policy, jitter, weight)
        case Then.HELD:
            return held(task, Reason.LOST_WITH_POSSIBLE_EFFECT, message)
        case _:
            return _open(task, None)


def held(task: TaskRow, reason: str, message: str | None) -> TaskChanged:
    """The task waits for a person; an event of its stream goes with it."""
    return replace(
        unchanged(task),
        state=TaskState.HELD,
        reason=reason,
        message=message,
        sequence=task.sequence + 1,
        current_attempt_id=None,
    )


def suspect(task: TaskRow) -> bool:
    """Whether the task may be what ended a process: it runs alone from now on, so that it takes
    nobody down with it, and what happens then is its own doing."""
    return task.losses > 0


def _run_again(task: TaskRow, policy: LeasePolicy, jitter: float, weight: int) -> TaskChanged:
    """Being lost burns no attempt. The first time may be anybody's fault; a task that is lost again
    and again waits longer each time, and then for a person."""
    losses = task.losses + weight
    lost = replace(task, losses=losses)
    if losses >= LOSSES_UNTIL_HELD:
        return held(lost, Reason.LOST_REPEATEDLY, None)
    return _open(lost, None if losses == 1 else retry_delay(policy, losses - 1, jitter))


def _open(task: TaskRow, delay: int | None) -> TaskChanged:
    return replace(unchanged(task), current_attempt_id=None, delay=delay)
