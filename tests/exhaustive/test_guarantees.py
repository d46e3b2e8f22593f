"""The tables of docs/guarantees.md against every decision that ends an attempt (STATE-05)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

import pytest

from tenure.contract.codes import Reason
from tenure.contract.states import TERMINAL_ATTEMPT_STATES, AttemptState, Effects, TaskState
from tenure.coordinator.core import commands
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decide import decide
from tenure.coordinator.core.decisions import Accepted, AttemptChanged, TaskChanged
from tenure.coordinator.core.outcomes import LOSSES_UNTIL_HELD, TABLE, End
from tenure.coordinator.core.rows import TaskRow
from tenure.coordinator.core.snapshot import Snapshot
from tests.support.repository import REPOSITORY
from tests.support.rows import (
    ABOUT_ATTEMPT,
    ATTEMPT,
    CANCEL,
    COMMON,
    DELIVER,
    EXPIRE,
    FAIL,
    HOLD,
    MINTED,
    NOW,
    POLICY,
    REJECT,
    SECOND,
    TASK,
    with_attempt,
)

PAGE = REPOSITORY / "docs" / "guarantees.md"
S, A, R = AttemptState.SUBMITTED, AttemptState.ACCEPTED, AttemptState.RUNNING
REASONS = (*(reason.value for reason in Reason), "a_word_of_the_application")

ENDING: set[type[commands.Command]] = {
    commands.Deliver, commands.Fail, commands.Reject, commands.ConfirmCancel, commands.Cancel,
    commands.Hold, commands.Expire, commands.Revoke, commands.RevokeFromNode,
}  # fmt: skip
ENDING_NONE: set[type[commands.Command]] = {
    commands.Submit, commands.TakeIn, commands.RefuseIntake, commands.Release, commands.TryAgain,
    commands.MoveProfile,
    commands.HoldRejected, commands.Accept, commands.Start, commands.Take, commands.ReceiveCancel,
    commands.Renew, commands.Allocate, commands.Register, commands.ChangeNode,
    commands.Quarantine, commands.OpenReview, commands.CloseReview,
}  # fmt: skip
"""Of these no decision ends an attempt, which is checked where they are decided."""


def table(name: str) -> list[list[str]]:
    """Cells of a table of the page, without its head."""
    text = PAGE.read_text().split(f"<!-- the rules: {name} -->")[1].split("<!-- end -->")[0]
    rows = [line.strip("|").split("|") for line in text.strip().splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


OUTCOMES = table("outcomes")
BEFORE = {row[0]: row[2] for row in table("before")}
LOST = {"waits, a loss": 1, "waits, three losses": 3}
CANCELLED, PASSED, EXHAUSTED, TENTH = BEFORE.values()


@dataclass(frozen=True)
class Ended:
    """A decision that ended an attempt, and what it was made from."""

    task: TaskRow
    past_deadline: bool
    retryable: bool
    attempt: AttemptChanged
    change: TaskChanged

    @property
    def row(self) -> list[str]:
        """The one row of the page that speaks of it."""
        (row,) = [row for row in OUTCOMES if self._is_of(*row[:2])]
        return row

    def _is_of(self, state: str, reason: str) -> bool:
        if state != self.attempt.state:
            return False
        if state != AttemptState.FAILED:
            return reason in ("", "any") or reason.split("`")[1] == self.attempt.reason
        handed_back = self.attempt.reason in (Reason.AUTHORITY_LOST, Reason.NODE_DRAINING)
        if "none would help" in reason:
            return not self.retryable
        if self.attempt.reason == Reason.DIED_ALONE or f"`{Reason.DIED_ALONE}`" in reason:
            return (
                self.retryable
                and self.attempt.reason == Reason.DIED_ALONE
                and f"`{Reason.DIED_ALONE}`" in reason
            )
        return self.retryable and handed_back is (f"`{Reason.AUTHORITY_LOST}`" in reason)

    def expected(self) -> str:
        """What the page says of the task."""
        says = self.row[2 + list(Effects).index(self.task.effects)]
        if self.attempt.state is AttemptState.DELIVERED:
            return says
        if self.task.cancel_requested_at is not None:
            return CANCELLED
        if self.past_deadline and self.attempt.state in (
            AttemptState.EXPIRED,
            AttemptState.CANCELLED,
        ):
            return PASSED
        if says == "waits, a failure" and self.task.failures + 1 == self.task.max_attempts:
            return EXHAUSTED
        if says in LOST and self.task.losses + LOST[says] >= LOSSES_UNTIL_HELD:
            return TENTH
        return says

    def observed(self) -> str:
        """What the decision makes of the task, in the page's words."""
        change, task = self.change, self.task
        if change.state is not TaskState.OPEN:
            assert change.delay is None
            if change.state is TaskState.DELIVERED or change.reason == self.attempt.reason:
                named = change.state is TaskState.HELD or self.expected() in BEFORE.values()
                return f"{change.state.value}, `{change.reason}`" if named else change.state.value
            return f"{change.state.value}, `{change.reason}`"
        assert change.reason is None
        counts = (change.failures - task.failures, change.losses - task.losses)
        words = {
            (1, 0): "waits, a failure",
            (0, 1): "waits, a loss",
            (0, 3): "waits, three losses",
            (0, 0): "waits",
        }[counts]
        # What failed waits; what was lost waits from the second time on; the rest does not.
        delayed = counts in ((1, 0), (0, 3)) or (counts == (0, 1) and task.losses > 0)
        assert (change.delay is not None) is delayed
        return words


def tasks() -> Iterator[TaskRow]:
    for effects in Effects:
        for failures in (0, 1, TASK.max_attempts - 1):
            for losses in (0, 1, LOSSES_UNTIL_HELD - 1):
                for requested in (None, NOW - SECOND):
                    yield replace(
                        TASK,
                        effects=effects,
                        failures=failures,
                        losses=losses,
                        cancel_requested_at=requested,
                    )


def asked() -> Iterator[tuple[AnyCommand, bool]]:
    """Commands that may end an attempt, and whether a failure says that another may help."""
    yield DELIVER, True
    yield commands.ConfirmCancel(**ABOUT_ATTEMPT), True
    yield CANCEL, True
    yield HOLD, True
    yield EXPIRE, True
    about = {**COMMON, "task_id": TASK.task_id, "attempt_id": ATTEMPT.attempt_id}
    yield commands.Revoke(**about, message="why"), True
    yield commands.RevokeFromNode(**about, message="quarantined"), True
    yield commands.RevokeFromNode(**about, message=None), True
    for reason in REASONS:
        yield replace(REJECT, reason=reason), True
        for retryable in (True, False):
            for delay in (None, 70 * SECOND) if retryable else (None,):
                failure = replace(FAIL, reason=reason, retryable=retryable, retry_delay=delay)
                yield failure, retryable


def ended(command: AnyCommand, snapshot: Snapshot, *, past: bool, retryable: bool) -> Ended | None:
    decision = decide(command, snapshot, NOW, MINTED, POLICY)
    if not isinstance(decision, Accepted):
        return None
    attempts = [write for write in decision.writes if isinstance(write, AttemptChanged)]
    changes = [write for write in decision.writes if isinstance(write, TaskChanged)]
    if not attempts or attempts[0].state not in TERMINAL_ATTEMPT_STATES:
        return None
    (attempt,), (change,) = attempts, changes
    assert snapshot.task is not None
    return Ended(snapshot.task, past, retryable, attempt, change)


def everything() -> Iterator[Ended]:
    """Every end of an attempt: each command, in each state, for each kind of task."""
    for command, retryable in asked():
        for task in tasks():
            for state in (S, A, R):
                if state is S and task.cancel_requested_at is not None:
                    continue  # the request has ended what nobody had taken
                for past in (False, True):
                    deadline = NOW if past else NOW + SECOND
                    over = isinstance(command, commands.Expire)
                    if past and not over:
                        continue  # the lease, which the deadline caps, is over as well
                    snapshot = with_attempt(
                        state,
                        task=replace(task, deadline=deadline),
                        expires_at=NOW if over else NOW + 1,
                    )
                    found = ended(command, snapshot, past=past, retryable=retryable)
                    if found is not None:
                        yield found


@pytest.mark.requirement("STATE-05")
def test_every_end_of_an_attempt_does_to_its_task_what_the_page_says() -> None:
    rows, before = set(), set()
    number = 0
    for found in everything():
        number += 1
        expected = found.expected()
        assert found.observed() == expected, found
        rows.add((*found.row[:2], found.task.effects))
        if expected in BEFORE.values():
            before.add(expected)
    assert rows == {(*row[:2], effects) for row in OUTCOMES for effects in Effects}
    assert before == set(BEFORE.values())
    assert number > 5000


@pytest.mark.requirement("STATE-05")
def test_every_command_is_known_to_end_attempts_or_not_to() -> None:
    assert set(get_args(AnyCommand)) == ENDING | ENDING_NONE
    assert {type(command) for command, _ in asked()} == ENDING


def test_the_rules_know_every_end_and_every_declaration() -> None:
    assert set(TABLE) == set(End)
    assert all(set(then) == set(Effects) for then in TABLE.values())
