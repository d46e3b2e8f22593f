"""Everything one decision may depend on, besides its command and the time.

Units as in ``rows``.
"""

from dataclasses import dataclass

from tenure.contract.ids import CommandId, EventId, IncarnationId, TaskId, TenantId
from tenure.coordinator.core.decisions import Reply
from tenure.coordinator.core.rows import (
    AttemptRow,
    IncarnationRow,
    ReceiptRow,
    TaskRow,
    TaskTypeRow,
    TenantRow,
)


@dataclass(frozen=True, slots=True)
class StoredCommand:
    """Outcome of a command that was seen before."""

    command_id: CommandId
    tenant: TenantId
    fingerprint: bytes
    reply: Reply
    at: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything one decision may depend on, read by one statement."""

    epoch: int
    command: StoredCommand | None = None
    task_type: TaskTypeRow | None = None
    task: TaskRow | None = None
    tenant: TenantRow | None = None  # the task's, where a node is judged
    # The presented one, else the task's current one; of an allocation the one that it would make.
    attempt: AttemptRow | None = None
    incarnation: IncarnationRow | None = None
    fleet: tuple[IncarnationRow, ...] | None = None  # active ones of the tenant, by id
    previous_incarnation: IncarnationRow | None = None  # current holder of the node's name
    node_known: bool = False  # a node of that name has registered, or was spoken of
    node_quarantined: bool = False
    node_incarnation: IncarnationId | None = None  # the node's current one
    same_content_receipt: ReceiptRow | None = None
    enqueued_task_id: TaskId | None = None  # what the submission's key stands for in the intake
    intake_waiting: bool = False  # the command's row of the intake has not been decided


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """Versioned terms of leases and retries; a lease records the version it was granted under
    (LEASE-08). Durations in microseconds."""

    version: int = 1
    lease_microseconds: int = 30_000_000
    renewal_margin_microseconds: int | None = None
    """What is left of a lease when it is renewed, at the latest; None: two thirds of it, so that
    two renewals may be lost."""
    clock_tolerance_microseconds: int = 1_000_000
    node_silence_microseconds: int = 30_000_000
    retry_base_microseconds: int = 1_000_000
    retry_cap_microseconds: int = 300_000_000
    on_promotion: str = "continue"
    """After a promotion: `continue` opens the next epoch at once, `hold` waits for a person."""

    @property
    def renewal_interval_microseconds(self) -> int:
        """How often a lease is renewed, and a heartbeat sent."""
        margin = self.renewal_margin_microseconds
        return self.lease_microseconds - (
            self.lease_microseconds * 2 // 3 if margin is None else margin
        )


@dataclass(frozen=True, slots=True)
class Minted:
    """What a decision may need that is random: ids, and a number in [0, 1) for jitter."""

    event_ids: tuple[EventId, ...]
    jitter: float
