"""Whatever a decision looks at is covered by a guard of its item: what is not compared again in the
commit may have changed meanwhile."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

import pytest

from tenure.contract.ids import IncarnationId, NodeId
from tenure.contract.states import AttemptState, LimitScope, NodeState, PauseScope, TaskState
from tenure.coordinator.core import commands, decisions
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decide import decide
from tenure.coordinator.core.decisions import Accepted
from tenure.coordinator.core.rows import ANY, IncarnationRow, LimitRow, PauseRow
from tenure.coordinator.core.snapshot import Snapshot
from tests.support.rows import (
    ABOUT_ATTEMPT,
    ALLOCATE,
    ATTEMPT,
    CANCEL,
    COMMON,
    DELIVER,
    EXPIRE,
    FAIL,
    HOLD,
    HOLD_REJECTED,
    MINTED,
    NODE,
    NOW,
    POLICY,
    PROFILE,
    RECEIVE,
    REJECT,
    RELEASE,
    SECOND,
    TASK,
    TRY_AGAIN,
    UNLIMITED,
    waiting,
    with_attempt,
)

Row = TypeVar("Row")
COUNTERS = {"slots_used", "cpu_used", "memory_used", "running"}
ACCOUNT = {"held_minor", "spent_minor", "running", "full_at"}
ROWS = ("task", "tenant", "attempt", "incarnation", "previous_incarnation", "same_content_receipt")
NOT_COVERED = {"task_type"}
"""Copied as it is: a task submitted at the same time as a declaration may come before it."""


def watched(row: Row, seen: set[str]) -> Row:
    """A row that notes which of its fields are looked at."""
    kind: Any = type(row)
    names = {one.name for one in fields(kind)}

    class Watched(kind):  # type: ignore[misc] # its base is known only now
        def __getattribute__(self, name: str) -> Any:
            if name in names:
                seen.add(name)
            return super().__getattribute__(name)

    copy: Row = Watched(**{name: getattr(row, name) for name in names})
    seen.clear()
    return copy


REGISTER = commands.Register(
    **COMMON,
    node_id=NODE.node_id,
    incarnation=IncarnationId("another"),
    queue="queue",
    software="tests",
    protocol_version=1,
    slots=1,
    cpu_millis=None,
    memory_bytes=None,
    task_types=(),
)
MOVE = commands.MoveProfile(
    **COMMON, task_id=TASK.task_id, profile=replace(PROFILE, digest="bb" * 32)
)
DRAIN = commands.ChangeNode(
    **COMMON, node_id=NODE.node_id, incarnation=NODE.incarnation, next_state=NodeState.DRAINING
)


THE_ATTEMPT: Any = {"task_id": TASK.task_id, "attempt_id": ATTEMPT.attempt_id}
REVOKE = commands.Revoke(**COMMON, **THE_ATTEMPT, message="why")
OVER = PauseRow(PauseScope.ALL, ANY, "", NOW - SECOND, "why", "ops", 0)
QUARANTINE = commands.Quarantine(**COMMON, node_id=NODE.node_id, reason="why")


OPEN_REVIEW = commands.OpenReview(**COMMON, node_id=NODE.node_id, incarnation=NODE.incarnation)
CLOSE_REVIEW = commands.CloseReview(
    **COMMON, node_id=NODE.node_id, incarnation=NODE.incarnation, message=None
)


def on_node(node: IncarnationRow) -> Snapshot:
    return Snapshot(epoch=1, incarnation=node, node_incarnation=node.incarnation)


def situations() -> Iterator[tuple[AnyCommand, Snapshot]]:
    """Commands with snapshots in which they are accepted, every branch that writes."""
    submitted, accepted, running = (
        with_attempt(state)
        for state in (AttemptState.SUBMITTED, AttemptState.ACCEPTED, AttemptState.RUNNING)
    )
    asked = with_attempt(AttemptState.RUNNING, task=replace(TASK, cancel_requested_at=NOW))
    over = with_attempt(AttemptState.RUNNING, expires_at=NOW - SECOND)
    late = replace(TASK, deadline=NOW)
    yield commands.Accept(**ABOUT_ATTEMPT), submitted
    yield commands.Start(**ABOUT_ATTEMPT), accepted
    yield commands.Take(**ABOUT_ATTEMPT), submitted
    yield DELIVER, running
    yield DELIVER, over
    for state in (AttemptState.DELIVERED, AttemptState.EXPIRED, AttemptState.FAILED):
        yield DELIVER, with_attempt(state)
    yield FAIL, running
    yield replace(FAIL, retryable=False), running
    yield REJECT, submitted
    yield commands.ConfirmCancel(**ABOUT_ATTEMPT), asked
    yield commands.Renew(**ABOUT_ATTEMPT), running
    yield CANCEL, submitted
    yield CANCEL, running
    yield CANCEL, waiting(state=TaskState.HELD)
    yield RECEIVE, asked
    yield HOLD, waiting()
    yield HOLD, submitted
    yield RELEASE, waiting(state=TaskState.HELD)
    yield TRY_AGAIN, waiting(state=TaskState.HELD)
    yield TRY_AGAIN, waiting(not_before=NOW + SECOND)
    unwanted = waiting(rejected_by=(NODE.incarnation,))
    yield HOLD_REJECTED, replace(unwanted, incarnation=None, fleet=(NODE,))
    yield EXPIRE, over
    yield EXPIRE, with_attempt(AttemptState.RUNNING, task=late, expires_at=NOW - SECOND)
    yield EXPIRE, waiting(deadline=NOW)
    yield ALLOCATE, waiting(not_before=NOW, deadline=NOW + 1)
    yield ALLOCATE, replace(waiting(), tenant=replace(UNLIMITED, pauses=(OVER,)))
    limit = LimitRow(LimitScope.TYPE, "sha256", max_running=1, interval=SECOND)
    place = (limit.scope, limit.name, "")
    yield (
        ALLOCATE,
        replace(waiting(), tenant=replace(UNLIMITED, limits=(limit,), full_at={place: NOW})),
    )
    priced = replace(PROFILE, cost_minor=1)
    yield (
        ALLOCATE,
        replace(
            waiting(profile=priced),
            tenant=replace(UNLIMITED, budget_unlimited=False, budget_minor=1),
        ),
    )
    yield MOVE, waiting()
    yield REGISTER, Snapshot(epoch=1)
    yield REGISTER, Snapshot(epoch=1, previous_incarnation=NODE)
    yield DRAIN, Snapshot(epoch=1, incarnation=NODE)
    for state in (AttemptState.SUBMITTED, AttemptState.ACCEPTED, AttemptState.RUNNING):
        yield REVOKE, with_attempt(state)
        yield commands.RevokeFromNode(**COMMON, **THE_ATTEMPT, message="why"), with_attempt(state)
    silent = replace(NODE, last_seen_at=NOW - POLICY.node_silence_microseconds)
    yield OPEN_REVIEW, on_node(silent)
    yield CLOSE_REVIEW, on_node(replace(NODE, under_review=True))
    yield replace(CLOSE_REVIEW, message="seen to"), on_node(replace(silent, under_review=True))
    yield QUARANTINE, Snapshot(epoch=1, incarnation=NODE, node_known=True)
    yield QUARANTINE, Snapshot(epoch=1, node_known=True)
    yield (
        replace(QUARANTINE, reason=None),
        Snapshot(epoch=1, incarnation=NODE, node_known=True, node_quarantined=True),
    )


@pytest.mark.requirement("STATE-01")
@pytest.mark.parametrize(
    ("command", "snapshot"),
    [pytest.param(*one, id=f"{type(one[0]).__name__}-{n}") for n, one in enumerate(situations())],
)
def test_a_decision_looks_at_nothing_that_its_guards_do_not_cover(
    command: AnyCommand, snapshot: Snapshot
) -> None:
    seen: dict[str, set[str]] = {name: set() for name in ROWS}
    rows = {
        name: watched(row, seen[name])
        for name in ROWS
        if (row := getattr(snapshot, name)) is not None
    }
    of_fleet: set[str] = set()
    if snapshot.fleet is not None:
        rows["fleet"] = tuple(watched(node, of_fleet) for node in snapshot.fleet)
    decision = decide(command, replace(snapshot, **rows), NOW, MINTED, POLICY)
    assert isinstance(decision, Accepted)
    reads = decision.reads
    assert reads.epoch == snapshot.epoch
    if seen["task"]:
        assert (reads.task_id, reads.task_version) == (TASK.task_id, TASK.version)
    if seen["attempt"] - {"decided_at"}:
        assert (reads.attempt_id, reads.attempt_version) == (ATTEMPT.attempt_id, ATTEMPT.version)
    if "expires_at" in seen["attempt"]:
        assert reads.lease_live or reads.lease_over
    if seen["incarnation"] - COUNTERS:
        assert (reads.incarnation, reads.incarnation_version) == (NODE.incarnation, NODE.version)
    if "last_seen_at" in seen["incarnation"]:
        assert POLICY.node_silence_microseconds in (reads.seen_within, reads.silent_for)
    if seen["incarnation"] & COUNTERS:
        assert any(isinstance(write, decisions.AttemptCreated) for write in decision.writes)
    if seen["tenant"] - ACCOUNT:
        assert reads.tenant_version == UNLIMITED.version
    if snapshot.tenant is not None and snapshot.tenant.pauses:
        assert reads.pause_over == OVER.until
    if seen["tenant"] & ACCOUNT:
        assert any(isinstance(write, decisions.AttemptCreated) for write in decision.writes)
    if seen["previous_incarnation"]:
        assert (reads.incarnation, reads.incarnation_version) == (NODE.incarnation, NODE.version)
    if of_fleet:
        assert reads.fleet == ((NODE.incarnation, NODE.version),)
    if isinstance(command, commands.Register | commands.Quarantine):
        assert reads.node_quarantined == snapshot.node_quarantined
    if isinstance(command, commands.Register | commands.ChangeNode | commands.Quarantine):
        assert reads.node_id == NodeId("node")
    drawn = [write for write in decision.writes if getattr(write, "delay", None) is not None]
    if isinstance(command, commands.Allocate) or drawn:
        assert reads.policy_version == POLICY.version
    if isinstance(command, commands.Allocate):
        assert (reads.attempt_id, reads.attempt_version) == (command.attempt_id, None)
        assert reads.not_before_passed
        assert reads.deadline_open
    if isinstance(command, commands.Expire):
        assert reads.deadline_passed or reads.deadline_open


def test_every_part_of_a_snapshot_is_either_watched_or_known_not_to_be() -> None:
    others = {"epoch", "command", "enqueued_task_id", "intake_waiting", "fleet"}
    others |= {"node_known", "node_quarantined", "node_incarnation"}
    # The epoch is a guard itself, a fleet is watched row by row, commands and rows of the intake
    # are looked up again by their ids. A node that is known stays known; whether it is quarantined
    # is a guard, and so is its current incarnation.
    assert {one.name for one in fields(Snapshot)} == {*ROWS, *NOT_COVERED, *others}
