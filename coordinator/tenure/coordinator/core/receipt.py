"""Deliveries: which receipt becomes the active one, and what is kept as evidence.

The identity of a delivery is its attempt (LATE-04): the same content again, under whichever report
id, is the original record; other content for a delivered attempt is evidence and refused.
"""

from tenure.contract.codes import Code
from tenure.contract.states import AttemptState, TaskState
from tenure.coordinator.core.commands import Deliver
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    AttemptChanged,
    Decision,
    ReceiptRecorded,
    Refused,
    Reply,
)
from tenure.coordinator.core.guards import find_presented, reads_of
from tenure.coordinator.core.happenings import attempt_became, task_became
from tenure.coordinator.core.outcomes import End, consequence
from tenure.coordinator.core.rows import AttemptRow, TaskRow
from tenure.coordinator.core.snapshot import LeasePolicy, Minted, Snapshot

_MESSAGES = {
    Code.ALREADY_DELIVERED: "the attempt has delivered other content; this is kept as evidence",
    Code.LEASE_EXPIRED: "the lease had run out; this is kept as evidence",
    Code.NOT_CURRENT: "the attempt had ended or was superseded; this is kept as evidence",
}


def deliver(
    command: Deliver, snapshot: Snapshot, now: int, minted: Minted, policy: LeasePolicy
) -> Decision:
    """running → delivered under valid authority; otherwise evidence (LATE-01, LATE-02)."""
    presented = find_presented(command, snapshot)
    if isinstance(presented, Refused):
        return presented
    task, attempt = presented
    original = snapshot.same_content_receipt
    if original is not None:
        return Answered(
            Reply(
                "applied" if original.admitted else "recorded",
                code=original.code,
                message=_MESSAGES[Code(original.code)] if original.code else None,
                task_id=task.task_id,
                task_state=task.state,
                attempt_state=attempt.state,
                receipt_id=original.receipt_id,
                state_version=original.state_version,
                generation=original.generation,
            ),
            original.admitted_at,
        )
    if attempt.state is AttemptState.DELIVERED:
        return _keep(command, snapshot, task, attempt, Code.ALREADY_DELIVERED)
    if attempt.state is AttemptState.EXPIRED:
        return _keep(command, snapshot, task, attempt, Code.LEASE_EXPIRED)
    if task.current_attempt_id != attempt.attempt_id:
        return _keep(command, snapshot, task, attempt, Code.NOT_CURRENT)
    if attempt.expires_at <= now:
        return _keep(command, snapshot, task, attempt, Code.LEASE_EXPIRED, lease_over=True)
    if attempt.state is not AttemptState.RUNNING:
        return Refused(Code.WRONG_STATE, f"the attempt is {attempt.state.value}: start it first")
    return _admit(command, snapshot, task, attempt, minted, policy)


def _admit(
    command: Deliver,
    snapshot: Snapshot,
    task: TaskRow,
    attempt: AttemptRow,
    minted: Minted,
    policy: LeasePolicy,
) -> Accepted:
    return Accepted(
        reads=reads_of(snapshot, task, attempt, lease_live=True),
        reply=Reply(
            "applied",
            task_id=task.task_id,
            task_state=TaskState.DELIVERED,
            attempt_state=AttemptState.DELIVERED,
            receipt_id=command.command_id,
            state_version=task.version,
            generation=task.generation,
        ),
        writes=(
            AttemptChanged(
                attempt.attempt_id, AttemptState.DELIVERED, None, None, attempt.sequence + 1
            ),
            consequence(task, End.DELIVERED, policy, minted.jitter),
            _receipt(command, task, None),
        ),
        events=(
            attempt_became(
                task,
                attempt,
                AttemptState.DELIVERED,
                event_id=minted.event_ids[0],
                epoch=snapshot.epoch,
                actor=command.actor,
                receipt_id=command.command_id,
            ),
            task_became(
                task,
                TaskState.DELIVERED,
                event_id=minted.event_ids[1],
                epoch=snapshot.epoch,
                actor=command.actor,
                reason=None,
                attempt_id=attempt.attempt_id,
            ),
        ),
    )


def _keep(
    command: Deliver,
    snapshot: Snapshot,
    task: TaskRow,
    attempt: AttemptRow,
    code: Code,
    *,
    lease_over: bool = False,
) -> Accepted:
    return Accepted(
        reads=reads_of(snapshot, task, attempt, lease_over=lease_over),
        reply=Reply(
            "recorded",
            code=code,
            message=_MESSAGES[code],
            task_id=task.task_id,
            task_state=task.state,
            attempt_state=attempt.state,
            receipt_id=command.command_id,
            state_version=task.version,
            generation=task.generation,
        ),
        writes=(_receipt(command, task, code),),
    )


def _receipt(command: Deliver, task: TaskRow, code: Code | None) -> ReceiptRecorded:
    return ReceiptRecorded(
        receipt_id=command.command_id,
        tenant=task.tenant,
        task_id=task.task_id,
        attempt_id=command.attempt_id,
        node_id=command.node_id,
        incarnation=command.incarnation,
        code=code,
        state_version=task.version,
        generation=task.generation,
        fencing_token=command.fencing_token,
        content_digest=command.content_digest,
        output_text=command.output_text,
        enforced_text=command.enforced_text,
    )
