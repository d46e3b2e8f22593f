"""What a command may do, written from the requirements, without a look at the rules.

Every check raises ``Broken``, whose text begins with the requirement.
"""

from collections.abc import Mapping
from typing import NoReturn

from tenure.contract.ids import GENERATION_LIMIT, AttemptId, FencingToken, TaskId
from tenure.contract.states import (
    TERMINAL_ATTEMPT_STATES,
    AttemptState,
    Effects,
    LimitScope,
    NodeState,
    PauseScope,
    TaskState,
)
from tenure.coordinator.core.commands import (
    Allocate,
    AttemptCommand,
    Command,
    ConfirmCancel,
    Deliver,
    Expire,
    Fail,
    ReceiveCancel,
    Reject,
    Renew,
    Revoke,
    RevokeFromNode,
    Start,
    Take,
)
from tenure.coordinator.core.decisions import Accepted
from tenure.coordinator.core.outcomes import HANDED_BACK, LOSSES_UNTIL_HELD
from tenure.coordinator.core.rows import (
    AttemptRow,
    IncarnationRow,
    LimitRow,
    PauseRow,
    TaskRow,
    TenantRow,
)
from tenure.coordinator.model.rows import Rows

AUTHORIZED_STATES: dict[type[AttemptCommand], frozenset[AttemptState]] = {
    Start: frozenset({AttemptState.ACCEPTED}),
    Take: frozenset({AttemptState.SUBMITTED, AttemptState.ACCEPTED}),
    Deliver: frozenset({AttemptState.RUNNING}),
    Fail: frozenset({AttemptState.ACCEPTED, AttemptState.RUNNING}),
    Reject: frozenset({AttemptState.SUBMITTED}),
    ReceiveCancel: frozenset({AttemptState.ACCEPTED, AttemptState.RUNNING}),
    ConfirmCancel: frozenset({AttemptState.ACCEPTED, AttemptState.RUNNING}),
    Renew: frozenset({AttemptState.ACCEPTED, AttemptState.RUNNING}),
}
"""In which states of its attempt a report has an effect; of an acceptance: submitted."""


class Broken(AssertionError):
    """An invariant does not hold."""


def check(holds: object, what: str) -> None:
    """Raise ``Broken`` unless ``holds``."""
    if not holds:
        broken(what)


def broken(what: str) -> NoReturn:
    raise Broken(what)


def clock_for(rows: Rows, command: Command) -> int:
    """The clock as it counts for the rows of a command: it stands still for what was decided
    later by it."""
    task = rows.tasks.get(getattr(command, "task_id", TaskId("")))
    attempt = rows.attempts.get(getattr(command, "attempt_id", AttemptId("")))
    if attempt is None and task is not None and task.current_attempt_id is not None:
        attempt = rows.attempts[task.current_attempt_id]
    return max((rows.now, *(row.decided_at for row in (task, attempt) if row is not None)))


def authorized(rows: Rows, command: AttemptCommand, at: int) -> bool:
    """Whether the caller holds the task: its attempt is the current one, its own, with the token
    that was granted to it, and its lease has not run out (LEASE-02, LEASE-05)."""
    task, attempt = rows.tasks.get(command.task_id), rows.attempts.get(command.attempt_id)
    return (
        task is not None
        and attempt is not None
        and task.tenant == command.tenant == attempt.tenant
        and task.current_attempt_id == attempt.attempt_id
        and attempt.task_id == task.task_id
        and (attempt.node_id, attempt.incarnation) == (command.node_id, command.incarnation)
        and attempt.fencing_token == command.fencing_token
        and attempt.state not in TERMINAL_ATTEMPT_STATES
        and attempt.expires_at > at
    )


def has_effect(rows: Rows, command: AttemptCommand) -> bool:
    """Whether the report of an authorized caller has an effect (STATE-04)."""
    task, attempt = rows.tasks[command.task_id], rows.attempts[command.attempt_id]
    asked = task.cancel_requested_at is not None
    if isinstance(command, Start | Take) and asked:
        return False
    if isinstance(command, ConfirmCancel | ReceiveCancel) and not asked:
        return False
    states = AUTHORIZED_STATES.get(type(command), frozenset({AttemptState.SUBMITTED}))
    return attempt.state in states


def judge_report(before: Rows, command: AttemptCommand, accepted: Accepted, after: Rows) -> None:
    attempt = before.attempts.get(command.attempt_id)
    if attempt is None:
        broken("LEASE-02: a report about nothing changes nothing")
    at = clock_for(before, command)
    old, new = before.tasks[attempt.task_id], after.tasks[attempt.task_id]
    now_attempt = after.attempts[command.attempt_id]
    if not (authorized(before, command, at) and has_effect(before, command)):
        check(
            isinstance(command, Deliver) and accepted.reply.outcome == "recorded",
            "LEASE-02: without authority nothing changes but the evidence",
        )
        check(
            (attempt, old) == (now_attempt, new),
            "LATE-01: evidence moves nothing",
        )
        check(
            (attempt.node_id, attempt.incarnation, attempt.fencing_token)
            == (command.node_id, command.incarnation, command.fencing_token)
            and command.tenant == attempt.tenant,
            "LATE-02: evidence is what the holder of the attempt gave",
        )
        return
    check(accepted.reply.outcome == "applied", "LATE-01: what is authorized is applied")
    reply = accepted.reply
    check(
        reply.attempt_state in (None, now_attempt.state), "STATE-01: the caller is told what is so"
    )
    check(reply.task_state in (None, new.state), "STATE-01: the caller is told what is so")
    if reply.expires_at is not None:
        check(
            reply.expires_at <= now_attempt.expires_at,
            "LEASE-05: nobody is told of more authority than there is",
        )
    if isinstance(command, Renew):
        wanted = at + attempt.lease_microseconds
        if old.deadline is not None:
            wanted = min(wanted, old.deadline)
        check(
            now_attempt.expires_at == max(wanted, attempt.expires_at),
            "LEASE-06: a renewal gives one lease from now, within the deadline",
        )
        return
    check(
        now_attempt.expires_at == attempt.expires_at, "LEASE-06: nothing but a renewal gives time"
    )
    if old.cancel_requested_at is None:
        _judge_outcome(command, old, new, now_attempt)


def _judge_outcome(
    command: AttemptCommand, old: TaskRow, new: TaskRow, attempt: AttemptRow
) -> None:
    """STATE-05 and STATE-06 for reports, of a task that nobody has asked to cancel."""
    then = (new.state, new.failures - old.failures, new.losses - old.losses)
    match command:
        case Deliver():
            check(
                then == (TaskState.DELIVERED, 0, 0)
                and attempt.state is AttemptState.DELIVERED
                and new.current_attempt_id == attempt.attempt_id,
                "STATE-06: a delivery delivers",
            )
        case Reject():
            check(then == (TaskState.OPEN, 0, 0), "STATE-05: to reject is no failure")
            check(attempt.state is AttemptState.REJECTED, "STATE-04: a rejection rejects")
        case Fail() if command.retryable and command.reason in HANDED_BACK:
            _judge_loss(old, new)
        case Fail():
            check(attempt.state is AttemptState.FAILED, "STATE-04: a failure fails")
            last = not command.retryable or old.failures + 1 >= old.max_attempts
            check(
                then == (TaskState.FAILED if last else TaskState.OPEN, 1, 0),
                "STATE-05: a failure counts, and is tried again while attempts are left",
            )
            check(
                last or (new.not_before is not None and new.not_before >= new.decided_at),
                "STATE-05: the next attempt waits",
            )


def _judge_loss(old: TaskRow, new: TaskRow) -> None:
    if old.effects is Effects.UNGUARDED:
        check(new.state is TaskState.HELD, "STATE-05: a loss with possible effects holds the task")
        return
    held = old.losses + 1 >= LOSSES_UNTIL_HELD
    check(
        (new.state, new.failures - old.failures, new.losses - old.losses)
        == (TaskState.HELD if held else TaskState.OPEN, 0, 1),
        "STATE-05: a loss burns no attempt, and is counted",
    )


def _concerns(pause: PauseRow, task: TaskRow, node: IncarnationRow) -> bool:
    match pause.scope:
        case PauseScope.TYPE:
            return pause.name == task.type
        case PauseScope.NODE:
            return pause.name == node.node_id
        case PauseScope.LABEL:
            return pause.name in {f"{name}={value}" for name, value in node.facts.labels}
        case _:
            return True


def judge_allocation(
    before: Rows, command: Allocate, after: Rows, tokens: Mapping[TaskId, FencingToken]
) -> None:
    task, at = before.tasks[command.task_id], clock_for(before, command)
    node, tenant = before.incarnations[command.incarnation], before.tenants[task.tenant]
    attempt = after.attempts[command.attempt_id]
    check(command.attempt_id not in before.attempts, "LEASE-01: an attempt is a new one")
    check(
        task.state is TaskState.OPEN and task.current_attempt_id is None,
        "LEASE-01: only a waiting task is allocated",
    )
    check(
        after.tasks[command.task_id].current_attempt_id == command.attempt_id,
        "LEASE-01: the attempt becomes current",
    )
    check(task.not_before is None or task.not_before <= at, "SCHED-05: not before its time")
    check(task.deadline is None or task.deadline > at, "SCHED-04: not after its deadline")
    check(
        node.state is NodeState.ACTIVE and node.tenant == task.tenant and not node.under_review,
        "LEASE-07: only an active node of the tenant gets work",
    )
    check(at - node.last_seen_at < SILENCE, "LEASE-07: a silent node gets no work")
    check(
        not any(
            (pause.until is None or pause.until > at) and _concerns(pause, task, node)
            for pause in tenant.pauses
        ),
        "FLOW-01: nothing begins where it is paused",
    )
    for limit in tenant.limits:
        _judge_limit(limit, task, tenant, after, at)
    check(tenant.authorized, "SCHED-01: a suspended tenant's tasks wait")
    check(node.incarnation not in task.rejected_by, "STATE-05: who rejected it is not asked again")
    check(task.type in node.task_types, "SCHED-01: the node runs the type")
    check(
        attempt.fencing_token > tokens[task.task_id], "LEASE-04: every token is above all before it"
    )
    check(
        attempt.fencing_token
        == before.epoch * GENERATION_LIMIT + after.tasks[command.task_id].generation,
        "LEASE-04: a token is its epoch and generation",
    )
    check(attempt.policy_version == before.policy_version, "LEASE-08: by the policy in force")
    lease = at + attempt.lease_microseconds
    check(
        attempt.expires_at == (lease if task.deadline is None else min(lease, task.deadline)),
        "LEASE-01: authority lasts one lease, and ends with the deadline",
    )


def _judge_limit(limit: LimitRow, task: TaskRow, tenant: TenantRow, after: Rows, at: int) -> None:
    together = _together(limit, task.type, task.concurrency_key)
    if together is None:
        return
    running = sum(
        together == _together(limit, held.type, held.concurrency_key)
        for held in after.reservations.values()
    )
    check(
        limit.max_running is None or running <= limit.max_running,
        "FLOW-01: no more run at once than a limit lets",
    )
    if limit.interval is not None:
        lacking = max(0, tenant.full_at.get((limit.scope, limit.name, together), at) - at)
        check(
            lacking <= (limit.burst - 1) * limit.interval,
            "FLOW-01: no more start in a time than a limit lets",
        )


def _together(limit: LimitRow, type_name: str, key: str | None) -> str | None:
    """What tasks have to share to count together under ``limit``; None: it does not concern it."""
    if limit.scope is LimitScope.EACH_KEY:
        return key if limit.name in ("*", type_name) else None
    concerns = {LimitScope.TYPE: type_name, LimitScope.KEY: key}.get(limit.scope, limit.name)
    return "" if concerns == limit.name else None


def judge_expiry(before: Rows, command: Expire, after: Rows) -> None:
    old, new = before.tasks[command.task_id], after.tasks[command.task_id]
    at = clock_for(before, command)
    if old.current_attempt_id is None:
        check(new.state is TaskState.EXPIRED, "SCHED-04: a waiting task ends by its deadline")
        return
    attempt = before.attempts[old.current_attempt_id]
    ended = after.attempts[old.current_attempt_id]
    check(attempt.expires_at <= at, "LEASE-07: nothing but its expiry ends a live lease")
    taken = attempt.state is not AttemptState.SUBMITTED
    check(
        ended.state is (AttemptState.EXPIRED if taken else AttemptState.CANCELLED),
        "STATE-04: work that was taken expires; what nobody took is withdrawn",
    )
    if old.cancel_requested_at is not None:
        return
    if old.deadline is not None and old.deadline <= at:
        check(new.state is TaskState.EXPIRED, "SCHED-04: the deadline has passed")
    elif taken:
        _judge_loss(old, new)
    else:
        check(
            (new.state, new.failures, new.losses) == (TaskState.OPEN, old.failures, old.losses),
            "STATE-05: what nobody took costs nothing",
        )


def judge_revocation(before: Rows, command: Revoke | RevokeFromNode, after: Rows) -> None:
    old, new = before.tasks[command.task_id], after.tasks[command.task_id]
    attempt, ended = before.attempts[command.attempt_id], after.attempts[command.attempt_id]
    check(
        old.current_attempt_id == command.attempt_id, "LEASE-07: only authority there is is revoked"
    )
    taken = attempt.state is not AttemptState.SUBMITTED
    check(
        ended.state is (AttemptState.EXPIRED if taken else AttemptState.CANCELLED),
        "STATE-04: work that was taken expires; what nobody took is withdrawn",
    )
    check(
        not taken or command.message is not None,
        "LEASE-07: the end of a process does not end its leases",
    )
    if old.cancel_requested_at is None and taken:
        _judge_loss(old, new)
    elif old.cancel_requested_at is None:
        check(
            (new.state, new.failures, new.losses) == (TaskState.OPEN, old.failures, old.losses),
            "STATE-05: what nobody took costs nothing",
        )


SILENCE = 20_000_000
"""Microseconds after which a node gets no more work, in the worlds that are explored."""
