"""What operators ask about authority: the policy of leases. HTTP under ``/v1/policies``."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from tenure.contract.reports import Frozen

Seconds = Annotated[float, Field(gt=0, le=86_400)]
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
    reason: Why = Field(description="why, for those who read the history")
