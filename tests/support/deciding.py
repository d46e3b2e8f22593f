"""Decisions on hand-made rows, and what they say."""

from tenure.contract.states import AttemptState
from tenure.coordinator.core import commands
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decide import decide
from tenure.coordinator.core.decisions import (
    Accepted,
    AttemptChanged,
    Decision,
    Refused,
    TaskChanged,
)
from tenure.coordinator.core.snapshot import Snapshot
from tests.support.rows import (
    ABOUT_ATTEMPT,
    CANCEL,
    DELIVER,
    EXPIRE,
    FAIL,
    MINTED,
    NOW,
    POLICY,
    REJECT,
)

S, A, R = AttemptState.SUBMITTED, AttemptState.ACCEPTED, AttemptState.RUNNING
MOVES: dict[str, tuple[AnyCommand, dict[AttemptState, tuple[AttemptState, ...]]]] = {
    "accept": (commands.Accept(**ABOUT_ATTEMPT), {S: (A,)}),
    "start": (commands.Start(**ABOUT_ATTEMPT), {A: (R,)}),
    "take": (commands.Take(**ABOUT_ATTEMPT), {S: (A, R), A: (R,)}),
    "deliver": (DELIVER, {R: (AttemptState.DELIVERED,)}),
    "fail": (FAIL, dict.fromkeys((A, R), (AttemptState.FAILED,))),
    "reject": (REJECT, {S: (AttemptState.REJECTED,)}),
    "confirm": (
        commands.ConfirmCancel(**ABOUT_ATTEMPT),
        dict.fromkeys((A, R), (AttemptState.CANCELLED,)),
    ),
    "renew": (commands.Renew(**ABOUT_ATTEMPT), {A: (), R: ()}),
    "cancel": (CANCEL, {S: (AttemptState.CANCELLED,)}),
    "cancel, asked": (CANCEL, {S: (AttemptState.CANCELLED,), A: (), R: ()}),
    "expire": (
        EXPIRE,
        {S: (AttemptState.CANCELLED,), A: (AttemptState.EXPIRED,), R: (AttemptState.EXPIRED,)},
    ),
}
"""What each command makes of an attempt, by its state; absent: nothing."""


def decided(command: AnyCommand, snapshot: Snapshot, now: int = NOW) -> Decision:
    return decide(command, snapshot, now, MINTED, POLICY)


def accepted(command: AnyCommand, snapshot: Snapshot, now: int = NOW) -> Accepted:
    decision = decided(command, snapshot, now)
    assert isinstance(decision, Accepted), decision
    return decision


def code_of(decision: Decision) -> str:
    assert isinstance(decision, Refused), decision
    return decision.code


def task_change(decision: Accepted) -> TaskChanged:
    (change,) = [write for write in decision.writes if isinstance(write, TaskChanged)]
    return change


def attempt_change(decision: Accepted) -> AttemptChanged:
    (change,) = [write for write in decision.writes if isinstance(write, AttemptChanged)]
    return change


def moves_of(decision: Decision) -> list[tuple[str | None, str]]:
    """Moves of the attempt's stream in a decision."""
    if not isinstance(decision, Accepted):
        return []
    return [
        (event.previous_state, event.next_state)
        for event in decision.events
        if event.entity_type == "attempt"
    ]


def is_current(snapshot: Snapshot) -> bool:
    assert snapshot.task is not None
    return snapshot.task.current_attempt_id is not None
