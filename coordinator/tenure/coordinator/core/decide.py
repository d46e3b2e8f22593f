"""The one entry: a command and what was loaded, in; a decision, out. Pure."""

from dataclasses import replace
from typing import assert_never

from tenure.contract.codes import Code
from tenure.coordinator.core import (
    attempt,
    enqueued,
    hold,
    lease,
    node,
    profile_move,
    receipt,
    task,
)
from tenure.coordinator.core.commands import (
    Accept,
    Allocate,
    AnyCommand,
    Cancel,
    ChangeNode,
    CloseReview,
    ConfirmCancel,
    Deliver,
    Expire,
    Fail,
    Hold,
    HoldRejected,
    MoveProfile,
    OpenReview,
    Quarantine,
    ReceiveCancel,
    RefuseIntake,
    Register,
    Reject,
    Release,
    Renew,
    Revoke,
    RevokeFromNode,
    Start,
    Submit,
    Take,
    TakeIn,
    TryAgain,
)
from tenure.coordinator.core.decisions import Accepted, Answered, Decision, Refused, TaskChanged
from tenure.coordinator.core.snapshot import LeasePolicy, Minted, Snapshot

EVENTS_PER_COMMAND = 2
"""How many event ids a decision may need at most."""


def decide(
    command: AnyCommand, snapshot: Snapshot, now: int, minted: Minted, policy: LeasePolicy
) -> Decision:
    """Decide one command. ``now`` is the authority's clock as loaded, in microseconds.

    A command that was seen before gets its first answer, before anything else is looked at, so that
    repeating after an unknown outcome is safe even when the authority is gone by then.

    Time never runs back for a task: a clock that was set back stands still for the rows that were
    decided later by it, here as in the commit.
    """
    # What is repeated there is the submission, not the row: a row is decided once.
    if isinstance(command, TakeIn):
        return enqueued.take_in(command, snapshot, now, minted)
    stored = snapshot.command
    if stored is not None:
        if stored.fingerprint == command.fingerprint and stored.tenant == command.tenant:
            return Answered(stored.reply, stored.at)
        return Refused(
            Code.IDEMPOTENCY_CONFLICT, "this key or id was used before with other content"
        )
    decided = (row.decided_at for row in (snapshot.task, snapshot.attempt) if row is not None)
    now = max((now, *decided))
    decision = _decide(command, snapshot, now, minted, policy)
    if isinstance(decision, Accepted) and any(
        isinstance(write, TaskChanged) and write.delay is not None for write in decision.writes
    ):
        # The pause was drawn by the policy's terms, so these have to be in force still.
        reads = replace(decision.reads, policy_version=policy.version)
        return replace(decision, reads=reads)
    return decision


def _decide(
    command: AnyCommand, snapshot: Snapshot, now: int, minted: Minted, policy: LeasePolicy
) -> Decision:
    match command:
        case Submit():
            return task.submit(command, snapshot, now, minted)
        case RefuseIntake():
            return enqueued.refuse(command, snapshot)
        case Cancel():
            return task.cancel(command, snapshot, minted)
        case Hold():
            return hold.hold(command, snapshot, minted)
        case MoveProfile():
            return profile_move.move_profile(command, snapshot, minted)
        case Release():
            return hold.release(command, snapshot, minted)
        case TryAgain():
            return hold.try_again(command, snapshot, minted)
        case HoldRejected():
            return hold.hold_rejected(command, snapshot, minted)
        case Accept():
            return attempt.accept(command, snapshot, now, minted)
        case Start():
            return attempt.start(command, snapshot, now, minted)
        case Take():
            return attempt.take(command, snapshot, now, minted)
        case Deliver():
            return receipt.deliver(command, snapshot, now, minted, policy)
        case Fail():
            return attempt.fail(command, snapshot, now, minted, policy)
        case Reject():
            return attempt.reject(command, snapshot, now, minted, policy)
        case ReceiveCancel():
            return attempt.receive_cancel(command, snapshot, now, minted)
        case ConfirmCancel():
            return attempt.confirm_cancel(command, snapshot, now, minted, policy)
        case Renew():
            return lease.renew(command, snapshot, now)
        case Allocate():
            return lease.allocate(command, snapshot, now, minted, policy)
        case Expire():
            return lease.expire(command, snapshot, now, minted, policy)
        case Revoke() | RevokeFromNode():
            return lease.revoke(command, snapshot, minted, policy)
        case Register():
            return node.register(command, snapshot, minted)
        case ChangeNode():
            return node.change_node(command, snapshot, minted)
        case Quarantine():
            return node.quarantine(command, snapshot, minted)
        case OpenReview():
            return node.open_review(command, snapshot, now, minted, policy)
        case CloseReview():
            return node.close_review(command, snapshot, now, minted, policy)
        case _:
            assert_never(command)
