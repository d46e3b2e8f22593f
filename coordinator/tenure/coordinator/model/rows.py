"""The rows of the commit model, and what a command finds there before it is decided."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tenure.contract.ids import (
    AttemptId,
    CommandId,
    IncarnationId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import NodeState
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
from tenure.coordinator.core.limits import bucket
from tenure.coordinator.core.rows import (
    AttemptRow,
    IncarnationRow,
    ProfileRow,
    ReceiptRow,
    ResourceAmounts,
    TaskRow,
    TaskTypeRow,
    TenantRow,
)
from tenure.coordinator.core.snapshot import Snapshot, StoredCommand


@dataclass(frozen=True, slots=True)
class Reservation:
    """What an attempt holds until it ends."""

    tenant: TenantId
    type: str
    concurrency_key: str | None
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
        tenant=None if task is None else counted(rows, task.tenant),
        attempt=rows.attempts.get(command.attempt_id) if isinstance(command, Allocate) else None,
        incarnation=(
            rows.incarnations.get(command.incarnation) if isinstance(command, Allocate) else None
        ),
        fleet=fleet(rows, command.tenant) if isinstance(command, HoldRejected) else None,
    )


def counted(rows: Rows, name: TenantId) -> TenantRow | None:
    """A tenant with what runs under its limits."""
    tenant = rows.tenants.get(name)
    if tenant is None or not tenant.limits:
        return tenant
    running = Counter(
        place
        for held in rows.reservations.values()
        for limit in tenant.limits
        if held.tenant == name
        and (place := bucket(limit, held.type, held.concurrency_key)) is not None
    )
    return replace(tenant, running=dict(running))


def fleet(rows: Rows, tenant: TenantId) -> tuple[IncarnationRow, ...]:
    return tuple(
        row
        for _, row in sorted(rows.incarnations.items())
        if row.tenant == tenant and row.state is NodeState.ACTIVE
    )
