"""Labels of metrics are bounded, whatever users and handlers call their things."""

from dataclasses import replace

from structlog.testing import capture_logs

from tenure.contract.codes import Reason
from tenure.contract.ids import EventId
from tenure.contract.states import AttemptState, EntityType, TaskState
from tenure.coordinator.core.happenings import attempt_became, task_became
from tenure.coordinator.logs import log_ends
from tenure.coordinator.metrics import OTHER_TYPES, TYPES_SHOWN, Metrics
from tenure.coordinator.store.figures import Figures
from tests.support.rows import ATTEMPT, TASK

EXPIRED = attempt_became(
    TASK,
    ATTEMPT,
    AttemptState.EXPIRED,
    event_id=EventId("event"),
    epoch=1,
    actor="sweeper",
    reason=Reason.LEASE_EXPIRED,
)
FIGURES = Figures(
    waiting_tasks=0,
    not_before_tasks=0,
    oldest_waiting_seconds=0,
    held_tasks={},
    open_attempts={},
    nodes={},
    pauses={},
    dead_letters=0,
    limits=[("default", "sha256", 5, 3)],
    limits_by_scope={"type": 1},
    replays={},
    nodes_under_review=0,
    tasks_by_type=[],
    slots=8,
    slots_used=3,
    commits_waiting_for_standby=1,
    lag_rows=0,
    log_bytes=8192,
    log_rows_beyond_partitions=0,
    oldest_unpublished_seconds=0,
    parked=0,
    intake_waiting=0,
    intake_refused=0,
    oldest_intake_seconds=0,
    retention_overdue={"tasks": 7200.0},
)


def shown(metrics: Metrics) -> list[str]:
    return metrics.text().decode().splitlines()


def test_types_beyond_the_bound_are_counted_together() -> None:
    metrics = Metrics()
    numbers = [(f"type-{n}", "waiting", 1000 - n) for n in range(TYPES_SHOWN)]
    small = [("small", "waiting", 2), ("smaller", "waiting", 1), ("type-0", "held", 1)]
    metrics.set_figures(replace(FIGURES, tasks_by_type=numbers + small))
    lines = [line for line in shown(metrics) if line.startswith("tenure_tasks_by_type{")]
    assert len(lines) == TYPES_SHOWN + 2
    assert f'tenure_tasks_by_type{{phase="waiting",type="{OTHER_TYPES}"}} 3.0' in lines
    assert 'tenure_tasks_by_type{phase="held",type="type-0"} 1.0' in lines


def test_a_type_that_is_done_is_shown_no_more() -> None:
    metrics = Metrics()
    metrics.set_figures(replace(FIGURES, tasks_by_type=[("sha256", "waiting", 1)]))
    metrics.set_figures(FIGURES)
    assert not any(line.startswith("tenure_tasks_by_type{") for line in shown(metrics))
    assert 'tenure_slots{what="used"} 3.0' in shown(metrics)
    assert "tenure_commits_waiting_for_standby 1.0" in shown(metrics)


def test_ends_are_counted_by_state_and_a_bounded_reason() -> None:
    metrics = Metrics()
    own = replace(EXPIRED, next_state=AttemptState.FAILED.value, reason="the moon was full")
    metrics.happened([EXPIRED, own, replace(own, reason="and red"), replace(own, reason=None)])
    metrics.happened([replace(EXPIRED, next_state=AttemptState.RUNNING.value)])
    lines = shown(metrics)
    series = 'tenure_attempts_ended_total{{reason="{}",state="{}"}} {}.0'.format
    assert series("lease_expired", "expired", 1) in lines
    assert series("handler", "failed", 2) in lines
    assert series("", "failed", 1) in lines
    assert sum(line.startswith("tenure_attempts_ended_total{") for line in lines) == 3


def test_ends_are_logged_with_all_that_names_them() -> None:
    held = task_became(
        TASK,
        TaskState.HELD,
        event_id=EventId("event"),
        epoch=1,
        actor="operator",
        reason=Reason.OPERATOR_HOLD,
    )
    delivered = replace(EXPIRED, next_state=AttemptState.DELIVERED.value)
    with capture_logs() as lines:
        log_ends([EXPIRED, held, delivered, replace(EXPIRED, entity_type=EntityType.NODE)])
    first, second = lines
    assert {
        "event": "attempt ended",
        "state": "expired",
        "reason": "lease_expired",
        "tenant": "default",
        "task_id": "task",
        "attempt_id": "attempt",
        "node_id": "node",
        "fencing_token": ATTEMPT.fencing_token,
    }.items() <= first.items()
    assert (second["event"], second["reason"]) == ("task is held", "operator_hold")
