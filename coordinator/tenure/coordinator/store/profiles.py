"""Profiles in memory: they never change, so each is loaded once."""

from collections.abc import Sequence
from typing import Any, Final

from asyncpg import Record

from tenure.contract.ids import TenantId
from tenure.coordinator.core.ranking import Kind
from tenure.coordinator.core.rows import ProfileRow, TaskRow
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.rows import profile_row, waiting_task_row

MAX_PROFILES: Final = 10_000
"""Before all are forgotten and loaded anew."""

_QUERIES: Final = named_queries.load("loops.sql")


class Profiles:
    """By tenant and digest."""

    def __init__(self) -> None:
        self._known: dict[tuple[TenantId, str], ProfileRow] = {}

    async def kinds(self, connection: Any, waiting: Sequence[tuple[str, str]]) -> list[Kind]:
        """The kinds of tasks that wait, from their tenants and digests."""
        keys = [(TenantId(tenant), digest) for tenant, digest in waiting]
        missing = [key for key in keys if key not in self._known]
        if len(self._known) + len(missing) > MAX_PROFILES:
            self._known.clear()
            missing = keys
        if missing:
            records = await connection.fetch(
                _QUERIES["profiles"],
                [tenant for tenant, _ in missing],
                [bytes.fromhex(digest) for _, digest in missing],
            )
            for record in records:
                profile = profile_row(record)
                if profile is not None:
                    self._known[TenantId(record["tenant"]), profile.digest] = profile
        return [Kind(key[0], self._known[key]) for key in keys if key in self._known]

    def judged(self, record: Record) -> TaskRow:
        """A waiting task with its profile."""
        key = TenantId(record["tenant"]), record["profile_digest"].hex()
        return waiting_task_row(record, self._known.get(key))
