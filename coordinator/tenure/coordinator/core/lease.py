"""Decisions about authority: granting, renewing and ending it.

A lease is for liveness, its fencing token for safety. It is granted with the attempt and the
reservation in one commit (LEASE-01), renewed only while it is current and live (LEASE-06), and ends
by its expiry or by supersession, judged by the authority's clock alone (LEASE-05).
"""

from dataclasses import replace

from tenure.contract.codes import Code, Reason
from tenure.contract.ids import fencing_token
from tenure.contract.states import AttemptState, EntityType, NodeState, TaskState
from tenure.coordinator.core import flow, limits
from tenure.coordinator.core.commands import Allocate, Expire, Renew, Revoke, RevokeFromNode
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    AttemptChanged,
    AttemptCreated,
    Decision,
    Happened,
    LeaseRenewed,
    Reads,
    Refused,
    Reply,
)
from tenure.coordinator.core.filters import exclusion, has_rejected
from tenure.coordinator.core.guards import find_authorized, reads_of
from tenure.coordinator.core.happenings import attempt_became, ended, task_became, unchanged
from tenure.coordinator.core.outcomes import End, consequence
from tenure.coordinator.core.rows import ANY, AttemptRow, TaskRow
from tenure.coordinator.core.snapshot import LeasePolicy, Minted, Snapshot

_RENEWABLE = frozenset({AttemptState.ACCEPTED, AttemptState.RUNNING})


def allocate(
    command: Allocate, snapshot: Snapshot, now: int, minted: Minted, policy: LeasePolicy
) -> Decision:
    """Give a waiting task to a node: reservation, attempt, lease and event in one commit.

    The generation grows with every allocation, in the row and under its lock, so no token is ever
    granted twice (LEASE-04). The attempt's id is the command's own: where it is known, this is a
    repetition after an unknown outcome, and is answered as the first time, whatever has become of
    the attempt since.
    """
    task, node = snapshot.task, snapshot.incarnation
    if task is None or node is None:
        return Refused(Code.NOT_FOUND, "no such task or node")
    made = snapshot.attempt
    if made is not None and made.attempt_id == command.attempt_id:
        return Answered(_allocated(task, made.ordinal), None)
    if task.state is not TaskState.OPEN or task.current_attempt_id is not None:
        return Refused(Code.WRONG_STATE, "the task does not wait")
    if task.not_before is not None and task.not_before > now:
        return Refused(Code.WRONG_STATE, "the task waits for its time")
    if task.deadline is not None and task.deadline <= now:
        return Refused(Code.WRONG_STATE, "the deadline has passed", Reason.DEADLINE_PASSED)
    if node.state is not NodeState.ACTIVE or node.tenant != task.tenant:
        return Refused(Code.NODE_GONE, "the node takes no new work")
    if node.last_seen_at <= now - policy.node_silence_microseconds:
        return Refused(Code.NODE_GONE, "the node has not been heard of")
    if node.under_review:
        return Refused(Code.NODE_GONE, "the node is under health review")
    if has_rejected(task, node):
        return Refused(Code.WRONG_STATE, "the node has rejected the task")
    excluded = exclusion(task, node, snapshot.tenant, now)
    if excluded is not None:
        return Refused(Code.WRONG_STATE, f"the node is excluded: {excluded.code.value}")
    if limits.reached(task, snapshot.tenant, now):
        return Refused(Code.WRONG_STATE, "a limit lets no more begin now")
    generation = task.generation + 1
    token = fencing_token(snapshot.epoch, generation)
    created = AttemptCreated(
        attempt_id=command.attempt_id,
        task_id=task.task_id,
        tenant=task.tenant,
        ordinal=generation,
        node_id=node.node_id,
        incarnation=node.incarnation,
        lease_id=command.lease_id,
        fencing_token=token,
        policy_version=policy.version,
        lease_microseconds=policy.lease_microseconds,
        operations=(ANY,) if task.profile is None else task.profile.operations,
        objects=(ANY,) if task.profile is None else task.profile.objects,
        dispatch_event_id=minted.event_ids[0],
        resources=task.resources,
        placement=command.placement,
        cost_minor=0 if task.profile is None else task.profile.cost_minor,
        type=task.type,
        concurrency_key=task.concurrency_key,
    )
    event = Happened(
        event_id=minted.event_ids[0],
        entity_type=EntityType.ATTEMPT,
        entity_id=command.attempt_id,
        tenant=task.tenant,
        epoch=snapshot.epoch,
        sequence=1,
        actor=command.actor,
        previous_state=None,
        next_state=AttemptState.SUBMITTED.value,
        task_id=task.task_id,
        attempt_id=command.attempt_id,
        task_type=task.type,
        node_id=node.node_id,
        incarnation=node.incarnation,
        fencing_token=token,
        ordinal=generation,
        to_node=node.incarnation,
        traceparent=task.traceparent,
    )
    return Accepted(
        reads=Reads(
            epoch=snapshot.epoch,
            task_id=task.task_id,
            task_version=task.version,
            incarnation=node.incarnation,
            incarnation_version=node.version,
            not_before_passed=True,
            deadline_open=True,
            tenant_version=None if snapshot.tenant is None else snapshot.tenant.version,
            pause_over=flow.over_since(task, node, snapshot.tenant, now),
            seen_within=policy.node_silence_microseconds,
            policy_version=policy.version,
            attempt_id=command.attempt_id,  # which is not known
        ),
        reply=_allocated(task, generation),
        writes=(
            created,
            replace(unchanged(task), generation=generation, current_attempt_id=command.attempt_id),
        ),
        events=(event,),
    )


def _allocated(task: TaskRow, generation: int) -> Reply:
    return Reply(
        "applied",
        task_id=task.task_id,
        task_state=TaskState.OPEN,
        attempt_state=AttemptState.SUBMITTED,
        generation=generation,
    )


def renew(command: Renew, snapshot: Snapshot, now: int) -> Decision:
    """More time for a current, live lease. No event: the commit records prior and new expiry."""
    found = find_authorized(command, snapshot, now, _RENEWABLE)
    if isinstance(found, Refused):
        return found
    task, attempt = found
    expires_at = now + attempt.lease_microseconds
    if task.deadline is not None:
        expires_at = min(expires_at, task.deadline)
    return Accepted(
        reads=reads_of(snapshot, task, attempt, lease_live=True),
        reply=Reply(
            "applied",
            task_id=task.task_id,
            attempt_state=attempt.state,
            # Judged from ``now`` as loaded: the commit's is later, so this is never too long.
            expires_at=max(expires_at, attempt.expires_at),
            policy_version=attempt.policy_version,
            cancel_requested=task.cancel_requested_at is not None,
        ),
        writes=(LeaseRenewed(attempt.attempt_id, command.actor),),
    )


def expire(
    command: Expire, snapshot: Snapshot, now: int, minted: Minted, policy: LeasePolicy
) -> Decision:
    """End an attempt whose lease ran out, or a task whose deadline passed while nobody had it.

    Housekeeping only: nothing becomes valid again when it does not run.
    """
    task, attempt = snapshot.task, snapshot.attempt
    if task is None:
        return Refused(Code.NOT_FOUND, "no such task")
    if task.current_attempt_id is None:
        return _expire_waiting(command, snapshot, task, now, minted)
    if attempt is None or attempt.attempt_id != task.current_attempt_id:
        return Refused(Code.UNKNOWN_ATTEMPT, "the current attempt was not loaded")
    if attempt.state not in _RENEWABLE | {AttemptState.SUBMITTED}:
        return Refused(Code.WRONG_STATE, f"the attempt is {attempt.state.value}")
    if attempt.expires_at > now:
        return Refused(Code.WRONG_STATE, "the lease is live")
    past_deadline = task.deadline is not None and task.deadline <= now
    if attempt.state is AttemptState.SUBMITTED:
        state, reason = AttemptState.CANCELLED, Reason.ACCEPTANCE_TIMEOUT
    else:
        state, reason = AttemptState.EXPIRED, Reason.LEASE_EXPIRED
        if past_deadline:
            reason = Reason.DEADLINE_PASSED
    ended_attempt = _end(
        command,
        snapshot,
        (task, attempt),
        state,
        reason,
        minted,
        policy,
        past_deadline=past_deadline,
    )
    return replace(
        ended_attempt,
        reads=replace(
            reads_of(snapshot, task, attempt, lease_over=True),
            deadline_passed=past_deadline,
            deadline_open=not past_deadline,
        ),
    )


def revoke(
    command: Revoke | RevokeFromNode, snapshot: Snapshot, minted: Minted, policy: LeasePolicy
) -> Decision:
    """End an attempt's authority before its time.

    What nobody had taken is cancelled, what was begun has expired; both with the reason ``revoked``
    (STATE-04). The task waits for another attempt, or for a person, as after any other loss.
    """
    task, attempt = snapshot.task, snapshot.attempt
    if task is None or attempt is None or task.tenant != command.tenant:
        return Refused(Code.UNKNOWN_ATTEMPT, "no such attempt of this task")
    if attempt.attempt_id != command.attempt_id or attempt.task_id != task.task_id:
        return Refused(Code.UNKNOWN_ATTEMPT, "no such attempt of this task")
    submitted = attempt.state is AttemptState.SUBMITTED
    if task.current_attempt_id != attempt.attempt_id or not (
        submitted or attempt.state in _RENEWABLE
    ):
        if isinstance(command, RevokeFromNode):
            return Refused(Code.WRONG_STATE, "the attempt has ended")
        return Answered(
            Reply(
                "ended",
                task_id=task.task_id,
                task_state=task.state,
                attempt_state=attempt.state,
            ),
            None,
        )
    message = command.message
    if isinstance(command, RevokeFromNode) and message is None:
        if not submitted:
            return Refused(Code.WRONG_STATE, "its lease runs out by itself")
        message = "the node's process has ended"
    state = AttemptState.CANCELLED if submitted else AttemptState.EXPIRED
    return _end(
        command, snapshot, (task, attempt), state, Reason.REVOKED, minted, policy, message=message
    )


def _end(
    command: Expire | Revoke | RevokeFromNode,
    snapshot: Snapshot,
    found: tuple[TaskRow, AttemptRow],
    state: AttemptState,
    reason: Reason,
    minted: Minted,
    policy: LeasePolicy,
    *,
    message: str | None = None,
    past_deadline: bool = False,
) -> Accepted:
    """The attempt ends without a word of its executor's, and its task goes on as after a loss."""
    task, attempt = found
    change = consequence(
        task,
        End.NOT_TAKEN if attempt.state is AttemptState.SUBMITTED else End.LOST,
        policy,
        minted.jitter,
        past_deadline=past_deadline,
    )
    events: tuple[Happened, ...] = (
        attempt_became(
            task,
            attempt,
            state,
            event_id=minted.event_ids[0],
            epoch=snapshot.epoch,
            actor=command.actor,
            reason=reason,
            retry_delay=change.delay,
        ),
    )
    if change.state is not task.state:
        events += (
            task_became(
                task,
                change.state,
                event_id=minted.event_ids[1],
                epoch=snapshot.epoch,
                actor=command.actor,
                reason=change.reason,
            ),
        )
    return Accepted(
        reads=reads_of(snapshot, task, attempt),
        reply=Reply("applied", task_id=task.task_id, task_state=change.state, attempt_state=state),
        writes=(
            AttemptChanged(
                attempt.attempt_id, state, reason, message, attempt.sequence + 1, change.delay
            ),
            change,
        ),
        events=events,
    )


def _expire_waiting(
    command: Expire, snapshot: Snapshot, task: TaskRow, now: int, minted: Minted
) -> Decision:
    if task.state not in (TaskState.OPEN, TaskState.HELD):
        return Refused(Code.WRONG_STATE, "the task has ended")
    if task.deadline is None or task.deadline > now:
        return Refused(Code.WRONG_STATE, "the deadline has not passed")
    return Accepted(
        reads=replace(reads_of(snapshot, task), deadline_passed=True),
        reply=Reply("applied", task_id=task.task_id, task_state=TaskState.EXPIRED),
        writes=(ended(task, TaskState.EXPIRED, Reason.DEADLINE_PASSED, None),),
        events=(
            task_became(
                task,
                TaskState.EXPIRED,
                event_id=minted.event_ids[0],
                epoch=snapshot.epoch,
                actor=command.actor,
                reason=Reason.DEADLINE_PASSED,
            ),
        ),
    )
