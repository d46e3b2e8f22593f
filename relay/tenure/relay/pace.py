"""How often the relay does what."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the loop does what. Seconds."""

    claim_seconds: float = 4.0
    attend_seconds: float = 0.5  # how soon a relay that comes or goes changes the others' shares
    claim_poll_seconds: float = 0.2  # while shards are due to this relay that others have
    due_seconds: float = 0.5  # how soon a request about a parked row is seen
    hand_over_seconds: float = 3.0  # how long a failing row holds up the hand-over of its shard
    poll_seconds: float = 0.01  # while rows come
    idle_poll_seconds: float = 0.05
    idle_after_seconds: float = 5.0
    listening_poll_seconds: float = 0.1  # while hints tell of new rows
    advance_seconds: float = 0.05
    drain_seconds: float = 5.0
