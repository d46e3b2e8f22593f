"""What the window is made of and asked for: rows of the log, what to read, where cursors may go.

Instants and durations are integer microseconds.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tenure.relay.core.parking import Parking, ParkingTerms


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the window. ``rows`` and ``body_bytes`` are shared equally by ``shards`` shards:
    all there are, until it is known how many are due to this relay."""

    rows: int = 16_384
    body_bytes: int = 32 * 1024 * 1024
    shards: int = 64
    in_flight: int = 1_000
    rows_per_read: int = 2_000
    body_bytes_per_read: int = 4 * 1024 * 1024
    backoff_base: int = 100_000
    backoff_cap: int = 30_000_000
    parking: ParkingTerms = field(default_factory=ParkingTerms)

    @property
    def rows_per_shard(self) -> int:
        """How many rows between cursor and read position a shard may have; at least 1."""
        return max(1, self.rows // self.shards)

    @property
    def body_bytes_per_shard(self) -> int:
        """How many bytes of bodies a shard may hold before it stops reading; at least 1."""
        return max(1, self.body_bytes // self.shards)


class Row(NamedTuple):
    """One row of the log. ``stream`` identifies (entity_type, entity_id); ``attempt_id`` is the
    attempt it is about, if any; ``replay_id`` the replay that publishes it once more."""

    position: int
    shard: int
    stream: Hashable
    event_id: str
    exchange: str
    routing_key: str
    required: bool
    body: bytes
    attempt_id: str | None = None
    replay_id: str | None = None

    @property
    def is_void_once_ended(self) -> bool:
        """Whether nobody needs it any more once its attempt has ended: a message to a node does not
        outlive the attempt. An event is about what happened, and stays true."""
        return self.exchange == "" and self.attempt_id is not None


@dataclass(frozen=True, slots=True)
class Want:
    """Read rows of ``shard`` after position ``after``: at most ``rows``, and none after the one
    that brings the bodies to ``body_bytes``."""

    shard: int
    after: int
    rows: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Read rows of ``shards`` after position ``after``, by position: at most ``rows``, and none
    after the one that brings the bodies to ``body_bytes``."""

    shards: Sequence[int]
    after: int
    rows: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """A cursor that may move, under the claim it belongs to, and what is parked by the move."""

    shard: int
    claim_token: int
    position: int
    parkings: tuple[Parking, ...] = ()


@dataclass(frozen=True, slots=True)
class Due:
    """A parked row that may be published now, after ``tries`` since it was parked, or skipped."""

    row: Row
    tries: int
    skip: bool = False
