"""A frozen profile changes by an operator's word only, while the task waits."""

from dataclasses import replace
from typing import Any

import pytest

from tenure.contract.codes import Code, Reason
from tenure.contract.ids import TenantId
from tenure.contract.states import AttemptState, Effects, TaskState
from tenure.coordinator.core import commands
from tenure.coordinator.core.decide import decide
from tenure.coordinator.core.decisions import Accepted, Answered, Refused, TaskChanged
from tenure.coordinator.core.rows import ResourceAmounts
from tenure.coordinator.core.snapshot import Snapshot
from tests.support.rows import COMMON, MINTED, NOW, POLICY, PROFILE, TASK, waiting, with_attempt

NEW = replace(
    PROFILE, digest="bb" * 32, effects=Effects.UNGUARDED, resources=ResourceAmounts(cpu_millis=7)
)
MOVE = commands.MoveProfile(**COMMON, task_id=TASK.task_id, profile=NEW)


def moved(snapshot: Snapshot, **changes: Any) -> Any:
    return decide(replace(MOVE, **changes), snapshot, NOW, MINTED, POLICY)


@pytest.mark.requirement("SCHED-01")
def test_a_waiting_task_is_moved_with_what_follows_from_its_profile() -> None:
    decision = moved(waiting())
    assert isinstance(decision, Accepted)
    (change,) = decision.writes
    assert isinstance(change, TaskChanged)
    assert (change.profile, change.resources, change.state) == (NEW, NEW.resources, TaskState.OPEN)
    (event,) = decision.events
    assert (event.next_state, event.reason) == ("open", Reason.PROFILE_MOVED)


def test_resources_that_the_submission_asked_for_by_itself_stay() -> None:
    own = ResourceAmounts(cpu_millis=999)
    (change,) = moved(waiting(resources=own)).writes
    assert change.resources == own


def test_moving_once_more_changes_nothing() -> None:
    assert isinstance(moved(waiting(), profile=PROFILE), Answered)


@pytest.mark.parametrize(
    ("snapshot", "changes", "code"),
    [
        (Snapshot(epoch=1), {}, Code.NOT_FOUND),
        (waiting(), {"tenant": TenantId("other")}, Code.NOT_FOUND),
        (waiting(state=TaskState.CANCELLED), {}, Code.WRONG_STATE),
        (waiting(state=TaskState.HELD), {}, Code.WRONG_STATE),
        (with_attempt(AttemptState.SUBMITTED), {}, Code.WRONG_STATE),
        (waiting(), {"profile": replace(NEW, type="other")}, Code.WRONG_STATE),
    ],
)
def test_what_does_not_wait_or_does_not_fit_is_not_moved(
    snapshot: Snapshot, changes: dict[str, Any], code: Code
) -> None:
    decision = moved(snapshot, **changes)
    assert isinstance(decision, Refused)
    assert decision.code is code
