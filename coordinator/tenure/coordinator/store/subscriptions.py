"""Subscriptions: reads for people and for the broker's topology, and what operators say."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from asyncpg import Record

from tenure.contract.codes import Code
from tenure.contract.ids import TenantId
from tenure.contract.subscriptions import SubscriptionView, whole_streams, words_of
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.reading import Reader

_QUERIES: Final = named_queries.load("subscriptions.sql")


@dataclass(frozen=True, slots=True)
class SubscriptionQueue:
    """A queue as it must be on the broker, or (not ``needed``) one that may go. ``former``: keys
    that it was bound by and must not be any more."""

    queue: str
    patterns: tuple[str, ...]
    former: tuple[str, ...]
    needed: bool


class Subscriptions:
    """Over one pool. Every method raises Unavailable when the database stays away. Saying the same
    once more changes nothing, so everything may be repeated."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def views(self, tenant: TenantId | None) -> tuple[SubscriptionView, ...]:
        """Those of one tenant, or (None) all."""
        rows = await self._reader.fetch(_QUERIES["subscriptions"], tenant)
        return tuple(map(_view, rows))

    async def queues(self) -> tuple[SubscriptionQueue, ...]:
        """Every queue of a subscription that is or was."""
        rows = await self._reader.fetch(_QUERIES["subscription_queues"])
        return tuple(
            SubscriptionQueue(
                row["queue"], tuple(row["patterns"]), tuple(row["former_patterns"]), row["needed"]
            )
            for row in rows
        )

    async def subscribe(
        self,
        tenant: str | None,
        name: str,
        *,
        queue: str,
        patterns: Sequence[str],
        dedupe_retention_seconds: float,
        actor: str,
    ) -> None:
        """Subscribe, or change what was subscribed to.

        Raises RequestRefused ``authority_unconfirmed``.
        """
        (row,) = await self._reader.fetch(
            _QUERIES["set_subscription"],
            tenant, name, queue, list(patterns), dedupe_retention_seconds, actor,
        )  # fmt: skip
        _confirmed(row["confirmed"] or None)

    async def unsubscribe(self, tenant: str | None, name: str, *, actor: str) -> bool:
        """End a subscription; whether there was one. Raises as ``subscribe``."""
        (row,) = await self._reader.fetch(_QUERIES["remove_subscription"], tenant, name, actor)
        return _confirmed(row["removed"])


def _view(row: Record) -> SubscriptionView:
    events = words_of(row["patterns"])
    return SubscriptionView(**dict(row), events=events, whole_streams=whole_streams(events))


def _confirmed(answer: bool | None) -> bool:
    if answer is None:
        raise RequestRefused(
            Code.AUTHORITY_UNCONFIRMED,
            "the running database server is not the one this authority was opened on",
        )
    return answer
