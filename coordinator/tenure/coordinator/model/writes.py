"""What the commit model makes of its rows for each kind of write."""

from dataclasses import replace
from typing import assert_never

from tenure.contract.ids import TenantId
from tenure.contract.states import (
    TERMINAL_ATTEMPT_STATES,
    AttemptState,
    NodeState,
    TaskState,
)
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decisions import (
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
    ReceiptRow,
    RunProfile,
    TaskRow,
    TaskTypeRow,
)
from tenure.coordinator.model.limits import begin
from tenure.coordinator.model.rows import Reservation, Rows


def quarantine(rows: Rows, command: AnyCommand, reads: Reads, write: NodeQuarantined) -> Rows:
    assert reads.node_id is not None
    name = (command.tenant, reads.node_id)
    quarantined = rows.quarantined - {name} if write.reason is None else rows.quarantined | {name}
    return replace(rows, quarantined=quarantined)


def apply(rows: Rows, write: Write, at: int) -> Rows:
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
        concurrency_key=write.concurrency_key,
        traceparent=write.traceparent,
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
    return reserve(replace(rows, attempts={**rows.attempts, write.attempt_id: attempt}), write, at)


def reserve(rows: Rows, write: AttemptCreated, at: int) -> Rows:
    """What the attempt needs is no longer free, and it counts where starts are limited."""
    held = Reservation(
        write.tenant,
        write.type,
        write.concurrency_key,
        write.incarnation,
        write.resources,
        write.cost_minor,
    )
    rows = begin(rows, write, at)
    rows = replace(rows, reservations={**rows.reservations, write.attempt_id: held})
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
        running=_running(node, held.type, sign),
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


def _running(node: IncarnationRow, type_name: str, sign: int) -> dict[str, int]:
    """As it is loaded: types that it has any of, where it limits the concurrency of any."""
    if all(run.concurrency is None for run in node.profiles):
        return {}
    counted = {**node.running, type_name: node.running.get(type_name, 0) + sign}
    return {name: number for name, number in counted.items() if number}


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
            RunProfile(
                declared.name,
                declared.profile.digest,
                declared.profile.effects,
                dict(write.concurrency).get(declared.name),
            )
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
