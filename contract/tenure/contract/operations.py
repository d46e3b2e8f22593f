"""What operators ask about authority: the policy of leases, epochs, recovery. HTTP under
``/v1/policies`` and ``/v1/authority``."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tenure.contract.ids import EPOCH_LIMIT
from tenure.contract.reports import Frozen, Token, Uuid
from tenure.contract.states import AttemptState, EntityType, TaskState

Seconds = Annotated[float, Field(gt=0, le=86_400)]
OnPromotion = Literal["continue", "hold"]
Why = Annotated[str, Field(min_length=1, max_length=2000)]


class PolicyView(Frozen):
    """One version of the terms of leases and retries (LEASE-08). Durations in seconds."""

    version: int
    lease_seconds: float
    renewal_margin_seconds: float | None = Field(
        description="what is left of a lease when it is renewed; null: two thirds of it"
    )
    clock_tolerance_seconds: float
    node_silence_seconds: float
    retry_base_seconds: float
    retry_cap_seconds: float
    on_promotion: OnPromotion = Field(
        description="after a promoted standby: open the next epoch at once, or wait for a person"
    )
    set_by: str
    reason: str
    set_at: datetime


class PolicyHistory(Frozen):
    """``GET /v1/policies``: newest first. The first one is in force for what is granted next."""

    policies: tuple[PolicyView, ...]


class PolicyChange(Frozen):
    """``POST /v1/policies``: the next version. What is absent stays as it is in ``after_version``.

    Leases that were granted keep the terms that they were granted under.
    """

    after_version: int = Field(ge=1, description="the version in force that this is a change of")
    lease_seconds: Seconds | None = None
    renewal_margin_seconds: Seconds | None = Field(
        default=None, description="null, if present: two thirds of the lease"
    )
    clock_tolerance_seconds: Annotated[float, Field(ge=0, le=60)] | None = None
    node_silence_seconds: Seconds | None = None
    retry_base_seconds: Seconds | None = None
    retry_cap_seconds: Seconds | None = None
    on_promotion: OnPromotion | None = None
    reason: Why = Field(description="why, for those who read the history")


class RevocationRequest(Frozen):
    """``POST /v1/tasks/{task_id}/revoke``: the authority of this attempt ends now."""

    attempt_id: Uuid
    reason: Why


class Revoked(Frozen):
    """What became of an attempt whose authority was taken away."""

    task_id: str
    attempt_id: str
    outcome: Literal["revoked", "already_ended"]
    attempt_state: AttemptState
    task_state: TaskState
    writable_until: datetime | None = Field(
        description="until then, or its successor's first touch, receivers accept its token"
    )


class RenewalView(Frozen):
    """One renewal, as it was recorded in its commit (LEASE-06)."""

    attempt_id: str
    lease_id: str
    at: datetime
    prior_expires_at: datetime
    new_expires_at: datetime
    renewed_by: str


class RenewalList(Frozen):
    """``GET /v1/tasks/{task_id}/renewals``: newest first, at most a thousand."""

    renewals: tuple[RenewalView, ...]


class QuarantineRequest(Frozen):
    """``POST /v1/nodes/{node_id}/quarantine``: nothing new, and what it has is revoked."""

    reason: Why


class HeldAttempt(Frozen):
    """An attempt that had not ended."""

    task_id: str
    attempt_id: str
    state: AttemptState
    fencing_token: int
    expires_at: datetime = Field(
        description="until then, or its successor's first touch, receivers accept its token"
    )


class Quarantined(Frozen):
    """A node out of service. Its attempts are revoked one by one, within seconds."""

    node_id: str
    attempts: tuple[HeldAttempt, ...]


class ReviewView(Frozen):
    """A health review of one start of a node: its heartbeats were missing."""

    incarnation: str
    last_seen_at: datetime
    opened_at: datetime
    closed_at: datetime | None
    outcome: Literal["heartbeats_returned", "operator", "node_gone"] | None
    closed_by: str | None
    message: str | None


class ReviewList(Frozen):
    """``GET /v1/nodes/{node_id}/reviews``: newest first."""

    reviews: tuple[ReviewView, ...]


class ReviewClosing(Frozen):
    """``POST /v1/nodes/{node_id}/reviews/close``: somebody has looked at the node."""

    reason: Why


class EpochView(Frozen):
    """A time of the authority: every token that was granted in it carries its number."""

    epoch: int
    opened_at: datetime
    opened_by: str
    cause: Literal["initial", "promotion", "recovery"]
    reason: str


class AuthorityView(Frozen):
    """``GET /v1/authority``: what the authority is, and whether it grants (LEASE-04)."""

    authority_id: str
    state: Literal["confirmed", "unconfirmed", "history_lost"] = Field(
        description="confirmed: it grants. unconfirmed: the running server is not the one it was"
        " opened on. history_lost: somebody presented what only a later state can have granted"
    )
    stored_epoch: int
    highest_epoch_seen: int
    opened_at: datetime
    system_identifier: str
    timeline: str
    running_system_identifier: str
    running_timeline: str
    lost_at: datetime | None = None
    lost_proof: dict[str, Any] | None = None
    epochs: tuple[EpochView, ...]


class Recovery(Frozen):
    """``POST /v1/authority/recover``: this database, as it is, is the authority from now on."""

    reason: Why
    above_epoch: int | None = Field(
        default=None, ge=1, lt=EPOCH_LIMIT - 4096,
        description="the highest epoch that was opened on any copy, if you know it",
    )  # fmt: skip


class Recovered(Frozen):
    """The epoch that was opened."""

    epoch: int


class PresentedToken(Frozen):
    """A fencing token that a receiver has seen for a task."""

    task_id: Uuid
    fencing_token: Token


class PresentedPosition(Frozen):
    """How far a consumer has seen a stream."""

    entity_type: EntityType
    entity_id: Uuid
    epoch: int = Field(ge=1, lt=EPOCH_LIMIT)
    sequence: int = Field(ge=1, lt=2**53)


class Evidence(Frozen):
    """``POST /v1/authority/evidence``: what consumers, fences and executors have seen."""

    tokens: tuple[PresentedToken, ...] = Field(default=(), max_length=1000)
    positions: tuple[PresentedPosition, ...] = Field(default=(), max_length=1000)


class EvidenceJudged(Frozen):
    """How many of what was presented prove that the database has lost history."""

    proven: int
