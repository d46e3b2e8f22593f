"""What must hold in every situation of the authority and for every step between two of them.

Written from the requirements, without a look at the rules: a rule and its oracle that are wrong
alike would be wrong twice. Every check raises ``Broken``, whose text begins with the requirement.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import NoReturn

from tenure.contract.ids import GENERATION_LIMIT, AttemptId, FencingToken, IncarnationId, TaskId
from tenure.contract.states import (
    ATTEMPT_MOVES,
    TERMINAL_ATTEMPT_STATES,
    TERMINAL_TASK_STATES,
    AttemptState,
    Effects,
    EntityType,
    NodeState,
    TaskState,
)
from tenure.coordinator.core.commands import (
    Allocate,
    AnyCommand,
    AttemptCommand,
    Cancel,
    Command,
    ConfirmCancel,
    Deliver,
    Expire,
    Fail,
    Hold,
    HoldRejected,
    MoveProfile,
    ReceiveCancel,
    Register,
    Reject,
    Renew,
    Revoke,
    RevokeFromNode,
    Start,
    Take,
)
from tenure.coordinator.core.decisions import Accepted, Happened
from tenure.coordinator.core.outcomes import HANDED_BACK, LOSSES_UNTIL_HELD
from tenure.coordinator.core.rows import AttemptRow, IncarnationRow, TaskRow
from tests.support.commit_model import Rows

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
        _broken(what)


def _broken(what: str) -> NoReturn:
    raise Broken(what)


def judge_rows(rows: Rows) -> None:
    """State invariants."""
    open_attempts = {
        attempt.attempt_id
        for attempt in rows.attempts.values()
        if attempt.state not in TERMINAL_ATTEMPT_STATES
    }
    check(
        open_attempts == set(rows.reservations),
        "LEASE-01: reservations are held by open attempts and by no other",
    )
    for task in rows.tasks.values():
        _judge_task(rows, task, open_attempts)
    for node in rows.incarnations.values():
        held = [one for one in rows.reservations.values() if one.incarnation == node.incarnation]
        check(
            (node.slots_used, node.cpu_used, node.memory_used)
            == (
                sum(one.amounts.slots for one in held),
                sum(one.amounts.cpu_millis for one in held),
                sum(one.amounts.memory_bytes for one in held),
            ),
            "SCHED-01: a node's counters are what its reservations say",
        )
        check(node.slots_used <= node.slots, "SCHED-01: no node is oversold")
    for tenant in rows.tenants.values():
        held_minor = sum(one.cost_minor for one in rows.reservations.values())
        check(tenant.held_minor == held_minor, "SCHED-01: what is held is what attempts hold")
        check(
            tenant.budget_unlimited
            or tenant.held_minor + tenant.spent_minor <= (tenant.budget_minor or 0),
            "SCHED-01: a budget is not exceeded",
        )


def _judge_task(rows: Rows, task: TaskRow, open_attempts: set[AttemptId]) -> None:
    attempts = [one for one in rows.attempts.values() if one.task_id == task.task_id]
    active = [one.attempt_id for one in attempts if one.attempt_id in open_attempts]
    check(len(active) <= 1, "LEASE-01: a task has at most one attempt that has not ended")
    if active:
        check(
            task.current_attempt_id == active[0] and task.state is TaskState.OPEN,
            "STATE-01: an attempt that has not ended is the current one of an open task",
        )
    else:
        check(
            task.current_attempt_id is None or task.state is TaskState.DELIVERED,
            "STATE-01: an attempt that has ended is not current",
        )
    admitted = [
        receipt
        for receipt in rows.receipts.values()
        if receipt.admitted and rows.attempts[receipt.attempt_id].task_id == task.task_id
    ]
    delivered = [one.attempt_id for one in attempts if one.state is AttemptState.DELIVERED]
    check(len(admitted) <= 1, "LATE-02: a task has at most one active delivery")
    check(
        [one.attempt_id for one in admitted] == delivered
        and (task.state is TaskState.DELIVERED) == bool(delivered),
        "STATE-06: a task is delivered by the attempt whose receipt was admitted",
    )
    tokens = [one.fencing_token for one in attempts]
    check(len(set(tokens)) == len(tokens), "LEASE-04: no token is granted twice")
    check(task.failures <= task.max_attempts, "STATE-05: attempts are limited")


def judge_step(
    before: Rows,
    command: AnyCommand,
    accepted: Accepted,
    after: Rows,
    tokens: Mapping[TaskId, FencingToken],
) -> None:
    """Step invariants of one applied item. ``tokens``: the highest ever granted of each task,
    by this authority or by one whose history was lost."""
    _judge_attempts(before, command, accepted, after)
    _judge_tasks(before, command, accepted, after)
    _judge_streams(before, accepted, after)
    for key, receipt in before.receipts.items():
        check(after.receipts.get(key) == receipt, "LATE-04: a receipt never changes")
    for command_id, stored in before.commands.items():
        check(after.commands.get(command_id) == stored, "STATE-01: an outcome never changes")
    if isinstance(command, AttemptCommand):
        _judge_report(before, command, accepted, after)
    elif isinstance(command, Allocate):
        _judge_allocation(before, command, after, tokens)
    elif isinstance(command, Revoke | RevokeFromNode):
        _judge_revocation(before, command, after)
    elif isinstance(command, Expire):
        _judge_expiry(before, command, after)
    elif isinstance(command, Hold | HoldRejected):
        task = after.tasks[command.task_id]
        check(task.state is TaskState.HELD, "STATE-06: a held task is held")
    elif isinstance(command, Cancel):
        task = after.tasks[command.task_id]
        check(
            task.state is TaskState.CANCELLED or task.cancel_requested_at is not None,
            "STATE-06: a cancellation is done or requested",
        )
    elif isinstance(command, Register):
        check(
            after.nodes[command.tenant, command.node_id] == command.incarnation,
            "LEASE-07: the latest start of a node has its name",
        )
    for name, old in before.incarnations.items():
        new = after.incarnations[name]
        check(
            old.state is not NodeState.GONE
            or (old.state, old.sequence) == (new.state, new.sequence),
            "LEASE-07: an incarnation that has ended stays so",
        )
    for node in after.incarnations.values():
        quarantined = (node.tenant, node.node_id) in after.quarantined
        check(
            node.state is NodeState.GONE or (node.state is NodeState.QUARANTINED) == quarantined,
            "INC-06: a quarantined node's incarnation is, and no other",
        )
    live = [node for node in after.incarnations.values() if node.state is not NodeState.GONE]
    check(
        len({node.node_id for node in live}) == len(live),
        "LEASE-07: a node has one incarnation at most",
    )


def _judge_attempts(before: Rows, command: AnyCommand, accepted: Accepted, after: Rows) -> None:
    for attempt_id, old in before.attempts.items():
        new = after.attempts.get(attempt_id)
        if new is None:
            _broken("STATE-02: attempts are never deleted")
        check(
            (old.fencing_token, old.node_id, old.incarnation, old.lease_id, old.task_id)
            == (new.fencing_token, new.node_id, new.incarnation, new.lease_id, new.task_id),
            "LEASE-03: whose lease it is never changes",
        )
        if old == new:
            continue
        check(old.state not in TERMINAL_ATTEMPT_STATES, "STATE-02: an ended attempt never changes")
        check(new.decided_at >= old.decided_at, "LEASE-05: time never runs back for an attempt")
        if isinstance(command, AttemptCommand):
            check(attempt_id == command.attempt_id, "LEASE-02: a report moves its own attempt")
        if old.state is new.state:
            check(isinstance(command, Renew), "STATE-04: only a renewal leaves an attempt's state")
            continue
        path = [old.state, new.state]
        if isinstance(command, Take) and old.state is AttemptState.SUBMITTED:
            path.insert(1, AttemptState.ACCEPTED)
        check(
            all(then in ATTEMPT_MOVES[one] for one, then in pairwise(path)),
            f"STATE-04: {old.state.value} to {new.state.value} is no move",
        )
        check(
            new.sequence == old.sequence + len(path) - 1, "EVENT-02: every move of an attempt tells"
        )


def _judge_tasks(before: Rows, command: AnyCommand, accepted: Accepted, after: Rows) -> None:
    for task_id, old in before.tasks.items():
        new = after.tasks.get(task_id)
        if new is None:
            _broken("STATE-02: tasks are never deleted")
        if old == new:
            continue
        check(task_id == getattr(command, "task_id", None), "LEASE-02: a command moves its task")
        check(command.tenant == old.tenant, "LEASE-02: a command moves its own tenant's tasks")
        check(old.state not in TERMINAL_TASK_STATES, "STATE-02: an ended task never changes")
        check(new.version == old.version + 1, "STATE-01: every change raises the version")
        check(new.decided_at >= old.decided_at, "LEASE-05: time never runs back for a task")
        check(
            new.state is old.state or new.sequence == old.sequence + 1,
            "EVENT-02: every move of a task tells",
        )
        check(
            new.generation == old.generation + isinstance(command, Allocate),
            "LEASE-04: the generation grows with every allocation, and with nothing else",
        )
        check(
            old.cancel_requested_at in (None, new.cancel_requested_at),
            "STATE-06: nobody forgets a cancellation",
        )
        check(
            old.effects is new.effects
            or (isinstance(command, MoveProfile) and old.current_attempt_id is None),
            "SCHED-01: a profile is frozen, but for a waiting task that an operator moves",
        )
        check(
            new.cancel_delivered_at is None or new.cancel_requested_at is not None,
            "STATE-06: only what was requested is delivered",
        )
        if new.state is TaskState.EXPIRED:
            check(
                new.deadline is not None and new.deadline <= new.decided_at,
                "SCHED-04: a task expires by its deadline alone",
            )
        if new.state is TaskState.CANCELLED:
            check(new.cancel_requested_at is not None, "STATE-06: nothing is cancelled unasked")
        if old.cancel_requested_at is not None and old.current_attempt_id is not None:
            ended = new.current_attempt_id is None
            check(
                not ended or new.state is TaskState.CANCELLED,
                "STATE-06: whatever ends an attempt whose cancellation was requested, but for a"
                " delivery, ends the task cancelled",
            )


def _judge_streams(before: Rows, accepted: Accepted, after: Rows) -> None:
    heads: dict[tuple[EntityType, str], tuple[int, str | None]] = {}
    for event in accepted.events:
        check(event.epoch == before.epoch, "EVENT-01: an event carries the epoch it happened in")
        stream = (event.entity_type, event.entity_id)
        sequence, state = heads.get(stream) or _head(before, event)
        check(event.sequence == sequence + 1, "EVENT-02: a stream has no holes")
        check(event.previous_state == state, "EVENT-02: an event begins where the last one ended")
        heads[stream] = (event.sequence, event.next_state)
    for kind, ids in (
        (EntityType.TASK, after.tasks),
        (EntityType.ATTEMPT, after.attempts),
        (EntityType.NODE, after.incarnations),
    ):
        for entity_id in ids:
            told = heads.get((kind, entity_id))
            stored = _stored(after, kind, entity_id)
            if told is not None or stored != _stored(before, kind, entity_id):
                check(told == stored, "EVENT-02: what is told is what is stored")


def _head(rows: Rows, event: Happened) -> tuple[int, str | None]:
    return _stored(rows, event.entity_type, event.entity_id) or (0, None)


def _stored(rows: Rows, kind: EntityType, entity_id: str) -> tuple[int, str] | None:
    row: TaskRow | AttemptRow | IncarnationRow | None
    match kind:
        case EntityType.TASK:
            row = rows.tasks.get(TaskId(entity_id))
        case EntityType.ATTEMPT:
            row = rows.attempts.get(AttemptId(entity_id))
        case EntityType.NODE:
            row = rows.incarnations.get(IncarnationId(entity_id))
    return None if row is None else (row.sequence, row.state.value)


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


def _judge_report(before: Rows, command: AttemptCommand, accepted: Accepted, after: Rows) -> None:
    attempt = before.attempts.get(command.attempt_id)
    if attempt is None:
        _broken("LEASE-02: a report about nothing changes nothing")
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


def _judge_allocation(
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
        not any(pause.until is None or pause.until > at for pause in tenant.pauses),
        "FLOW-01: nothing begins where it is paused",
    )
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


def _judge_expiry(before: Rows, command: Expire, after: Rows) -> None:
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


def _judge_revocation(before: Rows, command: Revoke | RevokeFromNode, after: Rows) -> None:
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
