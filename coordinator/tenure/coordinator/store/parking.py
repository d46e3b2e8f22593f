"""Parked rows of the outbox: read by people; what operators ask for, the relay carries out."""

from collections.abc import Sequence
from typing import Final

from tenure.contract.codes import Code
from tenure.contract.parking import (
    ParkedDetail,
    ParkedReason,
    ParkedRequestView,
    ParkedState,
    ParkedView,
)
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.reading import Reader

_QUERIES: Final = named_queries.load("parking.sql")


class ParkedRows:
    """Over one pool. Every method raises Unavailable when the database stays away. Asking once more
    for the same is recorded once more and changes nothing else, so everything may be repeated."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def views(
        self,
        tenant: str | None,
        *,
        state: ParkedState | None,
        reason: ParkedReason | None,
        after: int,
        limit: int,
    ) -> tuple[ParkedView, ...]:
        """One page, oldest first, of one tenant or (None) of all."""
        rows = await self._reader.fetch(_QUERIES["parked"], tenant, state, reason, after, limit)
        return tuple(ParkedView(**dict(row)) for row in rows)

    async def detail(self, tenant: str | None, position: int) -> ParkedDetail | None:
        """One with its body as text and what was asked about it; None: it never was parked."""
        rows = await self._reader.fetch(_QUERIES["parked_row"], tenant, position)
        requests = await self._reader.fetch(_QUERIES["requests"], tenant, position)
        if not rows and not requests:
            return None
        view, body = None, None
        if rows:
            fields = dict(rows[0])
            body = fields.pop("body").decode("utf-8", "replace").replace("\0", "\ufffd")
            view = ParkedView(**fields)
        return ParkedDetail(
            parked=view,
            body=body,
            requests=tuple(ParkedRequestView(**dict(row)) for row in requests),
        )

    async def retry(
        self,
        tenant: str | None,
        positions: Sequence[int] | None,
        failed_as: ParkedReason | None,
        *,
        reason: str,
        actor: str,
    ) -> tuple[int, ...]:
        """Have rows tried again now; the positions that this reaches.

        Raises RequestRefused ``authority_unconfirmed``.
        """
        return await self._ask(tenant, "retry", positions, failed_as, reason, actor)

    async def skip(
        self, tenant: str | None, positions: Sequence[int], *, reason: str, actor: str
    ) -> tuple[int, ...]:
        """Have rows never published; the positions that this reaches. Raises as ``retry``."""
        return await self._ask(tenant, "skip", positions, None, reason, actor)

    async def _ask(
        self,
        tenant: str | None,
        action: str,
        positions: Sequence[int] | None,
        failed_as: ParkedReason | None,
        reason: str,
        actor: str,
    ) -> tuple[int, ...]:
        (row,) = await self._reader.fetch(
            _QUERIES["ask"], tenant, action, positions, failed_as, reason, actor
        )
        if row["positions"] is None:
            raise RequestRefused(
                Code.AUTHORITY_UNCONFIRMED,
                "the running database server is not the one this authority was opened on",
            )
        return tuple(row["positions"])
