"""Dead letters: recorded, read by people, and settled by operators."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from asyncpg import Record

from tenure.contract.codes import Code
from tenure.contract.dead_letters import DeadLetterDetail, DeadLetterState, DeadLetterView
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.reading import Reader

_QUERIES: Final = named_queries.load("dead_letters.sql")


@dataclass(frozen=True, slots=True)
class CameBack:
    """One message that a queue gave up. ``body`` is None where it is too large to be kept."""

    queue: str
    event_id: str
    tenant: str | None
    task_id: str | None
    event_type: str | None
    reason: str
    message_id: str
    body_bytes: int
    body: bytes | None


class DeadLetters:
    """Over one pool. Every method raises Unavailable when the database stays away. Saying the same
    once more changes nothing that counts, so everything may be repeated."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def record(self, letters: Sequence[CameBack]) -> bool:
        """Keep them; False, and nothing is kept, when the authority is not confirmed."""
        (row,) = await self._reader.fetch(
            _QUERIES["record_dead_letters"],
            [one.queue for one in letters],
            [one.event_id for one in letters],
            [one.tenant for one in letters],
            [one.task_id for one in letters],
            [one.event_type for one in letters],
            [one.reason for one in letters],
            [one.message_id for one in letters],
            [one.body_bytes for one in letters],
            [one.body for one in letters],
        )
        return bool(row["recorded"])

    async def views(
        self,
        tenant: str | None,
        *,
        state: DeadLetterState | None,
        queue: str | None,
        after: int | None,
        limit: int,
    ) -> tuple[DeadLetterView, ...]:
        """One page, newest first, of one tenant or (None) of all."""
        rows = await self._reader.fetch(
            _QUERIES["dead_letters"], tenant, state, queue, after, limit
        )
        return tuple(DeadLetterView(**dict(row)) for row in rows)

    async def detail(self, tenant: str | None, dead_letter_id: int) -> DeadLetterDetail | None:
        """One with its body as text."""
        row = await self._one(tenant, dead_letter_id)
        if row is None:
            return None
        body: bytes | None = row["body"]
        text = None if body is None else body.decode("utf-8", "replace").replace("\0", "\ufffd")
        return DeadLetterDetail(**(dict(row) | {"body": text}))

    async def content(self, tenant: str | None, dead_letter_id: int) -> CameBack | None:
        """One as it came."""
        row = await self._one(tenant, dead_letter_id)
        if row is None:
            return None
        return CameBack(
            queue=row["queue"],
            event_id=row["event_id"],
            tenant=row["tenant"],
            task_id=row["task_id"],
            event_type=row["event_type"],
            reason=row["reason"],
            message_id="",
            body_bytes=row["body_bytes"],
            body=row["body"],
        )

    async def settle(
        self,
        tenant: str | None,
        dead_letter_id: int,
        state: DeadLetterState,
        *,
        reason: str,
        actor: str,
    ) -> bool:
        """Say what became of one; whether it is there.

        Raises RequestRefused ``authority_unconfirmed``.
        """
        (row,) = await self._reader.fetch(
            _QUERIES["settle_dead_letter"], tenant, dead_letter_id, state, reason, actor
        )
        if row["found"] is None:
            raise RequestRefused(
                Code.AUTHORITY_UNCONFIRMED,
                "the running database server is not the one this authority was opened on",
            )
        return bool(row["found"])

    async def _one(self, tenant: str | None, dead_letter_id: int) -> Record | None:
        rows = await self._reader.fetch(_QUERIES["dead_letter"], tenant, dead_letter_id)
        return rows[0] if rows else None
