"""Reads that explain and steer the scheduler, and the facts that operators state.

All are bound to a tenant. What is not there, and what is another tenant's, is None alike.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from asyncpg import Record
from pydantic_core import from_json

from tenure.contract.codes import Code
from tenure.contract.ids import TenantId
from tenure.contract.reports import NodeFacts
from tenure.contract.scheduling import (
    ExecutableList,
    ExecutableView,
    NodeDetail,
    ProfileList,
    ProfileView,
    TenantView,
)
from tenure.contract.states import AttemptState
from tenure.coordinator.core.commands import Executable, TaskTypeDeclared
from tenure.coordinator.core.rows import (
    IncarnationRow,
    ProfileRow,
    TaskRow,
    TaskTypeRow,
    TenantRow,
)
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.commit import declared_type
from tenure.coordinator.store.limits import counted
from tenure.coordinator.store.reading import Reader
from tenure.coordinator.store.rows import (
    incarnation_row,
    judged_task_row,
    profile_row,
    task_type_row,
    tenant_row,
    to_microseconds,
)
from tenure.coordinator.store.views import node_view

MAX_POSITION: Final = 10_000
MAX_NODES: Final = 10_000
MAX_COUNTED_TASKS: Final = 100_000

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


@dataclass(frozen=True, slots=True)
class Waiting:
    """Tasks that are judged alike: one of them, how many there are, and since when."""

    task: TaskRow
    tenant: TenantRow | None
    tasks: int
    oldest: datetime
    now: int


@dataclass(frozen=True, slots=True)
class Declared:
    """What a submission would be recorded with, at one instant, and its place in the queue."""

    task_type: TaskTypeRow | None
    profile: ProfileRow | None
    tenant: TenantRow | None
    position: int
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
            tenant=await self._counted(tenant_row(row), task.concurrency_key),
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

    async def backlog(self, tenant: TenantId) -> tuple[Waiting, ...]:
        """What waits, in groups that are judged alike, the largest first."""
        rows = await self._reader.fetch(_QUERIES["backlog"], tenant, MAX_COUNTED_TASKS)
        keys = {row["concurrency_key"] for row in rows} - {None}
        limited = await self._counted(tenant_row(rows[0]) if rows else None, *keys)
        found = []
        for row in rows:
            task = judged_task_row(row)
            if task is not None:
                now = to_microseconds(row["clock"])
                found.append(Waiting(task, limited, row["tasks"], row["oldest"], now))
        return tuple(found)

    async def _counted(self, tenant: TenantRow | None, *keys: str | None) -> TenantRow | None:
        """A tenant with what counts under its limits."""
        if tenant is None:
            return None
        given = [key for key in keys if key is not None]
        return (await counted(self._reader, {tenant.tenant: tenant}, given))[tenant.tenant]

    async def waiting_counts(self, tenant: TenantId) -> tuple[int, int]:
        """Tasks that wait for a node, and for their time; each counted up to 100,000."""
        (row,) = await self._reader.fetch(_QUERIES["waiting_counts"], tenant, MAX_COUNTED_TASKS)
        return row["waiting"], row["not_before"]

    async def declared(
        self, tenant: TenantId, type_name: str, head_start: int, key: str | None
    ) -> Declared:
        """What a submission of a type would be recorded with. ``key``: its concurrency key."""
        (row,) = await self._reader.fetch(
            _QUERIES["declared"], tenant, type_name, head_start, MAX_POSITION
        )
        return Declared(
            task_type=task_type_row(row),
            profile=profile_row(row),
            tenant=await self._counted(tenant_row(row), key),
            position=row["position"],
            now=to_microseconds(row["clock"]),
        )

    async def profile(
        self, tenant: TenantId, type_name: str, digest: str | None
    ) -> ProfileRow | None:
        """A profile of a type, without a digest the one that new tasks get."""
        wanted = None if digest is None else bytes.fromhex(digest)
        rows = await self._reader.fetch(_QUERIES["profile"], tenant, type_name, wanted)
        return profile_row(rows[0]) if rows else None

    async def profiles(self, tenant: TenantId, type_name: str | None) -> ProfileList:
        """Profiles, newest first."""
        rows = await self._reader.fetch(_QUERIES["list_profiles"], tenant, type_name)
        return ProfileList(
            profiles=tuple(
                ProfileView(**dict(row) | {"content": from_json(row["content"])}) for row in rows
            )
        )

    async def push_profiles(
        self,
        tenant: TenantId,
        declared: Sequence[TaskTypeDeclared],
        executable: Executable | None,
    ) -> None:
        """Register profiles that no node runs yet. Raises RequestRefused
        ``authority_unconfirmed``."""
        program = executable
        await self._set(
            _QUERIES["push_profiles"],
            [declared_type(0, tenant, each) for each in declared],
            tenant,
            None if program is None else bytes.fromhex(program.digest),
            program and program.name,
            program and program.version,
            None
            if program is None or program.inventory_digest is None
            else bytes.fromhex(program.inventory_digest),
        )

    async def executables(self, tenant: TenantId, digest: str | None) -> ExecutableList:
        """Programs, or the one with a digest; the one seen last first."""
        wanted = None if digest is None else bytes.fromhex(digest)
        rows = await self._reader.fetch(_QUERIES["list_executables"], tenant, wanted)
        return ExecutableList(executables=tuple(ExecutableView(**row) for row in rows))

    async def set_executable(self, tenant: TenantId, digest: str, state: str, actor: str) -> None:
        """Withdraw a program, or register it again. Nothing happens when it is not known."""
        await self._reader.fetch(
            _QUERIES["set_executable"], tenant, bytes.fromhex(digest), state, actor
        )

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
