"""The terms of leases that a fleet's servers grant under, put in force by operators' means."""

from typing import Any, Final

from tenure.client import AsyncClient
from tenure.contract.operations import PolicyChange

LEASE_SECONDS: Final = 8.0
"""Short enough to wait for its end, and long enough for a busy machine."""
SHORTEST_LEASE_SECONDS: Final = 2.0
UNANSWERED_LEASE_SECONDS: Final = 4.0
"""Of an attempt whose assignment is held back: it has run out before the coordinator sends the same
assignment once more, which it does after 5 seconds."""
_LONGEST_TOLERANCE_SECONDS: Final = 0.5


def terms(lease_seconds: float) -> dict[str, float]:
    """What belongs to leases of a length. Silence is shorter than a lease, so that what a silent
    node has lost goes to another."""
    return {
        "lease_seconds": lease_seconds,
        "clock_tolerance_seconds": min(_LONGEST_TOLERANCE_SECONDS, lease_seconds / 10),
        "node_silence_seconds": lease_seconds * 5 / 8,
    }


async def put_in_force(client: AsyncClient, wanted: dict[str, Any], reason: str) -> None:
    """Make these the terms of what is granted from now on, where they are not."""
    in_force = (await client.policies()).policies[0]
    if all(getattr(in_force, name) == value for name, value in wanted.items()):
        return
    await client.set_policy(PolicyChange(after_version=in_force.version, reason=reason, **wanted))
