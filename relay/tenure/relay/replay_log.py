"""Replays in PostgreSQL, as a relay sees them. See ``log.py``: each statement commits by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from tenure.contract.states import ReplayPause, ReplayState
from tenure.relay.core.replay import Course, Progress, Stopped
from tenure.relay.core.rows import Row
from tenure.relay.log import RelayLog, load_queries


@dataclass(frozen=True, slots=True)
class ReplayClaim:
    """A replay that this relay holds, as it stands."""

    replay_id: str
    claim_token: int
    queue: str
    rate: int
    progress: Progress
    to_position: int


@dataclass(frozen=True, slots=True)
class Found:
    """What was read for a course. ``held``: positions of rows whose stream is held; ``scanned_to``:
    up to there nothing else matches; ``stopped``: why nothing more may be read."""

    rows: list[Row]
    held: frozenset[int]
    scanned_to: int
    stopped: Stopped | None


class ReplayLog:
    """Holds replays as ``relay_id``. Every method raises LogUnavailable when the database does not
    answer; the caller repeats it later, which is safe for each of them."""

    def __init__(self, log: RelayLog, relay_id: UUID, claim_seconds: float) -> None:
        self._log = log
        self._relay_id = relay_id
        self._lease = timedelta(seconds=claim_seconds)
        self._queries = load_queries("replay.sql")

    async def unclaimed(self) -> int:
        """How many running replays nobody holds, counted up to 100."""
        (row,) = await self._log.fetch_aside(self._queries["unclaimed"])
        return int(row["number"])

    async def claim(self, want: int) -> list[ReplayClaim]:
        """Take replays until this relay holds ``want``; the ones taken now."""
        rows = await self._log.fetch_aside(
            self._queries["claim"], self._relay_id, want, self._lease
        )
        return [
            ReplayClaim(
                replay_id=str(row["replay_id"]),
                claim_token=row["claim_token"],
                queue=row["queue"],
                rate=row["rate"],
                progress=Progress(row["position"], row["replayed"], row["held_back"]),
                to_position=row["to_position"],
            )
            for row in rows
        ]

    async def read(self, course: Course, rows: int, body_bytes: int) -> Found | None:
        """The rows that come next, to be sent to the course's queue; None: the claim is lost."""
        records = await self._log.fetch_aside(
            self._queries["read"],
            self._relay_id,
            UUID(course.replay_id),
            course.claim_token,
            course.read_to,
            rows,
            body_bytes,
        )
        if not records:
            return None
        code = records[0]["stop_code"]
        found = [record for record in records if record["position"] is not None]
        return Found(
            rows=[
                Row(
                    position=record["position"],
                    shard=record["shard"],
                    stream=(record["entity_type"], record["entity_id"]),
                    event_id=str(record["event_id"]),
                    exchange="",
                    routing_key=course.queue,
                    required=True,
                    body=record["body"],
                    replay_id=course.replay_id,
                )
                for record in found
            ],
            held=frozenset(record["position"] for record in found if record["held"]),
            scanned_to=records[0]["scanned_to"],
            stopped=None if code is None else Stopped(ReplayPause(code), records[0]["stop_detail"]),
        )

    async def advance(self, courses: Sequence[Course]) -> dict[str, ReplayState]:
        """Note how far they have come, and prolong the claims; the state of each that is still
        held (RELAY-03)."""
        progress = [course.progress for course in courses]
        rows = await self._log.fetch_aside(
            self._queries["advance"],
            self._relay_id,
            [UUID(course.replay_id) for course in courses],
            [course.claim_token for course in courses],
            [one.position for one in progress],
            [one.replayed for one in progress],
            [one.held_back for one in progress],
            self._lease,
        )
        return {str(row["replay_id"]): ReplayState(row["state"]) for row in rows}

    async def release(self, courses: Sequence[Course]) -> None:
        """Give claims back."""
        await self._log.fetch_aside(
            self._queries["release"],
            self._relay_id,
            [UUID(course.replay_id) for course in courses],
            [course.claim_token for course in courses],
        )

    async def stop(self, course: Course, why: Stopped) -> None:
        """Pause a replay that cannot go on, and give it back."""
        await self._log.fetch_aside(
            self._queries["stop"],
            self._relay_id,
            UUID(course.replay_id),
            course.claim_token,
            why.code,
            why.detail,
        )
