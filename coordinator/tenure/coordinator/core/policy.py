"""Which terms make sense together (LEASE-08)."""

from tenure.coordinator.core.snapshot import LeasePolicy


def contradiction(policy: LeasePolicy) -> str | None:
    """Why nobody could work under these terms, or None."""
    margin = policy.lease_microseconds - policy.renewal_interval_microseconds
    if policy.lease_microseconds <= policy.clock_tolerance_microseconds:
        return "the lease is no longer than the clock tolerance: it would be over when it begins"
    if margin >= policy.lease_microseconds:
        return "the renewal margin is no shorter than the lease: it would be renewed all the time"
    if margin <= policy.clock_tolerance_microseconds:
        return "the renewal margin is within the clock tolerance: renewals would come too late"
    if policy.node_silence_microseconds <= policy.renewal_interval_microseconds:
        return (
            "the silence of nodes is no longer than the time between two heartbeats: every node"
            " would be taken for silent"
        )
    if policy.retry_base_microseconds > policy.retry_cap_microseconds:
        return "the base of retries is above their cap"
    return None
