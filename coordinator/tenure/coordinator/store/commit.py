"""Commit: one call of ``commit_batch``, in autocommit, for a whole batch of decisions.

The call's arguments are arrays of composite values, one array a kind of write, each value naming
its item by number. What comes back is one small row: an outcome and an instant for each item.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tenure.contract.ids import IncarnationId, TenantId
from tenure.contract.states import TERMINAL_ATTEMPT_STATES
from tenure.contract.topology import (
    DEFAULT_PREFIX,
    event_routing_key,
    events_exchange,
    node_queue,
    shard_of,
)
from tenure.coordinator.core.commands import NOT_STORED, AnyCommand, TaskTypeDeclared
from tenure.coordinator.core.decisions import (
    Accepted,
    AttemptChanged,
    AttemptCreated,
    Happened,
    IncarnationChanged,
    IncarnationCreated,
    IntakeDecided,
    ItemOutcome,
    LeaseRenewed,
    NodeQuarantined,
    ReceiptRecorded,
    ReviewChanged,
    TaskChanged,
    TaskCreated,
)
from tenure.coordinator.core.ranking import Placement, Score
from tenure.coordinator.encoding import encode
from tenure.coordinator.store.postgres import NEVER_CANCELLED, Asked, json_text
from tenure.coordinator.store.rows import (
    optional_datetime,
    reply_to_text,
    to_microseconds,
)

MAX_ITEMS: Final = 256
"""So that the answer stays below the 8 KB that a server sends before it commits."""

_COMMIT: Final = (
    "select outcomes, decided, clock from tenure.commit_batch("
    "$1::tenure.commit_item[], $2::tenure.task_insert[], $3::tenure.task_update[],"
    " $4::tenure.attempt_insert[], $5::tenure.attempt_update[], $6::tenure.lease_renewal[],"
    " $7::tenure.receipt_insert[], $8::tenure.incarnation_insert[],"
    " $9::tenure.incarnation_update[], $10::tenure.task_type_upsert[],"
    " $11::tenure.event_append[], $12::uuid[], $13::tenure.intake_update[])"
)


@dataclass(frozen=True, slots=True)
class Committed:
    """Outcomes in the order of the items; instants in microseconds."""

    outcomes: tuple[ItemOutcome, ...]
    decided: tuple[int, ...]
    now: int


async def commit(
    asked: Asked,
    items: Sequence[tuple[AnyCommand, Accepted]],
    *,
    seen: Sequence[IncarnationId] = (),
    prefix: str = DEFAULT_PREFIX,
) -> Committed:
    """Apply the items whose guards hold, and mark the incarnations ``seen``.

    At most ``MAX_ITEMS`` items. Raises what asyncpg raises; when the connection was lost the
    outcome is unknown, and repeating the same items is safe: what was applied is not applied again.
    """
    row = await asked.fetchrow(_COMMIT, *arguments(items, seen, prefix), timeout=NEVER_CANCELLED)
    assert row is not None
    return Committed(
        outcomes=tuple(ItemOutcome(value) for value in row["outcomes"] or ()),
        decided=tuple(to_microseconds(value) for value in row["decided"] or ()),
        now=to_microseconds(row["clock"]),
    )


def arguments(
    items: Sequence[tuple[AnyCommand, Accepted]],
    seen: Sequence[IncarnationId] = (),
    prefix: str = DEFAULT_PREFIX,
) -> tuple[list[Any], ...]:
    """The arguments of ``commit_batch``, in its order."""
    batch = _Batch(prefix)
    for number, (command, accepted) in enumerate(items, start=1):
        batch.add(number, command, accepted)
    return (
        batch.items,
        batch.task_inserts,
        batch.task_updates,
        batch.attempt_inserts,
        batch.attempt_updates,
        batch.lease_renewals,
        batch.receipts,
        batch.incarnation_inserts,
        batch.incarnation_updates,
        batch.task_types,
        batch.events,
        list(seen),
        batch.intake,
    )


class _Batch:
    """Collects the arrays. Tuples follow the fields of the types in the migration."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._exchange = events_exchange(prefix)
        self.items: list[Any] = []
        self.task_inserts: list[Any] = []
        self.task_updates: list[Any] = []
        self.attempt_inserts: list[Any] = []
        self.attempt_updates: list[Any] = []
        self.lease_renewals: list[Any] = []
        self.receipts: list[Any] = []
        self.incarnation_inserts: list[Any] = []
        self.incarnation_updates: list[Any] = []
        self.task_types: list[Any] = []
        self.events: list[Any] = []
        self.intake: list[Any] = []

    def add(self, item: int, command: AnyCommand, accepted: Accepted) -> None:
        reads = accepted.reads
        digest: bytes | None = None
        new_deadline: int | None = None
        quarantine: NodeQuarantined | None = None
        review: ReviewChanged | None = None
        for write in accepted.writes:
            match write:
                case TaskCreated():
                    new_deadline = write.deadline
                    self._task_created(item, write)
                case TaskChanged():
                    self._task_changed(item, write)
                case AttemptCreated():
                    self._attempt_created(item, write)
                case AttemptChanged():
                    ends = write.state in TERMINAL_ATTEMPT_STATES
                    self.attempt_updates.append(
                        (
                            item, write.attempt_id, write.state.value, write.reason,
                            write.message, write.sequence, write.retry_delay, ends,
                        )
                    )  # fmt: skip
                case LeaseRenewed():
                    self.lease_renewals.append((item, write.attempt_id, write.renewed_by))
                case ReceiptRecorded():
                    digest = write.content_digest
                    self._receipt(item, write)
                case IncarnationCreated():
                    self._incarnation_created(item, write)
                case IncarnationChanged():
                    self.incarnation_updates.append(
                        (item, write.incarnation, write.state.value, write.sequence)
                    )
                case NodeQuarantined():
                    quarantine = write
                case ReviewChanged():
                    review = write
                case IntakeDecided():
                    state = "taken" if write.code is None else "refused"
                    self.intake.append((item, write.intake_id, state, write.code, write.message))
        for event in accepted.events:
            self._event(item, event)
        stored = accepted.stored and not isinstance(command, NOT_STORED)
        self.items.append(
            (
                command.command_id if stored else None,
                command.tenant,
                command.fingerprint if stored else None,
                accepted.reply.outcome if stored else None,
                reply_to_text(accepted.reply) if stored else None,
                reads.epoch,
                reads.task_id,
                reads.task_version,
                reads.attempt_id,
                reads.attempt_version,
                reads.incarnation,
                reads.incarnation_version,
                reads.node_id,
                reads.node_incarnation,
                digest,
                reads.lease_live,
                reads.lease_over,
                reads.not_before_passed,
                reads.deadline_open,
                reads.deadline_passed,
                optional_datetime(new_deadline),
                reads.seen_within,
                reads.intake_id,
                reads.policy_version,
                reads.tenant_version,
                optional_datetime(reads.pause_over),
                _fleet(reads.fleet),
                reads.node_quarantined,
                None if quarantine is None else quarantine.reason or "",
                None if quarantine is None else quarantine.by,
                reads.silent_for,
                None if review is None else review.outcome or "",
                None if review is None else review.by,
                None if review is None else review.message,
            )
        )

    def _task_created(self, item: int, write: TaskCreated) -> None:
        self.task_inserts.append(
            (
                item, write.task_id, write.tenant, write.type, write.input_text, write.priority,
                optional_datetime(write.not_before), optional_datetime(write.deadline),
                write.effects.value, write.max_attempts, write.resources.cpu_millis,
                write.resources.memory_bytes, bytes.fromhex(write.profile_digest), write.retry_of,
                write.head_start, write.concurrency_key, write.traceparent,
                write.scope_text,
            )
        )  # fmt: skip

    def _task_changed(self, item: int, write: TaskChanged) -> None:
        profile, resources = write.profile, write.resources
        self.task_updates.append(
            (
                item, write.task_id, write.state.value, write.reason, write.message,
                write.sequence, write.generation, write.current_attempt_id, write.failures,
                write.losses, optional_datetime(write.not_before), write.delay,
                write.cancel_requested, write.cancel_delivered, list(write.rejected_by),
                None if profile is None else bytes.fromhex(profile.digest),
                profile and profile.effects.value, profile and profile.max_attempts,
                resources and resources.cpu_millis, resources and resources.memory_bytes,
            )
        )  # fmt: skip

    def _attempt_created(self, item: int, write: AttemptCreated) -> None:
        resources = write.resources
        scope = {
            "operations": write.operations,
            "objects": write.objects,
            "reservation": {
                "slots": resources.slots,
                "cpu_millis": resources.cpu_millis,
                "memory_bytes": resources.memory_bytes,
            },
        }
        self.attempt_inserts.append(
            (
                item, write.attempt_id, write.task_id, write.tenant, write.ordinal, write.node_id,
                write.incarnation, write.lease_id, write.fencing_token, write.policy_version,
                write.lease_microseconds, json_text(scope), write.dispatch_event_id,
                resources.slots, resources.cpu_millis, resources.memory_bytes, write.cost_minor,
                decision_text(write.placement), write.type, write.concurrency_key,
            )
        )  # fmt: skip

    def _receipt(self, item: int, write: ReceiptRecorded) -> None:
        self.receipts.append(
            (
                item, write.receipt_id, write.tenant, write.task_id, write.attempt_id,
                write.node_id, write.incarnation, write.code, write.state_version,
                write.generation, write.fencing_token, write.content_digest, write.output_text,
                write.enforced_text,
            )
        )  # fmt: skip

    def _incarnation_created(self, item: int, write: IncarnationCreated) -> None:
        executable = write.executable
        digest = None if executable is None else executable.digest
        inventory = None if executable is None else executable.inventory_digest
        at_once = dict(write.concurrency)
        self.incarnation_inserts.append(
            (
                item, write.incarnation, write.tenant, write.node_id, write.queue, write.software,
                write.protocol_version, write.slots, write.cpu_millis, write.memory_bytes,
                [declared.name for declared in write.task_types],
                [bytes.fromhex(declared.profile.digest) for declared in write.task_types],
                [declared.profile.effects.value for declared in write.task_types],
                write.facts_text, executable and executable.name,
                executable and executable.version, _optional_bytes(digest),
                _optional_bytes(inventory), write.state.value,
                [at_once.get(declared.name) for declared in write.task_types] if at_once else None,
            )
        )  # fmt: skip
        for declared in write.task_types:
            self.task_types.append(declared_type(item, write.tenant, declared))

    def _event(self, item: int, event: Happened) -> None:
        order_key = event.task_id or event.entity_id
        body = encode(event)
        common = (
            item, shard_of(order_key), order_key, event.tenant, event.entity_type.value,
            event.entity_id, event.attempt_id, event.epoch, event.sequence, event.event_id,
            event.next_state,
        )  # fmt: skip
        if event.to_node is not None:
            queue = node_queue(event.tenant, event.to_node, self._prefix)
            self.events.append((*common, True, "", queue, True, body))
        key = event_routing_key(event.tenant, event.entity_type, event.next_state)
        self.events.append((*common, False, self._exchange, key, False, body))


def decision_text(placement: Placement | None) -> str | None:
    """Why a node got a task, as it is kept with the attempt."""
    if placement is None:
        return None
    return json_text(
        {
            "score": {name: getattr(placement.score, name) for name in Score.__slots__},
            "eligible": placement.eligible,
            "nodes": placement.nodes,
        }
    )


def declared_type(item: int, tenant: TenantId, declared: TaskTypeDeclared) -> tuple[Any, ...]:
    """A value of ``task_type_upsert``."""
    profile = declared.profile
    wanted = profile.requirements
    return (
        item, tenant, declared.name, declared.input_schema, declared.output_schema,
        bytes.fromhex(profile.digest), declared.profile_text, profile.effects.value,
        profile.max_attempts, profile.resources.cpu_millis, profile.resources.memory_bytes,
        None if wanted.locations is None else sorted(wanted.locations), sorted(wanted.networks),
        json_text(dict(sorted(wanted.labels))), profile.match.value, profile.cost_minor,
        list(profile.operations), list(profile.objects),
    )  # fmt: skip


def _optional_bytes(digest: str | None) -> bytes | None:
    return None if digest is None else bytes.fromhex(digest)


def _fleet(fleet: tuple[tuple[IncarnationId, int], ...] | None) -> str | None:
    if fleet is None:
        return None
    return ",".join(f"{incarnation}:{version}" for incarnation, version in fleet)
