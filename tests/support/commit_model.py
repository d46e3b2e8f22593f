"""The commit model: the rows of a small authority in memory, and the guards of the commit.

It holds rows and guards and no rule, so that the real decisions can be explored from every
situation without a database. For exploration and parity only: whatever is about durability, locks
or the broker runs on real servers. A guard or a kind of write that it does not know is an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import assert_never

from tenure.contract.ids import (
    AttemptId,
    CommandId,
    IncarnationId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import (
    TERMINAL_ATTEMPT_STATES,
    AttemptState,
    NodeState,
    TaskState,
)
from tenure.coordinator.core.commands import (
    Allocate,
    AnyCommand,
    AttemptCommand,
    ChangeNode,
    CloseReview,
    Deliver,
    Expire,
    HoldRejected,
    MoveProfile,
    OpenReview,
    Quarantine,
    RefuseIntake,
    Register,
    Renew,
    Revoke,
    RevokeFromNode,
    Submit,
    TakeIn,
)
from tenure.coordinator.core.decisions import (
    Accepted,
    AttemptChanged,
    AttemptCreated,
    IncarnationChanged,
    IncarnationCreated,
    IntakeDecided,
    LeaseRenewed,
    NodeQuarantined,
    Reads,
    ReceiptRecorded,
    ReviewChanged,
    TaskChanged,
    TaskCreated,
    Write,
)
from tenure.coordinator.core.rows import (
    AttemptRow,
    IncarnationRow,
    ProfileRow,
    ReceiptRow,
    ResourceAmounts,
    RunProfile,
    TaskRow,
    TaskTypeRow,
    TenantRow,
)
from tenure.coordinator.core.snapshot import Snapshot, StoredCommand
from tenure.coordinator.store.commit import NOT_STORED, ItemOutcome

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


@dataclass(frozen=True, slots=True)
class Reservation:
    """What an attempt holds until it ends."""

    incarnation: IncarnationId
    amounts: ResourceAmounts
    cost_minor: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Everything the authority has stored. Mappings are never changed in place."""

    now: int
    epoch: int = 1
    confirmed: bool = True
    policy_version: int = 1
    tasks: Mapping[TaskId, TaskRow] = field(default_factory=dict)
    profile_of: Mapping[TaskId, ProfileRow] = field(default_factory=dict)
    attempts: Mapping[AttemptId, AttemptRow] = field(default_factory=dict)
    incarnations: Mapping[IncarnationId, IncarnationRow] = field(default_factory=dict)
    nodes: Mapping[tuple[TenantId, NodeId], IncarnationId | None] = field(default_factory=dict)
    quarantined: frozenset[tuple[TenantId, NodeId]] = frozenset()
    receipts: Mapping[tuple[AttemptId, bytes], ReceiptRow] = field(default_factory=dict)
    reservations: Mapping[AttemptId, Reservation] = field(default_factory=dict)
    commands: Mapping[CommandId, StoredCommand] = field(default_factory=dict)
    tenants: Mapping[TenantId, TenantRow] = field(default_factory=dict)
    task_types: Mapping[tuple[TenantId, str], TaskTypeRow] = field(default_factory=dict)
    profiles: Mapping[tuple[TenantId, str], ProfileRow] = field(default_factory=dict)
    intake: Mapping[int, str] = field(default_factory=dict)


def load(rows: Rows, command: AnyCommand) -> Snapshot:
    """What the statements of ``store.load`` give for ``command``."""
    stored = rows.commands.get(command.command_id)
    epoch = rows.epoch if rows.confirmed else 0
    match command:
        case TakeIn() | RefuseIntake():
            return Snapshot(
                epoch=epoch,
                command=stored if isinstance(command, TakeIn) else None,
                task_type=(
                    rows.task_types.get((command.tenant, command.type))
                    if isinstance(command, TakeIn)
                    else None
                ),
                intake_waiting=rows.intake.get(command.intake_id) == "waiting",
            )
        case Submit():
            return Snapshot(
                epoch=epoch,
                command=stored,
                task_type=rows.task_types.get((command.tenant, command.type)),
            )
        case Allocate() | HoldRejected():
            return _load_allocation(rows, command, epoch)
        case Register() | ChangeNode() | Quarantine() | OpenReview() | CloseReview():
            return _load_node(rows, command, epoch)
        case _:
            task = rows.tasks.get(command.task_id)
            attempt_id = None if task is None else task.current_attempt_id
            if isinstance(command, MoveProfile) and task is not None:
                task = replace(task, profile=rows.profile_of[task.task_id])
            if isinstance(command, AttemptCommand | Revoke | RevokeFromNode):
                attempt_id = command.attempt_id
            attempt = None if attempt_id is None else rows.attempts.get(attempt_id)
            receipt = None
            if isinstance(command, Deliver) and attempt is not None:
                receipt = rows.receipts.get((attempt.attempt_id, command.content_digest))
            return Snapshot(
                epoch=epoch,
                command=None if isinstance(command, Renew | Expire | RevokeFromNode) else stored,
                task=task,
                attempt=attempt,
                same_content_receipt=receipt,
            )


def _load_node(
    rows: Rows,
    command: Register | ChangeNode | Quarantine | OpenReview | CloseReview,
    epoch: int,
) -> Snapshot:
    name = (command.tenant, command.node_id)
    asked: IncarnationId | None = None
    if isinstance(command, ChangeNode | OpenReview | CloseReview):
        asked = command.incarnation
    current = rows.nodes.get(name)
    chosen = current if asked is None else asked
    node = None if chosen is None else rows.incarnations.get(chosen)
    registers = isinstance(command, Register)
    return Snapshot(
        epoch=epoch,
        command=rows.commands.get(command.command_id),
        incarnation=None if registers else node,
        previous_incarnation=node if registers else None,
        node_known=name in rows.nodes,
        node_quarantined=name in rows.quarantined,
        node_incarnation=current,
    )


def _load_allocation(rows: Rows, command: Allocate | HoldRejected, epoch: int) -> Snapshot:
    task = rows.tasks.get(command.task_id)
    return Snapshot(
        epoch=epoch,
        task=None if task is None else replace(task, profile=rows.profile_of[task.task_id]),
        tenant=None if task is None else rows.tenants.get(task.tenant),
        incarnation=(
            rows.incarnations.get(command.incarnation) if isinstance(command, Allocate) else None
        ),
        fleet=_fleet(rows, command.tenant) if isinstance(command, HoldRejected) else None,
    )


def _fleet(rows: Rows, tenant: TenantId) -> tuple[IncarnationRow, ...]:
    return tuple(
        row
        for _, row in sorted(rows.incarnations.items())
        if row.tenant == tenant and row.state is NodeState.ACTIVE
    )


def commit(rows: Rows, command: AnyCommand, accepted: Accepted) -> tuple[ItemOutcome, Rows]:
    """One item in a call of its own: what ``commit_batch`` answers, and the rows afterwards."""
    if not rows.confirmed:
        return ItemOutcome.AUTHORITY_UNCONFIRMED, rows
    stored = accepted.stored and not isinstance(command, NOT_STORED)
    before = rows.commands.get(command.command_id) if stored else None
    if before is not None:
        same = (before.fingerprint, before.tenant) == (command.fingerprint, command.tenant)
        return (ItemOutcome.SEEN_BEFORE if same else ItemOutcome.CONFLICT), rows
    at = decided_at(rows, accepted.reads)
    if not (
        versions_hold(rows, command, accepted)
        and _bounds_hold(rows, accepted.reads, at)
        and all(_fits(rows, write, at) for write in accepted.writes)
    ):
        return ItemOutcome.STALE, rows
    for write in accepted.writes:
        if isinstance(write, NodeQuarantined):
            rows = _quarantine(rows, command, accepted.reads, write)
        else:
            rows = _apply(rows, write, at)
    if stored:
        outcome = StoredCommand(
            command.command_id, command.tenant, command.fingerprint, accepted.reply, at
        )
        rows = replace(rows, commands={**rows.commands, command.command_id: outcome})
    return ItemOutcome.APPLIED, rows


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
        fleet = tuple((row.incarnation, row.version) for row in _fleet(rows, command.tenant))
        if reads.fleet != fleet:
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
        case AttemptCreated():
            node = rows.incarnations[write.incarnation]
            need = write.resources
            return (
                node.slots_used + need.slots <= node.slots
                and (node.cpu_millis is None or node.cpu_used + need.cpu_millis <= node.cpu_millis)
                and (
                    node.memory_bytes is None
                    or node.memory_used + need.memory_bytes <= node.memory_bytes
                )
                and (write.cost_minor == 0 or _affordable(rows, write))
            )
        case _:
            return True


def _affordable(rows: Rows, write: AttemptCreated) -> bool:
    tenant = rows.tenants[write.tenant]
    if tenant.budget_unlimited:
        return True
    used = tenant.held_minor + tenant.spent_minor + write.cost_minor
    return tenant.budget_minor is not None and used <= tenant.budget_minor


def _quarantine(rows: Rows, command: AnyCommand, reads: Reads, write: NodeQuarantined) -> Rows:
    assert reads.node_id is not None
    name = (command.tenant, reads.node_id)
    quarantined = rows.quarantined - {name} if write.reason is None else rows.quarantined | {name}
    return replace(rows, quarantined=quarantined)


def _apply(rows: Rows, write: Write, at: int) -> Rows:
    match write:
        case TaskCreated():
            return _create_task(rows, write, at)
        case TaskChanged():
            return _change_task(rows, write, at)
        case AttemptCreated():
            return _create_attempt(rows, write, at)
        case AttemptChanged():
            return _change_attempt(rows, write, at)
        case LeaseRenewed():
            row = rows.attempts[write.attempt_id]
            deadline = rows.tasks[row.task_id].deadline
            expires_at = at + row.lease_microseconds
            if deadline is not None:
                expires_at = min(expires_at, deadline)
            renewed = replace(row, decided_at=at, expires_at=max(row.expires_at, expires_at))
            return replace(rows, attempts={**rows.attempts, write.attempt_id: renewed})
        case ReceiptRecorded():
            receipt = ReceiptRow(
                receipt_id=write.receipt_id,
                attempt_id=write.attempt_id,
                admitted=write.code is None,
                code=write.code,
                admitted_at=at,
                state_version=write.state_version,
                generation=write.generation,
                content_digest=write.content_digest,
            )
            key = (write.attempt_id, write.content_digest)
            return replace(rows, receipts={**rows.receipts, key: receipt})
        case IncarnationCreated():
            return _create_incarnation(rows, write, at)
        case IncarnationChanged():
            node = rows.incarnations[write.incarnation]
            moved = replace(
                node, state=write.state, version=node.version + 1, sequence=write.sequence
            )
            nodes = dict(rows.nodes)
            name = (node.tenant, node.node_id)
            if write.state is NodeState.GONE and nodes.get(name) == write.incarnation:
                nodes[name] = None
            return replace(
                rows,
                incarnations={**rows.incarnations, write.incarnation: moved},
                nodes=nodes,
            )
        case ReviewChanged():
            reviewed = replace(
                rows.incarnations[write.incarnation], under_review=write.outcome is None
            )
            return replace(rows, incarnations={**rows.incarnations, write.incarnation: reviewed})
        case IntakeDecided():
            state = "taken" if write.code is None else "refused"
            return replace(rows, intake={**rows.intake, write.intake_id: state})
        case NodeQuarantined():
            raise AssertionError("needs the item's node")
        case _:
            assert_never(write)


def _create_task(rows: Rows, write: TaskCreated, at: int) -> Rows:
    task = TaskRow(
        task_id=write.task_id,
        tenant=write.tenant,
        type=write.type,
        state=TaskState.OPEN,
        version=1,
        sequence=1,
        generation=0,
        current_attempt_id=None,
        failures=0,
        losses=0,
        not_before=write.not_before,
        deadline=write.deadline,
        effects=write.effects,
        max_attempts=write.max_attempts,
        resources=write.resources,
        cancel_requested_at=None,
        cancel_delivered_at=None,
        rejected_by=(),
        decided_at=at,
    )
    profile = rows.profiles[write.tenant, write.profile_digest]
    return replace(
        rows,
        tasks={**rows.tasks, write.task_id: task},
        profile_of={**rows.profile_of, write.task_id: profile},
    )


def _change_task(rows: Rows, write: TaskChanged, at: int) -> Rows:
    task = rows.tasks[write.task_id]
    changed = replace(
        task,
        state=write.state,
        version=task.version + 1,
        sequence=write.sequence,
        generation=write.generation,
        current_attempt_id=write.current_attempt_id,
        failures=write.failures,
        losses=write.losses,
        not_before=write.not_before if write.delay is None else at + write.delay,
        cancel_requested_at=_first(write.cancel_requested, task.cancel_requested_at, at),
        cancel_delivered_at=_first(write.cancel_delivered, task.cancel_delivered_at, at),
        rejected_by=write.rejected_by,
        decided_at=at,
        resources=task.resources if write.resources is None else write.resources,
    )
    if write.profile is not None:
        changed = replace(
            changed, effects=write.profile.effects, max_attempts=write.profile.max_attempts
        )
        rows = replace(rows, profile_of={**rows.profile_of, write.task_id: write.profile})
    return replace(rows, tasks={**rows.tasks, write.task_id: changed})


def _first(happened: bool, stored: int | None, at: int) -> int | None:
    if not happened:
        return None
    return at if stored is None else stored


def _create_attempt(rows: Rows, write: AttemptCreated, at: int) -> Rows:
    deadline = rows.tasks[write.task_id].deadline
    expires_at = at + write.lease_microseconds
    attempt = AttemptRow(
        attempt_id=write.attempt_id,
        task_id=write.task_id,
        tenant=write.tenant,
        ordinal=write.ordinal,
        state=AttemptState.SUBMITTED,
        version=1,
        sequence=1,
        node_id=write.node_id,
        incarnation=write.incarnation,
        lease_id=write.lease_id,
        fencing_token=write.fencing_token,
        policy_version=write.policy_version,
        lease_microseconds=write.lease_microseconds,
        expires_at=expires_at if deadline is None else min(expires_at, deadline),
        decided_at=at,
    )
    held = Reservation(write.incarnation, write.resources, write.cost_minor)
    rows = replace(
        rows,
        attempts={**rows.attempts, write.attempt_id: attempt},
        reservations={**rows.reservations, write.attempt_id: held},
    )
    return _count(rows, held, write.tenant, 1, spent=0)


def _change_attempt(rows: Rows, write: AttemptChanged, at: int) -> Rows:
    row = rows.attempts[write.attempt_id]
    moved = replace(
        row, state=write.state, version=row.version + 1, sequence=write.sequence, decided_at=at
    )
    rows = replace(rows, attempts={**rows.attempts, write.attempt_id: moved})
    held = rows.reservations.get(write.attempt_id)
    if write.state not in TERMINAL_ATTEMPT_STATES or held is None:
        return rows
    rows = replace(
        rows,
        reservations={
            attempt_id: one
            for attempt_id, one in rows.reservations.items()
            if attempt_id != write.attempt_id
        },
    )
    spent = held.cost_minor if write.state is AttemptState.DELIVERED else 0
    return _count(rows, held, row.tenant, -1, spent=spent)


def _count(rows: Rows, held: Reservation, tenant_id: TenantId, sign: int, *, spent: int) -> Rows:
    node = rows.incarnations[held.incarnation]
    counted = replace(
        node,
        slots_used=node.slots_used + sign * held.amounts.slots,
        cpu_used=node.cpu_used + sign * held.amounts.cpu_millis,
        memory_used=node.memory_used + sign * held.amounts.memory_bytes,
    )
    tenant = rows.tenants[tenant_id]
    account = replace(
        tenant,
        held_minor=tenant.held_minor + sign * held.cost_minor,
        spent_minor=tenant.spent_minor + spent,
    )
    return replace(
        rows,
        incarnations={**rows.incarnations, held.incarnation: counted},
        tenants={**rows.tenants, tenant_id: account},
    )


def _create_incarnation(rows: Rows, write: IncarnationCreated, at: int) -> Rows:
    node = IncarnationRow(
        incarnation=write.incarnation,
        tenant=write.tenant,
        node_id=write.node_id,
        state=write.state,
        version=1,
        sequence=1,
        slots=write.slots,
        cpu_millis=write.cpu_millis,
        memory_bytes=write.memory_bytes,
        slots_used=0,
        cpu_used=0,
        memory_used=0,
        task_types=frozenset(declared.name for declared in write.task_types),
        last_seen_at=at,
        profiles=tuple(
            RunProfile(declared.name, declared.profile.digest, declared.profile.effects)
            for declared in write.task_types
        ),
    )
    task_types, profiles = dict(rows.task_types), dict(rows.profiles)
    for declared in write.task_types:
        profile = declared.profile
        profiles[write.tenant, profile.digest] = profile
        task_types[write.tenant, declared.name] = TaskTypeRow(
            name=declared.name,
            profile_digest=profile.digest,
            effects=profile.effects,
            max_attempts=profile.max_attempts,
            resources=profile.resources,
        )
    return replace(
        rows,
        incarnations={**rows.incarnations, write.incarnation: node},
        nodes={**rows.nodes, (write.tenant, write.node_id): write.incarnation},
        task_types=task_types,
        profiles=profiles,
    )
