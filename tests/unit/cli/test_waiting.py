"""What `tenure task show` and `tenure submit --wait` say about a task that nobody has."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.cli.waiting import waits_for
from tenure.contract.states import Phase
from tenure.contract.tasks import NodeView, TaskSummary

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def task(phase: Phase = Phase.WAITING, not_before: datetime | None = None) -> TaskSummary:
    known: dict[str, Any] = {"type": "count-words", "phase": phase, "not_before": not_before}
    return TaskSummary.model_construct(**known)


def node(
    state: str = "active", used: int = 0, task_type: str = "count-words", silence: float = 1.0
) -> NodeView:
    known: dict[str, Any] = {"state": state, "slots": 8, "slots_used": used}
    known["seconds_since_seen"] = silence
    return NodeView.model_construct(**known, task_types=(task_type,))


def test_a_task_that_does_not_wait_waits_for_nothing() -> None:
    assert waits_for(task(Phase.RUNNING), [], NOW) == ""


def test_a_task_before_its_time_waits_for_it() -> None:
    assert "not before" in waits_for(task(not_before=NOW + timedelta(hours=1)), [node()], NOW)


def test_a_time_that_has_come_is_no_reason() -> None:
    assert waits_for(task(not_before=NOW - timedelta(hours=1)), [node()], NOW) == ""


def test_without_an_active_node_of_its_type_it_waits_for_an_executor() -> None:
    nodes = [node("gone"), node("draining"), node(task_type="other")]
    assert "none that runs declares 'count-words'" in waits_for(task(), nodes, NOW)


def test_when_all_that_could_take_it_are_full_it_waits_for_a_slot() -> None:
    nodes = [node(used=8), node(task_type="other")]
    assert "a free slot" in waits_for(task(), nodes, NOW)
    assert waits_for(task(), [*nodes, node(used=7)], NOW) == ""


def test_a_node_that_is_silent_is_no_executor_to_wait_for() -> None:
    nodes = [node(silence=70.0), node(silence=65.0)]
    assert "was heard for 65 s" in waits_for(task(), nodes, NOW)
    assert waits_for(task(), [*nodes, node()], NOW) == ""
