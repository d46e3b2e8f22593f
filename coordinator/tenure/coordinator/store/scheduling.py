"""Reads that explain and steer the scheduler, and the facts that operators state.

All are bound to a tenant. What is not there, and what is another tenant's, is None alike.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from asyncpg import Record

from tenure.contract.codes import Code
from tenure.contract.ids import TenantId
from tenure.contract.reports import NodeFacts
from tenure.contract.scheduling import NodeDetail, TenantView
from tenure.contract.states import AttemptState
from tenure.coordinator.core.rows import IncarnationRow, TaskRow, TenantRow
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.reading import Reader
from tenure.coordinator.store.reads import node_view
from tenure.coordinator.store.rows import (
    incarnation_row,
    judged_task_row,
    tenant_row,
    to_microseconds,
)

MAX_POSITION: Final = 10_000
MAX_NODES: Final = 10_000

_QUERIES: Final = named_queries.load("scheduling.sql")
_NODES: Final = named_queries.load("nodes.sql")


@dataclass(frozen=True, slots=True)
class JudgedTask:
    """A task with all that it is judged by, at one instant."""

    task: TaskRow
    tenant: TenantRow | None
    attempt: AttemptState | None
    node_id: str | None
    reason: str | None
    position: int | None
    since: datetime
    not_before: datetime | None
    deadline: datetime | None
    now: int


class SchedulingReads:
    """The reads, over one pool. Every method raises Unavailable when the database stays away."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def judged_task(self, tenant: TenantId, task_id: str) -> JudgedTask | None:
        """A task as nodes are judged for it."""
        rows = await self._reader.fetch(_QUERIES["judged_task"], tenant, task_id, MAX_POSITION)
        task = judged_task_row(rows[0]) if rows else None
        if task is None:
            return None
        row = rows[0]
        return JudgedTask(
            task=task,
            tenant=tenant_row(row),
            attempt=None if row["attempt_state"] is None else AttemptState(row["attempt_state"]),
            node_id=row["node_id"],
            reason=row["reason"],
            position=row["position"],
            since=row["decided_at"],
            not_before=row["not_before"],
            deadline=row["deadline"],
            now=to_microseconds(row["clock"]),
        )

    async def judged_nodes(self, tenant: TenantId) -> tuple[IncarnationRow, ...]:
        """Every node of the tenant that has not ended."""
        rows = await self._reader.fetch(_QUERIES["judged_nodes"], tenant, MAX_NODES)
        return tuple(node for node in map(incarnation_row, rows) if node is not None)

    async def tenants(self, tenant: TenantId | None) -> tuple[TenantView, ...]:
        """What is stated about one tenant, or about all."""
        rows = await self._reader.fetch(_QUERIES["tenants"], tenant)
        return tuple(_tenant(row) for row in rows)

    async def node(self, tenant: TenantId, node_id: str) -> NodeDetail | None:
        """A node by its name."""
        rows = await self._reader.fetch(_NODES["node"], tenant, node_id)
        if not rows:
            return None
        row = rows[0]
        return NodeDetail(
            node_id=row["node_id"],
            stated=NodeFacts.model_validate_json(row["stated_facts"]),
            current=None if row["incarnation"] is None else node_view(row),
        )

    async def set_tenant(self, tenant: str, change: Mapping[str, Any], actor: str) -> None:
        """State facts about a tenant. Raises RequestRefused ``authority_unconfirmed``."""
        await self._set(_QUERIES["set_tenant"], tenant, json.dumps(change), actor)

    async def set_node_facts(
        self, tenant: TenantId, node_id: str, change: Mapping[str, Any], actor: str
    ) -> None:
        """State facts about a node. Raises RequestRefused ``authority_unconfirmed``."""
        await self._set(_QUERIES["set_node_facts"], tenant, node_id, json.dumps(change), actor)

    async def _set(self, query: str, *arguments: Any) -> None:
        """Saying the same once more changes nothing that counts, so it may be repeated."""
        (row,) = await self._reader.fetch(query, *arguments)
        if not row["confirmed"]:
            raise RequestRefused(
                Code.AUTHORITY_UNCONFIRMED,
                "the running database server is not the one this authority was opened on",
            )


def _tenant(row: Record) -> TenantView:
    values = dict(row)
    for name in ("node_pools", "locations", "networks"):
        values[name] = None if values[name] is None else tuple(values[name])
    return TenantView(**values)
