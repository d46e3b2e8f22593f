"""Decisions about tasks that wait for a person, and about what the person says.

A held task begins nothing. Its reason says why: an operator's word, a loss with possible effects,
losses again and again, or that every node which could take it has rejected it (STATE-05).
"""

from dataclasses import replace

from tenure.contract.codes import Code, Reason
from tenure.contract.states import TERMINAL_TASK_STATES, AttemptState, TaskState
from tenure.coordinator.core.commands import Hold, HoldRejected, Release, TryAgain
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    AttemptChanged,
    Decision,
    Happened,
    Refused,
    Reply,
    TaskChanged,
    Write,
)
from tenure.coordinator.core.filters import could_take, has_rejected
from tenure.coordinator.core.guards import reads_of
from tenure.coordinator.core.happenings import attempt_became, task_became, unchanged
from tenure.coordinator.core.outcomes import held
from tenure.coordinator.core.rows import AttemptRow, TaskRow
from tenure.coordinator.core.snapshot import Minted, Snapshot


def hold(command: Hold, snapshot: Snapshot, minted: Minted) -> Decision:
    """Keep a task from beginning. One that a node has not taken yet is taken back from it; work
    under way can only be cancelled."""
    task = _task_that_goes_on(command, snapshot)
    if isinstance(task, Refused):
        return task
    if task.state is TaskState.HELD:
        return Answered(_reply(task, task.state), None)
    attempt = snapshot.attempt
    if attempt is not None and attempt.state is not AttemptState.SUBMITTED:
        return _UNDER_WAY
    return _apply(
        snapshot,
        task,
        held(task, Reason.OPERATOR_HOLD, command.message),
        Reason.OPERATOR_HOLD,
        command.actor,
        minted,
        attempt=attempt,
    )


def release(command: Release, snapshot: Snapshot, minted: Minted) -> Decision:
    """held → open. What kept it is forgotten: nodes that rejected it are asked again."""
    task = _task_that_goes_on(command, snapshot)
    if isinstance(task, Refused):
        return task
    if task.state is not TaskState.HELD:
        return Answered(_reply(task, task.state), None)
    change = replace(_opened(task), failures=task.failures, not_before=task.not_before)
    return _apply(snapshot, task, change, Reason.RELEASED, command.actor, minted)


def try_again(command: TryAgain, snapshot: Snapshot, minted: Minted) -> Decision:
    """The next attempt of a task, now: it waits for no delay, and its failures are forgotten."""
    task = _task_that_goes_on(command, snapshot)
    if isinstance(task, Refused):
        return task
    if snapshot.attempt is not None:
        return _UNDER_WAY
    if task.state is TaskState.OPEN and task.generation == 0:
        return Refused(Code.WRONG_STATE, "it has not been tried yet")
    change = _opened(task)
    if change == replace(unchanged(task), sequence=change.sequence):
        return Answered(_reply(task, task.state), None)
    return _apply(snapshot, task, change, Reason.RETRY_REQUESTED, command.actor, minted)


def hold_rejected(command: HoldRejected, snapshot: Snapshot, minted: Minted) -> Decision:
    """Hold a waiting task that every active node which could take it has rejected (STATE-05).

    While no node could take it, it waits: that is no matter for a person (SCHED-02).
    """
    task, fleet = snapshot.task, snapshot.fleet
    if task is None or fleet is None:
        return Refused(Code.NOT_FOUND, "no such task")
    if task.state is not TaskState.OPEN or task.current_attempt_id is not None:
        return Refused(Code.WRONG_STATE, "the task does not wait")
    able = [node for node in fleet if could_take(task, node, snapshot.tenant)]
    if not able or not all(has_rejected(task, node) for node in able):
        return Refused(Code.WRONG_STATE, "another node may take it")
    decision = _apply(
        snapshot,
        task,
        held(task, Reason.REJECTED_BY_ALL, None),
        Reason.REJECTED_BY_ALL,
        command.actor,
        minted,
    )
    seen = tuple((node.incarnation, node.version) for node in fleet)
    version = None if snapshot.tenant is None else snapshot.tenant.version
    return replace(decision, reads=replace(decision.reads, fleet=seen, tenant_version=version))


_UNDER_WAY = Refused(Code.WRONG_STATE, "a node is at it: cancel it, or wait until its attempt ends")


def _task_that_goes_on(command: Hold | Release | TryAgain, snapshot: Snapshot) -> Refused | TaskRow:
    task = snapshot.task
    if task is None or task.tenant != command.tenant:
        return Refused(Code.NOT_FOUND, "no such task")
    if task.state in TERMINAL_TASK_STATES:
        return Refused(Code.WRONG_STATE, f"the task has ended: {task.state.value}")
    return task


def _opened(task: TaskRow) -> TaskChanged:
    return replace(
        unchanged(task),
        state=TaskState.OPEN,
        sequence=task.sequence + 1,
        failures=0,
        losses=0,
        rejected_by=(),
        not_before=None,
    )


def _apply(
    snapshot: Snapshot,
    task: TaskRow,
    change: TaskChanged,
    reason: Reason,
    actor: str,
    minted: Minted,
    *,
    attempt: AttemptRow | None = None,
) -> Accepted:
    writes: list[Write] = [change]
    events: list[Happened] = []
    if attempt is not None:
        writes.append(
            AttemptChanged(
                attempt.attempt_id, AttemptState.CANCELLED, reason, None, attempt.sequence + 1
            )
        )
        events.append(
            attempt_became(
                task,
                attempt,
                AttemptState.CANCELLED,
                event_id=minted.event_ids[0],
                epoch=snapshot.epoch,
                actor=actor,
                reason=reason,
            )
        )
    events.append(
        task_became(
            task,
            change.state,
            event_id=minted.event_ids[1],
            epoch=snapshot.epoch,
            actor=actor,
            reason=reason,
        )
    )
    return Accepted(
        reads=reads_of(snapshot, task, attempt),
        reply=_reply(task, change.state),
        writes=tuple(writes),
        events=tuple(events),
    )


def _reply(task: TaskRow, state: TaskState) -> Reply:
    return Reply("applied", task_id=task.task_id, task_state=state)
