"""Load: one statement gives the snapshots of a whole batch, without locks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from asyncpg import Record

from tenure.contract.ids import AttemptId, TaskId, TenantId
from tenure.coordinator.core.commands import (
    Accept,
    Allocate,
    AttemptCommand,
    Cancel,
    ChangeNode,
    CloseReview,
    Deliver,
    Expire,
    Hold,
    HoldRejected,
    MoveProfile,
    OpenReview,
    Quarantine,
    RefuseIntake,
    Register,
    Release,
    Renew,
    Revoke,
    RevokeFromNode,
    Submit,
    Take,
    TakeIn,
    TryAgain,
)
from tenure.coordinator.core.rows import AttemptRow, IncarnationRow, ProfileRow, TaskRow
from tenure.coordinator.core.snapshot import Snapshot
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.limits import counted
from tenure.coordinator.store.postgres import Asked
from tenure.coordinator.store.rows import (
    attempt_row,
    incarnation_row,
    judged_task_row,
    optional_incarnation,
    optional_task_id,
    profile_row,
    receipt_row,
    stored_command,
    task_row,
    task_type_row,
    tenant_row,
    to_microseconds,
)

_QUERIES: Final = named_queries.load("load.sql")


@dataclass(frozen=True, slots=True)
class Given:
    """What goes with an attempt: input, scope of the lease, what the submission permits of it, the
    submission's trace, checkpoint of an earlier attempt."""

    input_text: str | None
    scope_text: str | None
    narrowed_text: str | None
    traceparent: str | None
    checkpoint_text: str | None


NOTHING_GIVEN: Final = Given(None, None, None, None, None)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Snapshots in the order of the commands. ``confirmed`` is False when the running server is not
    the one this authority was opened on: nothing may be decided then."""

    now: int
    confirmed: bool
    snapshots: tuple[Snapshot, ...]
    inputs: tuple[Given, ...] = ()


AboutTask: TypeAlias = (
    AttemptCommand
    | Cancel
    | Hold
    | Release
    | TryAgain
    | MoveProfile
    | Expire
    | Revoke
    | RevokeFromNode
)


AboutNode: TypeAlias = Register | ChangeNode | Quarantine | OpenReview | CloseReview


async def load_attempts(asked: Asked, commands: Sequence[AboutTask]) -> Loaded:
    """For commands about a task and one of its attempts."""
    records = await asked.fetch(
        _QUERIES["attempts"],
        [
            None if isinstance(c, Renew | Expire | RevokeFromNode) else c.command_id
            for c in commands
        ],
        [c.task_id for c in commands],
        [
            c.attempt_id if isinstance(c, AttemptCommand | Revoke | RevokeFromNode) else None
            for c in commands
        ],
        [c.content_digest if isinstance(c, Deliver) else None for c in commands],
        [isinstance(c, Take | Accept) for c in commands],
    )
    moves = [c.task_id for c in commands if isinstance(c, MoveProfile)]
    frozen = await _frozen_profiles(asked, moves) if moves else {}
    return _loaded(
        records,
        [
            Snapshot(
                epoch=record["epoch"] or 0,
                command=stored_command(record),
                task=_with_profile(task_row(record), frozen),
                attempt=attempt_row(record),
                same_content_receipt=receipt_row(record),
            )
            for record in records
        ],
        tuple(
            Given(
                input_text=record["input"],
                scope_text=record["scope"],
                narrowed_text=record["narrowed"],
                traceparent=None if record["scope"] is None else record["traceparent"],
                checkpoint_text=record["checkpoint"],
            )
            for record in records
        ),
    )


def _with_profile(task: TaskRow | None, frozen: Mapping[str, ProfileRow]) -> TaskRow | None:
    if task is None or not frozen:
        return task
    return replace(task, profile=frozen.get(task.task_id))


async def _frozen_profiles(asked: Asked, task_ids: Sequence[TaskId]) -> dict[str, ProfileRow]:
    """The profiles of tasks. Read after the tasks: what was moved in between has another version by
    then, and its guard does not hold."""
    records = await asked.fetch(_QUERIES["frozen_profiles"], task_ids)
    found = ((str(record["task_id"]), profile_row(record)) for record in records)
    return {task_id: profile for task_id, profile in found if profile is not None}


async def load_submissions(asked: Asked, commands: Sequence[Submit]) -> Loaded:
    """For submissions."""
    records = await asked.fetch(
        _QUERIES["submissions"],
        [c.command_id for c in commands],
        [c.tenant for c in commands],
        [c.type for c in commands],
    )
    return _loaded(
        records,
        [
            Snapshot(
                epoch=record["epoch"] or 0,
                command=stored_command(record),
                task_type=task_type_row(record),
                enqueued_task_id=optional_task_id(record["enqueued_task_id"]),
            )
            for record in records
        ],
    )


async def load_intake(asked: Asked, commands: Sequence[TakeIn | RefuseIntake]) -> Loaded:
    """For rows of the intake."""
    records = await asked.fetch(
        _QUERIES["intake"],
        [c.intake_id for c in commands],
        [c.command_id if isinstance(c, TakeIn) else None for c in commands],
        [c.tenant for c in commands],
        [c.type if isinstance(c, TakeIn) else None for c in commands],
    )
    return _loaded(
        records,
        [
            Snapshot(
                epoch=record["epoch"] or 0,
                command=stored_command(record),
                task_type=task_type_row(record),
                intake_waiting=record["intake_state"] == "waiting",
            )
            for record in records
        ],
    )


async def load_allocations(asked: Asked, commands: Sequence[Allocate | HoldRejected]) -> Loaded:
    """For allocations, and for holds of what every node of a fleet has rejected."""
    attempts = await _load_allocated(asked, commands)
    fleets = await _load_fleets(asked, commands)
    records = await asked.fetch(
        _QUERIES["allocations"],
        [c.task_id for c in commands],
        [c.incarnation if isinstance(c, Allocate) else None for c in commands],
    )
    tenants = {row.tenant: row for row in map(tenant_row, records) if row is not None}
    keys = {record["concurrency_key"] for record in records} - {None}
    tenants = await counted(asked, tenants, keys)
    return _loaded(
        records,
        [
            Snapshot(
                epoch=record["epoch"] or 0,
                task=judged_task_row(record),
                tenant=tenants.get(record["fact_tenant"]),
                attempt=(
                    attempts.get(command.attempt_id) if isinstance(command, Allocate) else None
                ),
                incarnation=incarnation_row(record),
                fleet=(
                    tuple(fleets.get(command.tenant, ()))
                    if isinstance(command, HoldRejected)
                    else None
                ),
            )
            for command, record in zip(commands, records, strict=True)
        ],
    )


async def _load_allocated(
    asked: Asked, commands: Sequence[Allocate | HoldRejected]
) -> dict[AttemptId, AttemptRow]:
    """What is there of the attempts that allocations would make: they are repetitions then."""
    wanted = [command.attempt_id for command in commands if isinstance(command, Allocate)]
    records = await asked.fetch(_QUERIES["allocated"], wanted) if wanted else []
    rows = [row for row in map(attempt_row, records) if row is not None]
    return {row.attempt_id: row for row in rows}


async def _load_fleets(
    asked: Asked, commands: Sequence[Allocate | HoldRejected]
) -> dict[TenantId, list[IncarnationRow]]:
    """Active incarnations of the tenants whose fleets a decision looks at: seldom any."""
    tenants = {command.tenant for command in commands if isinstance(command, HoldRejected)}
    fleets: dict[TenantId, list[IncarnationRow]] = {}
    if tenants:
        for record in await asked.fetch(_QUERIES["fleets"], sorted(tenants)):
            row = incarnation_row(record)
            assert row is not None
            fleets.setdefault(row.tenant, []).append(row)
    return fleets


async def load_nodes(asked: Asked, commands: Sequence[AboutNode]) -> Loaded:
    """For registrations and changes of nodes."""
    records = await asked.fetch(
        _QUERIES["nodes"],
        [c.command_id for c in commands],
        [
            c.incarnation if isinstance(c, ChangeNode | OpenReview | CloseReview) else None
            for c in commands
        ],
        [c.tenant for c in commands],
        [c.node_id for c in commands],
    )
    return _loaded(
        records,
        [
            Snapshot(
                epoch=record["epoch"] or 0,
                command=stored_command(record),
                incarnation=None if isinstance(command, Register) else incarnation_row(record),
                previous_incarnation=(
                    incarnation_row(record) if isinstance(command, Register) else None
                ),
                node_known=record["node_known"],
                node_quarantined=record["node_quarantined"],
                node_incarnation=optional_incarnation(record["node_incarnation"]),
            )
            for command, record in zip(commands, records, strict=True)
        ],
    )


def _loaded(
    records: Sequence[Record],
    snapshots: Sequence[Snapshot],
    inputs: tuple[Given, ...] = (),
) -> Loaded:
    return Loaded(
        now=to_microseconds(records[0]["clock"]),
        confirmed=all(record["epoch"] is not None for record in records),
        snapshots=tuple(snapshots),
        inputs=inputs,
    )
