"""What a run of the demo had to endure, as counted."""

from dataclasses import dataclass, field
from typing import Final

RELAY_KILLS: Final = 2


@dataclass
class Suffered:
    """Counts for the report."""

    stale_writes_refused: int = 0
    late_receipts: int = 0
    relay_kills: int = 0
    in_flight_at_kill: list[int] = field(default_factory=list)
    coordinator_kills: int = 0
    duplicates_published: int = 0
    duplicates_ignored: int = 0
    events_lost: int = 0

    @property
    def as_planned(self) -> bool:
        """Every fault happened as it was meant to, and nothing got past the guards."""
        return (
            self.relay_kills == len(self.in_flight_at_kill) == RELAY_KILLS
            and all(count > 0 for count in self.in_flight_at_kill)
            and self.coordinator_kills == 1
            and self.stale_writes_refused > 0
            and self.events_lost == 0
        )
