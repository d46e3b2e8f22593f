"""The commit model: the rows of a small authority in memory, and the guards of the commit.

It holds rows and guards and no rule, so that the real decisions can be explored from every
situation without a database, and handlers be tried without servers. For exploration, parity and the
testing kit only: no process loads it, and whatever is about durability, locks or the broker runs on
real servers. A guard or a kind of write that it does not know is an error.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

from tenure.contract.ids import IncarnationId
from tenure.contract.states import NodeState
from tenure.coordinator.core.commands import NOT_STORED, AnyCommand
from tenure.coordinator.core.decisions import (
    Accepted,
    AttemptCreated,
    ItemOutcome,
    NodeQuarantined,
    Reads,
    ReceiptRecorded,
    TaskCreated,
    Write,
)
from tenure.coordinator.core.snapshot import StoredCommand
from tenure.coordinator.model import writes
from tenure.coordinator.model.limits import within_limits
from tenure.coordinator.model.rows import Rows, fleet

GUARDS = frozenset(
    {
        "epoch", "task_id", "task_version", "attempt_id", "attempt_version", "incarnation",
        "incarnation_version", "node_id", "node_incarnation", "lease_live", "lease_over",
        "not_before_passed", "deadline_open", "deadline_passed", "tenant_version", "seen_within",
        "intake_id", "policy_version", "fleet", "silent_for", "pause_over", "node_quarantined",
    }
)  # fmt: skip
"""Fields of ``Reads`` that the model knows."""
assert frozenset(one.name for one in fields(Reads)) == GUARDS, "the model lacks a guard"


def commit(rows: Rows, command: AnyCommand, accepted: Accepted) -> tuple[ItemOutcome, Rows]:
    """One item in a call of its own: what ``commit_batch`` answers, and the rows afterwards."""
    (outcome,), rows = commit_batch(rows, [(command, accepted)])
    return outcome, rows


def commit_batch(
    rows: Rows,
    items: Sequence[tuple[AnyCommand, Accepted]],
    *,
    seen: Sequence[IncarnationId] = (),
) -> tuple[list[ItemOutcome], Rows]:
    """One call: what the database's function of that name answers, and the rows afterwards."""
    if not rows.confirmed:
        return [ItemOutcome.AUTHORITY_UNCONFIRMED for _ in items], rows
    rows = _with_names(rows, items)
    outcomes = [_judged(rows, command, accepted) for command, accepted in items]
    for number in _repeated(items):
        outcomes[number] = max(outcomes[number], ItemOutcome.STALE)
    given_out = rows  # what is free: as before the call, less what earlier items take
    ats = [decided_at(rows, accepted.reads) for _, accepted in items]
    for number, (_, accepted) in enumerate(items):
        for write in accepted.writes:
            if isinstance(write, AttemptCreated) and outcomes[number] is ItemOutcome.APPLIED:
                if _has_room(given_out, write, ats[number]):
                    given_out = writes.reserve(given_out, write, ats[number])
                else:
                    outcomes[number] = ItemOutcome.STALE
    for (command, accepted), outcome, at in zip(items, outcomes, ats, strict=True):
        if outcome is ItemOutcome.APPLIED:
            rows = _applied(rows, command, accepted, at)
    return outcomes, _seen(rows, seen)


def _with_names(rows: Rows, items: Sequence[tuple[AnyCommand, Accepted]]) -> Rows:
    """A node's name is known once an item has spoken of it, whatever became of the item."""
    names = {
        (command.tenant, accepted.reads.node_id): None
        for command, accepted in items
        if accepted.reads.node_id is not None
    }
    return (
        rows if names.keys() <= rows.nodes.keys() else replace(rows, nodes=names | {**rows.nodes})
    )


def _judged(rows: Rows, command: AnyCommand, accepted: Accepted) -> ItemOutcome:
    """What the guards say, before items are held against one another."""
    before = rows.commands.get(command.command_id) if _is_stored(command, accepted) else None
    if before is not None:
        same = (before.fingerprint, before.tenant) == (command.fingerprint, command.tenant)
        return ItemOutcome.SEEN_BEFORE if same else ItemOutcome.CONFLICT
    at = decided_at(rows, accepted.reads)
    holds = (
        versions_hold(rows, command, accepted)
        and _bounds_hold(rows, accepted.reads, at)
        and all(_fits(rows, write, at) for write in accepted.writes)
    )
    return ItemOutcome.APPLIED if holds else ItemOutcome.STALE


def _is_stored(command: AnyCommand, accepted: Accepted) -> bool:
    return accepted.stored and not isinstance(command, NOT_STORED)


def _repeated(items: Sequence[tuple[AnyCommand, Accepted]]) -> set[int]:
    """Items about what an item before them in the call is about."""
    repeated: set[int] = set()
    met: set[tuple[str, object]] = set()
    moved: set[IncarnationId] = set()  # read by an item that changes a node
    for number, (command, accepted) in enumerate(items):
        reads = accepted.reads
        about: list[tuple[str, object]] = [
            ("command", command.command_id if _is_stored(command, accepted) else None),
            ("task", reads.task_id),
            ("node", None if reads.node_id is None else (command.tenant, reads.node_id)),
            ("intake", reads.intake_id),
        ]
        named = {one for one in about if one[1] is not None}
        if met & named or reads.incarnation in moved:
            repeated.add(number)
        met |= named
        if reads.node_id is not None and reads.incarnation is not None:
            moved.add(reads.incarnation)
    return repeated


def _applied(rows: Rows, command: AnyCommand, accepted: Accepted, at: int) -> Rows:
    for write in accepted.writes:
        if isinstance(write, NodeQuarantined):
            rows = writes.quarantine(rows, command, accepted.reads, write)
        else:
            rows = writes.apply(rows, write, at)
    if not _is_stored(command, accepted):
        return rows
    outcome = StoredCommand(
        command.command_id, command.tenant, command.fingerprint, accepted.reply, at
    )
    return replace(rows, commands={**rows.commands, command.command_id: outcome})


def _seen(rows: Rows, seen: Sequence[IncarnationId]) -> Rows:
    """Incarnations that were heard of with the call; one that has ended is heard of no more."""
    incarnations = dict(rows.incarnations)
    for incarnation in seen:
        row = incarnations.get(incarnation)
        if row is not None and row.state is not NodeState.GONE:
            heard = max(row.last_seen_at, rows.now)
            incarnations[incarnation] = replace(row, last_seen_at=heard)
    return replace(rows, incarnations=incarnations) if seen else rows


def decided_at(rows: Rows, reads: Reads) -> int:
    """The clock of an item: it stands still for rows that were decided later."""
    task = None if reads.task_id is None else rows.tasks.get(reads.task_id)
    attempt = None if reads.attempt_id is None else rows.attempts.get(reads.attempt_id)
    return max((rows.now, *(row.decided_at for row in (task, attempt) if row is not None)))


def versions_hold(rows: Rows, command: AnyCommand, accepted: Accepted) -> bool:
    """Guards that time does not change. One that fails will never hold again in its epoch."""
    reads = accepted.reads
    if reads.epoch != rows.epoch:
        return False
    if reads.task_id is not None:
        task = rows.tasks.get(reads.task_id)
        if (None if task is None else task.version) != reads.task_version:
            return False
    if reads.attempt_id is not None:
        attempt = rows.attempts.get(reads.attempt_id)
        if (None if attempt is None else attempt.version) != reads.attempt_version:
            return False
    if reads.incarnation is not None:
        node = rows.incarnations.get(reads.incarnation)
        if (None if node is None else node.version) != reads.incarnation_version:
            return False
    if (
        reads.node_id is not None
        and rows.nodes.get((command.tenant, reads.node_id)) != reads.node_incarnation
    ):
        return False
    if reads.node_quarantined is not None and reads.node_id is not None:
        quarantined = (command.tenant, reads.node_id) in rows.quarantined
        if quarantined != reads.node_quarantined:
            return False
    if reads.tenant_version is not None:
        tenant = rows.tenants.get(command.tenant)
        if tenant is None or tenant.version != reads.tenant_version:
            return False
    if reads.intake_id is not None and rows.intake.get(reads.intake_id) != "waiting":
        return False
    if reads.policy_version is not None and reads.policy_version != rows.policy_version:
        return False
    if reads.fleet is not None:
        read = tuple((row.incarnation, row.version) for row in fleet(rows, command.tenant))
        if reads.fleet != read:
            return False
    return True


def _bounds_hold(rows: Rows, reads: Reads, at: int) -> bool:
    task = None if reads.task_id is None else rows.tasks.get(reads.task_id)
    attempt = None if reads.attempt_id is None else rows.attempts.get(reads.attempt_id)
    node = None if reads.incarnation is None else rows.incarnations.get(reads.incarnation)
    not_before = None if task is None else task.not_before
    deadline = None if task is None else task.deadline
    return not (
        (reads.lease_live and (attempt is None or attempt.expires_at <= at))
        or (reads.lease_over and (attempt is None or attempt.expires_at > at))
        or (reads.not_before_passed and not_before is not None and not_before > at)
        or (reads.deadline_open and deadline is not None and deadline <= at)
        or (reads.deadline_passed and (deadline is None or deadline > at))
        or (
            reads.seen_within is not None
            and (node is None or node.last_seen_at <= at - reads.seen_within)
        )
        or (reads.pause_over is not None and reads.pause_over > at)
        or (
            reads.silent_for is not None
            and (node is None or node.last_seen_at > at - reads.silent_for)
        )
    )


def _fits(rows: Rows, write: Write, at: int) -> bool:
    """Guards that come with a write."""
    match write:
        case TaskCreated():
            return write.deadline is None or write.deadline > at
        case ReceiptRecorded():
            return (write.attempt_id, write.content_digest) not in rows.receipts
        case _:
            return True


def _has_room(rows: Rows, write: AttemptCreated, at: int) -> bool:
    """Whether the node, the budget and the limits have what it takes."""
    node = rows.incarnations[write.incarnation]
    need = write.resources
    return (
        node.slots_used + need.slots <= node.slots
        and (node.cpu_millis is None or node.cpu_used + need.cpu_millis <= node.cpu_millis)
        and (node.memory_bytes is None or node.memory_used + need.memory_bytes <= node.memory_bytes)
        and all(
            node.running.get(run.type, 0) < run.concurrency
            for run in node.profiles
            if run.type == write.type and run.concurrency is not None
        )
        and (write.cost_minor == 0 or _affordable(rows, write))
        and within_limits(rows, write, at)
    )


def _affordable(rows: Rows, write: AttemptCreated) -> bool:
    tenant = rows.tenants[write.tenant]
    if tenant.budget_unlimited:
        return True
    used = tenant.held_minor + tenant.spent_minor + write.cost_minor
    return tenant.budget_minor is not None and used <= tenant.budget_minor
