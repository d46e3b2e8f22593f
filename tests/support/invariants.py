"""What must hold in every situation of the authority and for every step between two of them.

Written from the requirements, without a look at the rules: a rule and its oracle that are wrong
alike would be wrong twice. Every check raises ``Broken``, whose text begins with the requirement.
"""

from collections.abc import Mapping
from itertools import pairwise

from tenure.contract.ids import AttemptId, FencingToken, IncarnationId, TaskId
from tenure.contract.states import (
    ATTEMPT_MOVES,
    TERMINAL_ATTEMPT_STATES,
    TERMINAL_TASK_STATES,
    AttemptState,
    EntityType,
    NodeState,
    TaskState,
)
from tenure.coordinator.core.commands import (
    Allocate,
    AnyCommand,
    AttemptCommand,
    Cancel,
    Expire,
    Hold,
    HoldRejected,
    MoveProfile,
    Register,
    Renew,
    Revoke,
    RevokeFromNode,
    Take,
)
from tenure.coordinator.core.decisions import Accepted, Happened
from tenure.coordinator.core.rows import AttemptRow, IncarnationRow, TaskRow
from tenure.coordinator.model.rows import Rows
from tests.support.oracle import (
    broken,
    check,
    judge_allocation,
    judge_expiry,
    judge_report,
    judge_revocation,
)


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
        for run in node.profiles:
            check(
                run.concurrency is None
                or sum(one.type == run.type for one in held) <= run.concurrency,
                "SCHED-01: a node has no more of a type than it takes at once",
            )
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
        judge_report(before, command, accepted, after)
    elif isinstance(command, Allocate):
        judge_allocation(before, command, after, tokens)
    elif isinstance(command, Revoke | RevokeFromNode):
        judge_revocation(before, command, after)
    elif isinstance(command, Expire):
        judge_expiry(before, command, after)
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
            broken("STATE-02: attempts are never deleted")
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
            broken("STATE-02: tasks are never deleted")
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
